"""Folding keeps every rank's lines in order, whatever is said by whom; nothing said can steer the terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.report.fold import CUT, FRAMES, HARMLESS, MOST, MOST_BYTES, PROGRESS_EVERY, STEADY, WINDOW, Folder, clean

TRACEBACK = b"""Traceback (most recent call last):
  File "a.py", line 1, in f
    return self._call_impl(*args, **kwargs)
           ^^^^^^^
  File "b.py", line 2, in g
    return self._call_impl(*args, **kwargs)
           ^^^^^^^

ValueError: x
"""
SHOWN = re.compile(r"\[(\S+) (\d+)(?: \+(\d+) ranks?)?\] ?(.*)")


@pytest.mark.parametrize(("ranks", "label"), [(1, "[h1 0]"), (4, "[4 ranks]")])
def test_the_same_traceback_of_all_ranks_is_shown_once_and_in_order(ranks, label):
    folder = Folder()
    folder.ranks = ranks
    for rank in range(ranks):
        folder.feed("h1", rank, TRACEBACK, 0.1 * rank)
    assert [line.removeprefix(label)[1:] for line in folder.rest(0.3)] == TRACEBACK.decode().splitlines()


def test_frames_of_c_plus_plus_are_one_line():
    """torch 2.11's watchdog, of each rank: 30 lines of addresses."""
    folder = Folder(shorten=True)
    lines = [b"[rank2]: Exception raised from checkTimeout at /pytorch/x.cpp:692 (most recent call first):"]
    lines += [b"[rank2]: frame #%d: c10d::f() + 0x9d (0x7f in /lib/libc10.so)" % number for number in range(12)]
    folder.feed("h1", 2, b"\n".join([*lines, b"[rank2]: after", b""]), 0.0)
    shown = folder.lines(WINDOW)
    assert len(shown) == 3 and shown[1:] == [f"[h1 2] {FRAMES}", "[h1 2] [rank2]: after"]


def test_a_harmless_warning_of_torch_is_one_line_for_all():
    """It comes with each connection of each rank, in healthy runs, and some connect later than others."""
    folder = Folder(shorten=True)
    shown = []
    for rank in range(3):
        for place in (207, 752):
            text = f"[W1128 07:04:32.08 socket.cpp:{place}] [c10d] The hostname of the client socket cannot be "
            folder.feed("h1", rank, f"{text}retrieved. err=-3\nstep {place}\n".encode(), rank * 30.0)
        shown += folder.lines(rank * 30.0 + WINDOW)
    assert [line for line in shown if "hostname" in line] == [f"[h1 0] {HARMLESS}"]
    assert len(shown) == 7


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 3)), max_size=60))
def test_order_and_number_survive_folding(said):
    folder, shown, now = Folder(), [], 0.0
    for rank, text, pause in said:
        now += pause * WINDOW / 3
        folder.feed("h1", rank, text.encode() + b"\n", now)
        shown += folder.lines(now)
    shown += folder.rest(now)
    parts = [SHOWN.fullmatch(line) for line in shown]
    assert sum(1 + int(p[3] or 0) for p in parts) == len(said)
    for rank in range(4):
        texts = iter(p[4] for p in parts)
        assert all(text in texts for r, text, _ in said if r == rank)  # a subsequence, in order


def test_a_progress_bar_is_shown_now_and_then_and_at_its_end():
    folder = Folder(fold=False)
    shown = []
    for second in range(25):
        folder.feed("h1", 0, b"\r%d%%" % second, float(second))
        shown += folder.lines(float(second))
    assert shown == ["[h1 0] 10%", "[h1 0] 20%"]
    folder.feed("h1", 0, b"\r99%", 40.0)
    folder.feed("h1", 0, b"\n", 40.0)
    assert folder.lines(40.0) == ["[h1 0] 99%"]
    assert folder.lines(100 * PROGRESS_EVERY) == []


def test_a_long_progress_bar_keeps_its_last_state():
    folder = Folder(fold=False)
    for index in range(2 * CUT // 10):
        folder.feed("h1", 0, b"\rstate %06d" % index, 0.0)
    folder.feed("h1", 0, b"\n", 0.0)
    assert folder.lines(0.0) == [f"[h1 0] state {2 * CUT // 10 - 1:06d}"]


def test_a_bar_that_is_cut_between_its_bytes():
    folder = Folder(fold=False)
    for piece in (b"a\rb", b"c\n", b"x\r", b"\n"):
        folder.feed("h1", 0, piece, 0.0)
    assert folder.lines(0.0) == ["[h1 0] bc", "[h1 0] x"]


def test_what_waits_is_bounded_in_bytes_too():
    folder = Folder()
    for index in range(1000):
        folder.feed("h1", index, b"%d" % index + b"x" * CUT + b"\n", 0.0)
    assert sum(len(said.text) for said in folder.queue) <= MOST_BYTES + CUT
    assert "lines not shown here" in folder.rest(0.0)[-1]


def test_of_a_flood_a_steady_number_of_lines_is_displayed_after_the_first():
    folder = Folder(fold=False)
    shown = 0
    for fifth in range(51):
        folder.feed("h1", 0, b"x\n" * 10_000, fifth / 5)
        shown += sum(line.startswith("[") for line in folder.lines(fifth / 5))
    assert MOST + 9 * STEADY <= shown <= MOST + 10 * STEADY
    assert folder.rest(60.0) == []


def test_what_comes_in_pieces_is_displayed_as_far_as_a_person_may_read():
    """A program that prints 500 lines a second has all of them displayed."""
    folder = Folder(fold=False)
    shown = 0
    for tenth in range(100):
        folder.feed("h1", 0, b"x\n" * 50, tenth / 10)
        shown += len(folder.lines(tenth / 10))
    assert shown == 5000


@given(st.text(alphabet="\x1b\x9b[]0;mJ\x07\\\rab\u202e"), st.booleans())
def test_only_whole_colours_are_left_of_escapes(text, colour):
    left = re.sub(r"\x1b\[[0-9;]*m", "", clean(text, colour)) if colour else clean(text, colour)
    assert not [c for c in left if (c < " " and c != "\t") or "\x7f" <= c <= "\x9f"]


def test_a_colour_ends_with_its_line():
    assert clean("\x1b[31mred", colour=True) == "\x1b[31mred\x1b[0m"
    assert clean("plain", colour=True) == "plain"
