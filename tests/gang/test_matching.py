"""Patterns of the user: what they find, and that nothing waits for a slow one."""

import time

import pytest

from allranks.errors import UsageError
from allranks.gang import matching
from allranks.gang.matching import SECONDS, Match, Matching, require_patterns
from allranks.settings import RunSpec


def matching_of(pattern: str) -> tuple[Matching, list[str]]:
    off: list[str] = []
    return Matching("--step-pattern", pattern, off.append), off


def test_steps_come_from_lines_cut_anywhere() -> None:
    looks, off = matching_of(r"step (\d+)")
    found = [looks.feed(3, part) for part in (b"step 7/9 loss\rst", b"ep 8/9 loss\nstep ", b"9")]
    assert found == [Match(1, 7), Match(1, 8), Match(0, None)]
    assert looks.feed(0, b"nothing\nstep x\n") == Match(0, None), "each rank has its own lines"
    assert off == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [(r"(a|aa)+$", b"a" * 60 + b"b"), (r"(x|xx)+[yz]|step (\d+)", b"x" * 60)],
)
def test_a_pattern_without_an_end_is_off(pattern: str, line: bytes) -> None:
    looks, off = matching_of(pattern)
    began = time.thread_time()
    assert looks.feed(1, b"one\n" + line + b"\n") is None
    assert time.thread_time() - began < 10 * SECONDS
    assert off == [f"--step-pattern {pattern!r} is off: it took more than 0.5 s of processor time on one line"]
    assert looks.feed(1, line + b"\n") is None
    assert len(off) == 1


def test_a_number_of_5000_digits_is_no_step() -> None:
    looks, _ = matching_of(r"step (\d+)")
    assert looks.feed(0, b"step " + b"9" * 5000 + b"\n") == Match(1, None)


def test_a_rank_that_prints_faster_than_it_is_looked_at_takes_a_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line by itself is quick enough; all of them together would keep beats and other ranks waiting."""
    monkeypatch.setattr(matching, "SECONDS", 0.1)
    monkeypatch.setattr(matching, "SHARE", 0.0)
    looks, off = matching_of(r"(.*,)(.*,)[QZ]")
    piece = b"1," * 128 + b"\n"
    found = [looks.feed(0, piece) for _ in range(200)]
    looked_at = found.index(None)
    assert looked_at and set(found[looked_at:]) == {None}
    monkeypatch.setattr(matching, "SHARE", 1e6)
    assert looks.feed(0, b"\n") == Match(0, None), "what was not looked at is forgotten"
    assert off == []


def test_a_pattern_without_the_package_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"--hang-pattern needs the package regex.*\nhint: pip install regex"):
        require_patterns(RunSpec.of(hang_pattern="x"))
    require_patterns(RunSpec())
