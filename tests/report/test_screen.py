"""The screen: it need not be read, and what it could not show it counts."""

import io
import os
import re
import threading

import pytest
from tests.facts import fact

from allranks.report.live import LiveView, OutputView
from allranks.report.screen import Screen
from allranks.runs.documents import NodeStatus, RunOpened, StatusDocument, result_record

STATUS = StatusDocument(world_size=1, nodes=tuple(NodeStatus(f"h{i}", state="ready") for i in range(50)))
ONE_NODE = StatusDocument(world_size=1, nodes=(NodeStatus("h1", state="running"),))


@pytest.fixture
def pipe():
    """A text stream into a pipe, and the pipe's other end."""
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="ascii") as stream:
        yield stream, read_end
    os.close(read_end)


def read_all(descriptor, into):
    while data := os.read(descriptor, 1 << 16):
        into.append(data)


def test_lines_arrive_in_order(pipe):
    stream, read_end = pipe
    screen = Screen(stream)
    screen.show(["one"], [])
    screen.show(["two"], [])
    screen.finish(["three"])
    assert os.read(read_end, 100) == b"one\ntwo\nthree\n"


def test_without_a_thread_lines_are_written_all_the_same(pipe, monkeypatch):
    """The user's limit of processes counts threads too."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    stream, read_end = pipe
    screen = Screen(stream)
    screen.show(["one"], [])
    screen.finish(["two"])
    assert os.read(read_end, 100) == b"one\ntwo\n"


def test_a_reader_that_does_not_read_holds_nothing_up(pipe):
    stream, read_end = pipe
    screen = Screen(stream)
    for number in range(300):
        screen.show([f"{number} {'x' * 90}" for _ in range(100)], [])
    assert len(screen.waiting_lines) <= 4000
    screen.show(["y" * 1000] * 20_000, [])
    assert sum(map(len, screen.waiting_lines)) < 5 << 20
    found: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(read_end, found))
    reader.start()
    screen.finish(["the last"])
    stream.close()
    reader.join()
    lines = b"".join(found).decode("utf-8", "replace").splitlines()
    assert lines[-1] == "the last"
    missing = sum(int(m[1].replace(",", "")) for line in lines if (m := re.search(r"([\d,]+) lines not shown", line)))
    assert missing > 0
    assert missing + sum(line.endswith(("x", "y")) for line in lines) == 300 * 100 + 20_000


def test_what_the_encoding_lacks_is_escaped(pipe):
    stream, read_end = pipe
    Screen(stream).finish(["né"])
    assert os.read(read_end, 100) == b"n\\xe9\n"


def test_a_reader_that_left_ends_it(pipe):
    stream, read_end = pipe
    other, _ = os.pipe()
    os.dup2(other, read_end)  # the pipe has no reader any more
    screen = Screen(stream)
    screen.show(["x"], [])
    screen.finish(["y"])
    assert screen.gone
    screen.show(["z"], [])


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ColourTerminal(Terminal):
    shows_colour = True


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    size = [40, 10]
    monkeypatch.setattr(Screen, "size", lambda self: tuple(size))
    return size


def test_the_table_fits_the_window(small):
    out = Terminal()
    view = LiveView(stream=out)
    view.status(STATUS, 0.0)
    view.tick(10.0)
    assert out.getvalue().count("\n") < small[1]
    assert "50 nodes" in out.getvalue()


def test_the_table_stays_below_the_log(small):
    out = Terminal()
    view = LiveView(stream=out)
    view.status(ONE_NODE, 0.0)
    view.tick(10.0)
    drawn = out.getvalue().count("\n")
    assert drawn == 3
    view.output("h1", 0, b"hello\n", 11.0)
    view.tick(20.0)
    assert f"\r\x1b[{drawn}A\x1b[J[h1 0] hello\n" in out.getvalue()
    view.pause()
    before = out.getvalue()
    view.output("h1", 0, b"later\n", 21.0)
    view.tick(30.0)
    assert out.getvalue() == before
    view.resume()
    assert "later" in out.getvalue()
    view.closing(result_record({"exit": 0, "directory": "r"}))
    assert out.getvalue().endswith("done after 0.0 s (exit 0), logs in r/logs\n")


def test_without_a_terminal_there_are_no_escapes():
    out = io.StringIO()
    view = LiveView(stream=out)
    view.status(ONE_NODE, 0.0)
    view.output("h1", 0, b"\x1b[31mhello\x1b[0m\n", 1.0)
    view.tick(10.0)
    view.tick(20.0)
    assert out.getvalue() == "[h1 0] hello\n"


@pytest.mark.parametrize(
    ("first", "width", "rows"),
    [
        pytest.param("x" * 39, 20, 3, id="a window that became narrower"),
        pytest.param("\x1b[31m" + "x" * 39 + "\x1b[0m", 40, 2, id="colours take no room"),
    ],
)
def test_the_table_is_cleared_whole(small, first, width, rows):
    out = ColourTerminal()
    screen = Screen(out)
    screen.show([], [first, "y"])
    small[0] = width
    screen.show(["line"], [])
    assert out.getvalue().endswith(f"\r\x1b[{rows}A\x1b[Jline\n")


def test_failures_verdicts_and_warnings_have_colours_where_they_are_wanted(small):
    lines = {}
    for terminal in (ColourTerminal(), Terminal()):
        view = LiveView(stream=terminal)
        view.event(fact({"event": "finding", "id": "slow-rank", "status": "warn", "message": "rank 5 is late"}))
        view.event(fact({"event": "finding", "id": "x", "status": "fail", "message": "h2 is lost"}))
        view.output("h1", 0, b"FAIL: a word of the program\n", 1.0)
        view.tick(10.0)
        view.closing(result_record({"exit": 1, "directory": "r", "verdict": {"cause": "c", "message": "boom"}}))
        lines[terminal.__class__] = terminal.getvalue().splitlines()
    plain = lines[Terminal]
    assert [re.sub("\x1b[^m]*m", "", line) for line in lines[ColourTerminal]] == plain
    coloured = {line.removesuffix("\x1b[0m") for line in lines[ColourTerminal] if "\x1b" in line}
    assert coloured == {"\x1b[33mwarning: rank 5 is late", "\x1b[31mFAIL: h2 is lost", "\x1b[1;31mVERDICT   boom"}
    assert "[h1 0] FAIL: a word of the program" in plain


@pytest.mark.parametrize("cause", ["code-differs", "unknown"])
def test_a_failure_that_the_verdict_says_is_not_said_twice(cause):
    """Also of a check of the user's own, whose id is no cause."""
    out = io.StringIO()
    view = LiveView(stream=out)
    said = "h2: train.py is another one"
    own = "code-differs" if cause == "code-differs" else "own-check"
    for name, message in ((own, said), (own, said), ("port-blocked", "h3 is blocked")):
        view.event(fact({"event": "finding", "id": name, "status": "fail", "message": message}))
    view.closing(result_record({"exit": 4, "directory": "r", "verdict": {"cause": cause, "message": said}}))
    lines = out.getvalue().splitlines()
    assert [line for line in lines if said in line] == [f"VERDICT   {said}"]
    assert "FAIL: h3 is blocked" in lines


