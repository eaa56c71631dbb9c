"""Strings on which a backtracking matcher is slow, made of a pattern's own parts.

What makes a matcher slow is repetition: a repeated part, a beginning that occurs again and again, or a near-miss of
the whole. So the units are atoms, samples of parts, beginnings up to each repetition, and pairs of atoms; a string
is a beginning, a unit many times, and an end that does not fit.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    from re import _constants as c  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as c
    import sre_parse as parser

SAMPLES = 6  # of one part
ENDS = ("", "\x01", "z")
CATEGORIES = {
    c.CATEGORY_DIGIT: "10", c.CATEGORY_NOT_DIGIT: "x ", c.CATEGORY_SPACE: " \t", c.CATEGORY_NOT_SPACE: "x-",
    c.CATEGORY_WORD: "x1", c.CATEGORY_NOT_WORD: " -",
}  # fmt: skip
REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, getattr(c, "POSSESSIVE_REPEAT", c.MAX_REPEAT))
Parsed = Sequence[tuple[Any, Any]]


class Kind(NamedTuple):
    """Strings of any length: `before`, `unit` again and again, `end`."""

    before: str
    unit: str
    end: str


def kinds_of(pattern: str, flags: int) -> list[Kind]:
    """The likeliest first."""
    tree = list(parser.parse(pattern, flags))
    starts = list(_starts(tree, [""]))
    atoms = list(dict.fromkeys(_atoms(tree)))[:24]
    found: dict[tuple[str, str], None] = {}
    for before, body in starts:
        found |= dict.fromkeys(((before, body), ("", before + body), ("", before)))
    for whole in _samples(tree):
        found |= dict.fromkeys(("", unit) for unit in (whole, whole[:-1], whole[1:], whole + " ", whole[:-1] + " "))
    found |= dict.fromkeys(("", atom) for atom in atoms)
    for before in dict.fromkeys(before for before, _ in starts[:8]):
        found |= dict.fromkeys((before, atom) for atom in atoms[:8])
    found |= dict.fromkeys(("", one + other) for one, other in itertools.islice(itertools.permutations(atoms, 2), 200))
    return [Kind(before, unit, ENDS[number % len(ENDS)]) for number, (before, unit) in enumerate(found) if unit]


def attack(before: str, unit: str, end: str, length: int) -> str:
    """A string of about that length."""
    return before + unit * max(1, (length - len(before) - len(end)) // len(unit)) + end


def _samples(tree: Parsed) -> list[str]:
    """Samples of parts in a row: each part's samples occur, not all their combinations."""
    given = [samples for samples in (_sample(op, value) for op, value in tree) if samples]
    most = max((len(samples) for samples in given), default=1)
    return list(dict.fromkeys("".join(part[n % len(part)] for part in given) for n in range(most)))[:SAMPLES] or [""]


def _sample(op: Any, value: Any) -> list[str]:
    """A few strings that a part matches."""
    if op is c.LITERAL:
        return [chr(value)]
    if op is c.NOT_LITERAL:
        return ["x" if value != ord("x") else "y", " " if value != 32 else "-"]
    if op is c.ANY:
        return ["x", " "]
    if op is c.IN:
        return _of_set(value)
    if op is c.BRANCH:
        return list(dict.fromkeys(s for branch in value[1] for s in _samples(list(branch))[:2]))[: 4 * SAMPLES]
    if op is c.SUBPATTERN:
        return _samples(list(value[3]))
    if op in REPEATS:
        least, most, body = value
        bodies = _samples(list(body))
        counts = dict.fromkeys((max(1, least), least, min(int(most), least + 3)))
        return list(dict.fromkeys(body * count for count in counts for body in bodies))[:SAMPLES]
    if op is getattr(c, "ATOMIC_GROUP", None):
        return _samples(list(value))
    return [""]  # a position, a look ahead or behind, a group again


def _of_set(items: Parsed) -> list[str]:
    if items and items[0][0] is c.NEGATE:
        excluded = set("".join(_of_set(items[1:])))
        inside = [k for k in "x1 -:/\"'\t=a]" if k not in excluded and not _in_set(k, items[1:])]
        return inside[:4] or ["\u00e9"]
    found = []
    for op, value in items:
        if op is c.LITERAL:
            found.append(chr(value))
        elif op is c.RANGE:
            found += [chr(value[0]), chr(value[1])]
        elif op is c.CATEGORY:
            found += list(CATEGORIES.get(value, "x"))
    return list(dict.fromkeys(found))[:8]


def _in_set(character: str, items: Parsed) -> bool:
    return any(
        (op is c.RANGE and value[0] <= ord(character) <= value[1]) or (op is c.LITERAL and value == ord(character))
        for op, value in items
    )


def _bodies(op: Any, value: Any) -> list[Parsed]:
    """What lies inside of a part."""
    if op in REPEATS:
        return [list(value[2])]
    if op is c.SUBPATTERN:
        return [list(value[3])]
    if op is c.BRANCH:
        return [list(branch) for branch in value[1]]
    return [list(value[1])] if op in (c.ASSERT, c.ASSERT_NOT) else []


def _starts(tree: Parsed, befores: list[str]) -> Iterator[tuple[str, str]]:
    """(what stands before, a body) of every repetition."""
    for op, value in tree:
        if op in REPEATS and value[1] > 1:
            yield from ((before, body) for before in befores[:3] for body in _samples(list(value[2])))
        for body in _bodies(op, value):
            yield from _starts(body, befores)
        befores = [b + s for b in befores[:3] for s in (_sample(op, value) or [""])[:3]][:4]


def _atoms(tree: Parsed) -> Iterator[str]:
    """Single characters of sets, runs of literals, samples of bodies."""
    run = ""
    for op, value in tree:
        if op is c.LITERAL:
            run += chr(value)
            continue
        if run:
            yield run
            run = ""
        bodies = _bodies(op, value)
        for body in bodies:
            yield from _atoms(body)
        if not bodies:
            yield from (s for s in _sample(op, value) if s)
    if run:
        yield run
