"""What a collective test writes and its readers decode: the rows of a rank's metrics file (pure, Python 3.8).

One row a line, of a `kind`. Times are seconds, sizes bytes, rates bytes a second. A reader of Python 3.8 makes
records by the annotations, so those stand in `typing`'s names.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Union

from allranks.findings import Finding
from allranks.protocol.codec import SCHEMA


@dataclass(frozen=True)
class WrongElement:
    """The first wrong element of a test on a rank; `source` is the rank whose data is wrong, where that shows."""

    rank: int
    round: int
    kind: str
    index: int
    expected: str
    found: str
    source: Optional[int] = None
    note: str = ""


@dataclass(frozen=True)
class RankError:
    """What a rank's backend raised."""

    rank: int
    reason: str
    kind: str = "error"


Failure = Union[WrongElement, RankError]


@dataclass(frozen=True)
class LateRank:
    """The rank that came to a test's first collective long after the others: seconds after the median rank."""

    rank: int
    seconds: float


@dataclass(frozen=True)
class SuitePlace:
    """Where a rank is: number of the test, round, a counter of life signs."""

    test: int
    turn: int
    beat: int
    error: str = ""


@dataclass(frozen=True)
class SuiteHang:
    """A test that did not end: ranks that had arrived, had not, gave no life sign; stacks with the innermost last."""

    test: str
    text: str
    arrived: Tuple[int, ...]
    missing: Tuple[int, ...]
    silent: Tuple[int, ...]
    stacks: Dict[int, Tuple[str, ...]]


@dataclass(frozen=True)
class CollectiveRow:
    """A test of the suite `sync`, or the process group. `status`: pass, fail, skip or hang."""

    test: str
    status: str
    detail: str = ""
    seconds: float = 0.0
    reason: str = ""
    failures: Tuple[Failure, ...] = ()
    late: Optional[LateRank] = None
    hang: Optional[SuiteHang] = None
    ranks: int = 0
    kind: str = "collective"
    schema: int = SCHEMA

    @property
    def broken(self) -> bool:
        """Tell whether the process group cannot be trusted afterwards: only wrong data leave it as it was."""
        return self.status in ("fail", "hang") and not any(isinstance(item, WrongElement) for item in self.failures)


@dataclass(frozen=True)
class BandwidthRow:
    """A size of the suite `bandwidth`: median and quartiles of the slowest rank's times, rates at the median."""

    collective: str
    size: int
    ranks: int
    median: float
    q1: float
    q3: float
    algbw: float
    busbw: float
    rounds: int
    kind: str = "bandwidth"
    schema: int = SCHEMA


@dataclass(frozen=True)
class Way:
    """One direction of a link; None where it was not measured.

    `bandwidth`: of a large payload that way. `latency`: the median round trip of many small messages that the sending
    side starts. `tail`: their 99th percentile (200 of them or more make it steady); a lost packet shows there first,
    as Linux repeats it after 200 ms (TCP_RTO_MIN).
    """

    bandwidth: Optional[float] = None
    latency: Optional[float] = None
    tail: Optional[float] = None


Cell = Tuple[str, str]  # two nodes, in the order of their names: what is judged


@dataclass(frozen=True)
class Measurement:
    """A pair of nodes measured once: `there` is from `a` to `b`, `back` from `b` to `a`.

    `dead` is empty, or the reason why nothing could be measured (`timed out after 10 s`, `connection refused`).
    `round` counts from 0; re-tests go on counting.
    """

    a: str
    b: str
    round: int = 0
    there: Way = Way()
    back: Way = Way()
    dead: str = ""

    def cell(self) -> Cell:
        """Give the pair in its own order, whoever was named first."""
        return min(self.a, self.b), max(self.a, self.b)

    def way(self, start: str) -> Way:
        """Give the direction that starts at this node."""
        if start == self.a:
            return self.there
        return self.back


@dataclass(frozen=True)
class LinkRow(Measurement):
    """A measurement of the suite `pairs`; `again` where it is a re-test."""

    again: bool = False
    kind: str = "link"
    schema: int = SCHEMA


@dataclass(frozen=True)
class SuiteEndRow:
    """What a suite came to. `statement`: what was tested and what was not; `findings`: of the suite `pairs`."""

    suite: str
    ok: bool
    exit: int
    statement: Tuple[str, ...] = ()
    findings: Tuple[Finding, ...] = ()
    kind: str = "end"
    schema: int = SCHEMA


Row = Union[CollectiveRow, BandwidthRow, LinkRow, SuiteEndRow]
