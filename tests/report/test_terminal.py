"""Nothing that others have written steers the terminal: what commands print goes through one place that cleans it."""

import ast
import io
import os
import pty
import re
import time
from pathlib import Path

import pytest
from tests import forked
from tests.cli.test_reading import make, write_logs
from tests.hosts.waiting import BOUND
from tests.report.test_screen import Terminal

from allranks.cli import orphans, streams
from allranks.protocol.processes import SweptProcess
from allranks.report.screen import Screen
from allranks.report.terminal import clean_lines, redraw_lines, write_unfiltered

pytestmark = pytest.mark.processes

PACKAGE = Path(__file__).resolve().parents[2] / "src/allranks"
NASTY = "\x1b]0;owned\x07\x1b[2J\x1b[3A\x9b5n\x1bc\u202eevil\x08\x08\r\x0b"
STEERS = re.compile("\x1b(?!\\[[0-9;]*m)|[\x00-\x08\x0b-\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# Own programs on the nodes and in ranks, and the one that catches Ctrl-C before all else: their words are constants.
ELSEWHERE = (
    "agent/", "fabric/", "early.py", "gang/agent_archive.py", "preflight/checks/", "program.py",
)  # fmt: skip


def test_a_stream_of_ours_takes_no_escape_but_its_own() -> None:
    below = Terminal()
    stream = streams.Guarded(below, ends=False)
    print(f"node {NASTY} said \x1b[31mred", file=stream)
    stream.writelines([NASTY, "\n", "one\ttwo\n"])
    assert not STEERS.search(below.getvalue())
    assert "\x1b[31mred\x1b[0m\n" in below.getvalue() and below.getvalue().endswith("one\ttwo\n")
    redraw_lines(stream, 2, [NASTY])  # type: ignore[arg-type]
    assert "\x1b[2A\x1b[J" in below.getvalue() and "owned" not in below.getvalue().split("\x1b[J")[1]
    write_unfiltered(stream, "\x1b[H")  # type: ignore[arg-type]
    assert below.getvalue().endswith("\x1b[H")


def test_a_pipe_gets_no_colours() -> None:
    below = io.StringIO()
    print("\x1b[31mred", file=streams.Guarded(below, ends=False))
    assert below.getvalue() == "red\n"
    text = "plain text\twith a tab\n" * 3
    assert clean_lines(text, colour=False) is text


def test_a_screen_takes_no_escape_but_its_own() -> None:
    below = Terminal()
    screen = Screen(below)
    screen.show([f"a {NASTY}\nb"], [f"h1{NASTY}"])
    screen.finish([NASTY])
    rest = re.sub(r"\r\x1b\[\d+A\x1b\[J", "", below.getvalue())
    assert not STEERS.search(rest) and "a " in rest


PAST_THAT_PLACE = {"buffer", "__stdout__", "__stderr__", "write"}


def test_no_module_writes_past_that_place() -> None:
    """sys.stdout.buffer, sys.__stdout__ and os.write(1) go past what cleans."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(ELSEWHERE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            attribute = node.func if isinstance(node, ast.Call) else node
            is_of_interest = isinstance(attribute, ast.Attribute) and attribute.attr in PAST_THAT_PLACE
            text = ast.unparse(node) if is_of_interest else ""
            if re.fullmatch(r"sys\.(stdout|stderr)\.buffer|sys\.__std(out|err)__", text):
                found.append(f"{name}: {text}")
            if re.match(r"os\.write\([12],", text):
                found.append(f"{name}: {text}")
    assert found == []


def on_terminal(work: Path, *words: str) -> str:
    """What a command writes to a terminal."""
    main_end, end = pty.openpty()
    process = forked.popen(words, cwd=work, stdout=end, stderr=end, env={**os.environ, "TERM": "xterm"})
    os.close(end)
    data = b""
    while True:
        try:
            part = os.read(main_end, 1 << 16)
        except OSError:  # its end
            break
        if not part:
            break
        data += part
    os.close(main_end)
    process.wait(BOUND)
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


@pytest.mark.parametrize("words", [("logs",), ("logs", "--metrics"), ("status",), ("diagnose",), ("diagnose", "x.log")])
def test_words_of_others_do_not_steer_the_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    run = make(tmp_path / "runs")
    document = run.read_document("status.json") or {}
    document["nodes"][0]["name"] = f"h1{NASTY}"
    run.write_document("status.json", document)
    run.write_document("result.json", {"exit": 1, "verdict": {"cause": "unknown", "message": f"it said {NASTY}"}})
    run.append_line({"t": time.time(), "event": "note", "message": NASTY})
    write_logs(run, (0, f"{NASTY} in a log\n".encode()))
    (run.path / "outputs").mkdir(exist_ok=True)
    (run.path / "outputs/rank_00_metrics.jsonl").write_text(f'{{"step": 1}} {NASTY}\n')
    (tmp_path / "x.log").write_text(f"RuntimeError: {NASTY} CUDA out of memory. Tried to allocate 2 GiB {NASTY}\n")
    said = on_terminal(tmp_path, *words)
    assert said and not STEERS.search(said), repr(STEERS.search(said))
    assert "owned" not in said and "Traceback" not in said


def test_a_prompt_is_clean_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(orphans.click, "confirm", lambda text: bool(asked.append(text)))
    orphans.is_wanted(f"h1{NASTY}", SweptProcess(3, 0, f"python {NASTY}"))
    assert asked and not STEERS.search(asked[0])
