"""allranks top on run directories made by hand: once, and in the window of a real terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_ps import make
from tests.hosts.waiting import BOUND
from tests.shell import Shell

from allranks.runs.directory import RunDirectory

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?25h\x1b[?1049l"


@pytest.fixture
def run(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    made = make(tmp_path / "runs", "job", 65)
    warning = {"id": "slow-rank", "status": "warn", "message": "rank 1 comes late"}
    made.append_line({"t": 1.0, "event": "finding", **warning})
    made.append_line({"event": "note", "t": time.time(), "message": "hello"})
    return made


def test_without_a_terminal_it_is_printed_once(run: RunDirectory, shell: Shell) -> None:
    lines = shell("top").out.splitlines()
    assert lines[0].startswith(f"{run.name}  running  2 ranks on 2 nodes")
    assert lines[1].startswith("step 40  2.25 steps/s  after 1 min 5 s")
    assert "warning: rank 1 comes late" in lines
    assert lines[-1].endswith("note: hello")
    assert not [line for line in lines if "\x1b" in line or line.startswith("q ends")]


class Window:
    """`allranks top` in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-m", "allranks", "top", *words])
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.terminal)
        self.written = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, words: bytes) -> bytes:
        """What was written up to these words, which then counts as read."""
        deadline = time.monotonic() + BOUND
        while words not in self.written:
            ready, _, _ = select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.written[-2000:]
            self.written += os.read(self.terminal, 1 << 16)
        start, _, self.written = self.written.partition(words)
        return start + words

    def press(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def window(run: RunDirectory) -> Iterator[Window]:
    made = Window()
    yield made
    os.close(made.terminal)


@pytest.mark.processes
@pytest.mark.parametrize(("end", "code"), [(b"q", 0), (b"\x03", 0), (signal.SIGTERM, 143)])
def test_the_terminal_is_left_as_it_was(window: Window, end: bytes | signal.Signals, code: int) -> None:
    assert ENTERED in window.wait_for(b"the run goes on")
    if isinstance(end, bytes):
        window.press(end)
    else:
        os.kill(window.pid, end)
    window.wait_for(LEFT)
    assert termios.tcgetattr(window.terminal) == window.before
    assert window.code() == code


@pytest.mark.processes
def test_it_follows_the_run_and_the_windows_size(window: Window, run: RunDirectory) -> None:
    window.wait_for(b"the run goes on")
    status = run.read_document("status.json") or {}
    status["nodes"][0]["ranks"][0]["step"] = status["nodes"][1]["ranks"][0]["step"] = 77
    run.write_document("status.json", status)
    window.wait_for(b"step 77")
    window.resize(44, 12)
    deadline = time.monotonic() + BOUND
    widths = [80]
    while max(widths) > 44:
        assert time.monotonic() < deadline, widths
        screen = window.wait_for(b"\x1b[K\x1b[J").rpartition(b"\x1b[H")[2]
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode())
        widths = [len(line) for line in text.split("\r\n")]
    assert len(widths) <= 12
    window.press(b"q")
    assert window.code() == 0