def test_a_clock_that_is_set_back_does_not_stop_the_view():
    out = io.StringIO()
    view = LiveView(stream=out)
    view.tick(10_000.0)
    view.output("h1", 0, b"x\n", 10_000.0)
    view.tick(101.0)
    assert out.getvalue() == "[h1 0] x\n"


def test_what_comes_during_a_question_is_bounded():
    out = io.StringIO()
    view = LiveView(fold=False, stream=out)
    view.pause()
    for second in range(10):
        view.output("h1", 0, b"%d\n" % second * 900, float(second))
        view.tick(float(second))
    assert (out.getvalue(), len(view.held_lines)) == ("", 1000)
    view.resume()
    assert out.getvalue().endswith("[h1 0] 9\n")


def test_json_leaves_standard_output_alone(capsys):
    view = OutputView()
    view.opening(RunOpened())
    view.event(fact({"event": "note", "message": "no"}))
    view.status(STATUS, 0.0)
    view.output("h1", 0, b"hello\nunfinished", 1.0)
    view.tick(10.0)
    view.closing(result_record({"exit": 1, "verdict": {"cause": "c", "message": "no"}}))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[h1 0] hello\n[h1 0] unfinished\n")


def test_an_end_with_less_time_is_said_by_the_note_alone():
    """Slurm leaves less than --stop-grace: known a moment after the end has begun."""
    out = io.StringIO()
    view = LiveView(stream=out)
    end = {"event": "ending", "attempt": 0, "reason": "sigterm", "ranks": 2}
    view.event(fact({**end, "grace": 30.0}))
    view.event(fact({"event": "note", "message": "ranks have 4 s (Slurm's KillWait), not the 30 s of --stop-grace"}))
    view.event(fact({**end, "grace": 4.0}))
    view.event(fact({**end, "grace": 0.0}))
    view.event(fact({**end, "attempt": 1, "grace": 30.0}))
    view.closing(result_record({"exit": 143}))
    said = [line for line in out.getvalue().splitlines() if "ending" in line or "note" in line]
    first = "SIGTERM or `allranks stop`: ending 2 ranks, with 30 s to save"
    note = "note: ranks have 4 s (Slurm's KillWait), not the 30 s of --stop-grace"
    assert said == [first, note, "SIGTERM or `allranks stop`: ending 2 ranks at once", first]
