"""A pattern of the user's in a process of its own: what it finds, and that nothing ever waits for a slow one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count

import pytest
from tests.descriptors import many_open

from allranks.gang.matching import Match, Matching

pytestmark = pytest.mark.processes
BOUND = 60.0


def drive(
    pattern: str, work: Callable[[Matching], None], until: Callable[[list[Match], list[str]], bool]
) -> tuple[list[Match], list[str], int]:
    """Feeds a pattern in a loop until a condition holds: what was seen, why it is off, turns of the loop."""
    seen: list[Match] = []
    off: list[str] = []

    async def main() -> int:
        matching = Matching("--step-pattern", pattern, seen.append, off.append)
        work(matching)
        ends = time.monotonic() + BOUND
        for turns in count():  # noqa: B007
            if until(seen, off):
                break
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        if off:
            work(matching)  # what is off takes nothing more
        matching.close()
        return turns

    return seen, off, asyncio.run(main())


def test_steps_come_from_lines_cut_anywhere() -> None:
    def work(matching: Matching) -> None:
        for part in (b"step 7/9 loss\rst", b"ep 8/9 loss\nstep ", b"9"):
            matching.feed(3, part, 0.5, 1.0)
        matching.feed(0, b"nothing\nstep x\n", 1.5, 2.0)

    seen, off, _ = drive(r"step (\d+)", work, lambda seen, _: len(seen) == 4)
    assert off == []
    assert seen[:2] == [Match(3, 0.5, 1.0, 1, 7), Match(3, 0.5, 1.0, 1, 8)]
    assert seen[2:] == [Match(3, 0.5, 1.0, 0, None), Match(0, 1.5, 2.0, 0, None)]


@pytest.mark.parametrize(
    ("pattern", "line"), [(r"(a|aa)+$", b"a" * 60 + b"b"), (r"(x+x+)+y", b"x" * 60), (r"(.*,){12}P", b"1," * 40)]
)
def test_a_pattern_without_an_end_is_off_and_the_loop_goes_on(pattern: str, line: bytes) -> None:
    _, off, turns = drive(pattern, lambda m: m.feed(1, b"one\n" + line + b"\n", 0.5, 1.0), lambda _, off: bool(off))
    assert off == [f"--step-pattern {pattern!r} is off: it took more than 0.5 s of processor time on one line"]
    assert turns > 10


def test_a_number_of_5000_digits_is_no_step() -> None:
    line = b"step " + b"9" * 5000 + b"\n"
    seen, off, _ = drive(r"step (\d+)", lambda m: m.feed(0, line, 0.5, 1.0), lambda seen, _: bool(seen))
    assert (seen, off) == ([Match(0, 0.5, 1.0, 1, None)], [])


def test_more_than_a_matcher_takes_is_not_kept() -> None:
    """A rank that prints faster than a pattern is matched must not fill the controller's memory."""

    def work(matching: Matching) -> None:
        for _ in range(200):
            matching.feed(0, b"step 1\n" * 20_000, 0.5, 1.0)
        assert len(matching.unsent) < 16 << 20
        matching.drain()

    seen, off, _ = drive(r"step (\d+)", work, lambda seen, _: bool(seen))
    assert off == [] and seen[0].number == 1


def test_what_was_fed_is_found_by_the_end_of_an_attempt() -> None:
    def work(matching: Matching) -> None:
        for number in range(300):
            matching.feed(0, b"step %d\n" % number, 0.5, float(number))
        matching.drain()

    seen, _, turns = drive(r"step (\d+)", work, lambda seen, _: True)
    assert (seen[-1].number, len(seen), turns) == (299, 300, 0)


def test_the_answers_are_awaited_by_a_controller_of_many_nodes() -> None:
    """From 400 nodes on the end of an attempt was "filedescriptor out of range in select()", an internal error."""

    def work(matching: Matching) -> None:
        matching.feed(0, b"step 7\n", 0.5, 1.0)
        matching.drain()

    with many_open():
        seen, off, turns = drive(r"step (\d+)", work, lambda seen, _: True)
    assert ([match.number for match in seen], off, turns) == ([7], [], 0)
