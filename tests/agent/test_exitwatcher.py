"""How a process ends that is not the agent's child."""

import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.hosts.waiting import wait_until

from allranks.agent import ranks as exitwatcher
from allranks.agent.attempt import RankAttempt
from allranks.agent.ranks import ExitWatcher, exit_status
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import ExitMessage

pytestmark = pytest.mark.processes

SOCKET = "/n/report.sock"
# A launcher that reaps late, with one child that waits for a line and then runs the words given.
PARENT = """import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import os, sys; sys.stdin.readline(); " + sys.argv[1]], stdin=0)
print(child.pid, flush=True)
time.sleep(600)
"""


class Ends(RankAttempt):
    """Only what the exit watcher tells an attempt."""

    def __init__(self, found: list[tuple[int, int | None]]) -> None:
        self.found = found

    def launched_rank_ended(self, rank: int, status: int | None) -> None:
        self.found.append((rank, None if status is None else os.waitstatus_to_exitcode(status)))


def settled(pid: int) -> int:
    """Right after exec /proc shows no environment yet; a rank that reports has had one for long."""
    assert wait_until(lambda: Path(f"/proc/{pid}/environ").read_bytes(), 60.0, "an environment")
    return pid


def seen(words: str, socket: str = SOCKET, bound: float = 30.0) -> list[tuple[int, int | None]]:
    """What the exit watcher says of a grandchild: rank and code."""
    found: list[tuple[int, int | None]] = []
    selector = selectors.DefaultSelector()
    env = {**os.environ, "ALLRANKS_REPORT_SOCKET": SOCKET}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, words], env=env, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert parent.stdout is not None and parent.stdin is not None
        pid = settled(int(parent.stdout.readline()))
        one = ExitWatcher(selector, socket)
        assert one.heard(ReportMessage("launched", 3, pid=pid), Ends(found))
        registered = len(selector.get_map())
        parent.stdin.write("go\n")
        parent.stdin.flush()
        deadline = time.monotonic() + bound
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1.0):
                key.data()
        assert registered == (socket == SOCKET)
        assert not selector.get_map(), "it was never seen to end"
        return found
    finally:
        parent.kill()
        parent.wait()
        selector.close()


@pytest.mark.parametrize(
    ("words", "socket", "told"),
    [
        ("os._exit(3)", SOCKET, [(3, 3)]),
        ("os.kill(os.getpid(), 9)", SOCKET, [(3, -9)]),
        ("sys.exit(0)", SOCKET, []),
        ("os._exit(3)", "/other/report.sock", []),  # another process: a number out of a container's own counting
    ],
)
def test_how_it_ends(words: str, socket: str, told: list[tuple[int, int | None]]) -> None:
    assert seen(words, socket) == told


def test_one_that_its_launcher_has_reaped_first_has_no_status() -> None:
    found: list[tuple[int, int | None]] = []
    child = subprocess.Popen(["sleep", "600"], env={"ALLRANKS_REPORT_SOCKET": SOCKET})
    with selectors.DefaultSelector() as selector:
        one = ExitWatcher(selector, SOCKET)
        one.heard(ReportMessage("launched", 3, pid=settled(child.pid)), Ends(found))
        child.kill()
        child.wait()
        for key, _ in selector.select(60.0):
            key.data()
    assert found == [(3, None)]


@pytest.mark.parametrize(
    ("status", "file", "told"),
    [
        (None, '{"message": {"message": "ValueError: x"}}', [1]),  # it raised
        (None, "", []),  # its launcher knows
        (9, "", [None]),
        (3 << 8, "", [3]),
        (15, '{"message": {"message": "Connection closed by peer"}}', []),  # ended by its launcher for another's sake
    ],
)
def test_what_an_agent_tells_of_its_end(tmp_path: Path, status: int | None, file: str, told: list[int | None]) -> None:
    """The rank that torchrun ended was named, and not the one that had raised before."""
    path = tmp_path / "rank_003.json"
    path.write_text(file)
    ends: list[ExitMessage] = []
    attempt = RankAttempt.__new__(RankAttempt)
    owner = SimpleNamespace(rank=2, starts_ranks=True, error_files=[str(tmp_path / "rank_002.json"), str(path)])
    attempt.__dict__.update(ranks={2: owner}, number=0, _tell=ends.append, _end_at=None, _ooms=0)
    attempt.launched_rank_ended(3, status)
    assert [(end.rank, end.code) for end in ends] == [(3, code) for code in told]


def test_a_process_in_the_midst_of_exec_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """runner_launched.py reports and then becomes the runner."""
    looks: list[int] = []
    real = exitwatcher.environment_of

    def empty_at_first(pid: int) -> list[bytes]:
        looks.append(pid)
        return [b""] if len(looks) < 4 else real(pid)

    child = subprocess.Popen(["sleep", "600"], env={"ALLRANKS_REPORT_SOCKET": SOCKET})
    with selectors.DefaultSelector() as selector:
        one = ExitWatcher(selector, SOCKET)
        settled(child.pid)
        monkeypatch.setattr(exitwatcher, "environment_of", empty_at_first)
        one.heard(ReportMessage("launched", 5, pid=child.pid), None)
        assert (len(selector.get_map()), list(one.processes)) == (1, [5])
    child.kill()
    child.wait()


def test_before_python_3_9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(exitwatcher.os, "pidfd_open", raising=False)
    assert seen("os._exit(4)") == [(3, 4)]


def test_without_a_library_to_call_no_process_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no shared library can be opened")

    monkeypatch.delattr(exitwatcher.os, "pidfd_open", raising=False)
    monkeypatch.setattr(exitwatcher.ctypes, "CDLL", refuse)
    assert exitwatcher._pidfd(os.getpid()) is None  # noqa: SLF001 - no machine of the tests is without it


def test_the_living_and_the_gone_have_no_status() -> None:
    assert exit_status(os.getpid()) is None
    child = subprocess.Popen(["true"])
    child.wait()
    assert exit_status(child.pid) is None
