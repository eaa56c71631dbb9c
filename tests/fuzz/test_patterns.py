"""No line makes a pattern of the package slow: matching takes time in proportion to the line.

Each pattern is tried on strings made of its own parts (`attacks`). Time is processor time of this thread. A string that
takes long is tried again, as a busy machine makes single ones slow; a pattern without an end is interrupted.
"""

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import pytest
from tests.campaign import Campaign
from tests.fuzz.attacks import ENDS, Kind, attack, kinds_of
from tests.fuzz.collect import ANCHORED, Used, collect

from allranks.diagnose.logs.lines import read_line
from allranks.diagnose.signatures import row_of
from allranks.report.fold import clean
from allranks.report.redact import Redactor

pytestmark = pytest.mark.fuzz
SHORT, LINE, LONG = 256, 4 << 10, 64 << 10  # characters; LONG: of the lines that redaction and --step-pattern look at
EACH = 5e-6  # seconds a character
WHOLE = 60e-6  # seconds a character for all patterns that look at one line together
QUICK = 0.2e-6  # seconds a character
GROWTH = 2.5  # times what proportion would be
ENDLESS = 1.0  # seconds, when a match is interrupted
UNITS = 24  # of each pattern in `make test`
TRIES = 5


class Endless(Exception):
    """A match was interrupted."""


_matching = False


def _interrupt(_number: int, _frame: object) -> None:
    if _matching:
        raise Endless


@pytest.fixture(autouse=True)
def _clock() -> Iterator[None]:
    """The kernel's clock of processor time interrupts matches: CPython looks for signals while it matches."""
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    yield
    signal.signal(signal.SIGVTALRM, before)


collected = cache(collect)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call; ENDLESS where it was interrupted."""
    global _matching
    start = time.thread_time()
    try:
        _matching = True
        signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS)
        call()
        _matching = False
    except Endless:
        return ENDLESS
    finally:
        _matching = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.thread_time() - start


def least(call: Callable[[], object], enough: float) -> float:
    """Of a few tries the quickest, or the first that is quick enough."""
    best = ENDLESS
    for _ in range(TRIES):
        best = min(best, seconds(call))
        if best <= enough or best >= ENDLESS:
            break
    return best


def use(used: Used) -> Callable[[str], object]:
    """What the package does with a pattern; all matches of a text where that is not known."""
    pattern = used.compiled()
    if used.methods and used.methods <= ANCHORED:
        run = pattern.match if used.methods == {"match"} else pattern.fullmatch
    elif used.methods and used.methods <= ANCHORED | {"search"}:
        run = pattern.search
    else:
        run = lambda text: [None for _ in pattern.finditer(text)]  # noqa: E731
    if used.is_bytes:
        return lambda text: run(text.encode("latin-1", "replace"))
    return run


class Measured(NamedTuple):
    """How long a line of LINE characters took; what is wrong with that."""

    seconds: float
    wrong: str = ""


def measure(run: Callable[[str], object], kind: Kind, each: float = EACH) -> Measured:
    """A use of one kind of string, of two lengths."""
    took = 0.0
    for length, limit in ((SHORT, 20 * each * SHORT), (LINE, each * LINE)):
        text = attack(*kind, length)
        took = least(partial(run, text), limit)
        if took > limit:
            return Measured(took, _said(took, text, kind))
    return Measured(took)


def measure_growth(run: Callable[[str], object], kind: Kind) -> str:
    """What is wrong with a string as long as the code lets through, against an eighth of it."""
    part, long = attack(*kind, LONG // 8), attack(*kind, LONG)
    share = max(seconds(partial(run, part)) for _ in range(3))
    limit = max(8 * GROWTH * share, EACH * LONG / 10)
    took = least(partial(run, long), limit)
    return f"{_said(took, long, kind)}, {share * 1e3:.1f} ms for an eighth" if took > limit else ""


def _said(took: float, text: str, kind: Kind) -> str:
    return f"{took * 1e3:.0f} ms for {len(text)} characters {text[:60]!r} with {kind.unit[:60]!r} again and again"


def test_every_pattern_is_known_before_it_runs() -> None:
    """A pattern that is put together from data is pumped by no test: BUILT in `collect` says which do that and why."""
    patterns, built = collected()
    assert built == []
    assert len(patterns) > 500


def test_no_bound_of_a_pattern_has_become_a_tuple() -> None:
    """`{1,9}` in an f-string is a tuple: the pattern finds `(1, 9)`, and nothing else."""
    assert [used.where for used in collected()[0] if re.search(r"(?<!\\)\(\d+, \d+\)", used.pattern)] == []


PARTS = 12


@pytest.mark.parametrize("part", range(PARTS))
def test_matching_takes_time_in_proportion_to_the_line(part: int) -> None:
    found = []
    for used in collected()[0][part::PARTS]:
        wrong = _wrong(used)
        found += [f"{used.where}: {used.pattern[:200]!r}: {wrong}"] if wrong else []
    assert found == []


def _wrong(used: Used) -> str:
    run, kinds = use(used), kinds_of(used.pattern, used.flags)
    rest = kinds[UNITS // 2 :]
    chosen = kinds[: UNITS // 2] + random.Random(repr(used.pattern)).sample(rest, k=min(UNITS // 2, len(rest)))
    slowest = (0.0, chosen[0])
    for kind in chosen:
        measured = measure(run, kind)
        if measured.wrong:
            return measured.wrong
        slowest = max(slowest, (measured.seconds, kind))
    return measure_growth(run, slowest[1]) if slowest[0] > QUICK * LINE else ""


def test_any_mixture_of_its_parts(campaign: Campaign) -> None:
    patterns, _ = collected()
    for chance in campaign.cases(200):
        used = chance.choice(patterns)
        kinds = kinds_of(used.pattern, used.flags)
        unit = "".join(chance.choice(kinds).unit for _ in range(chance.randint(1, 4)))
        kind = Kind(chance.choice(kinds).before, unit, chance.choice(ENDS))
        wrong = measure(use(used), kind).wrong or (measure_growth(use(used), kind) if chance.random() < 0.1 else "")
        assert wrong == "", (used.where, used.pattern)


def _diagnosed(text: str) -> None:
    for line in read_line(text):
        row_of(line.text)


USERS = {
    "redaction": lambda text: Redactor().text(text, "log"),
    "log diagnosis": _diagnosed,
    "display": lambda text: clean(text, colour=True),
}


@pytest.mark.parametrize("name", USERS)
def test_a_line_goes_through_all_that_looks_at_it(name: str, campaign: Campaign) -> None:
    """The patterns of one reader together, on strings of any of them."""
    patterns, _ = collected()
    for chance in campaign.cases(60):
        used = chance.choice(patterns)
        kind = chance.choice(kinds_of(used.pattern, used.flags))
        assert measure(USERS[name], kind, WHOLE).wrong == "", used.pattern
