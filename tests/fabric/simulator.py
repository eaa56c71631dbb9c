"""A cluster that isn't there: measurements of pairs with the noise of a shared two-core machine, and one fault.

Freezes the thresholds of fabric.analysis. Noise: per sample lognormal jitter of 15-25 % on bandwidth and 30 % on
round trips; per round 10 % common to all its pairs (the machine is busier at times); per node 7 % and per pair 5 %
that stay; 2 % of samples twice as slow, 0.5 % twice as fast, 0.2 % that time out for no reason.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from allranks.fabric.analysis.judgement import NO_FLOORS, Judgement, judge, retest
from allranks.fabric.analysis.norms import Floors
from allranks.fabric.analysis.schedule import Pair, packed, rounds
from allranks.fabric.metric_rows import Measurement, Way
from allranks.findings import Finding

MBIT = 1e6 / 8
KINDS = ("delay", "limit", "loss")
SHARES = {"third": 1 / 3, "crawl": 1 / 50}  # of the cluster's usual bandwidth


@dataclass(frozen=True)
class Fault:
    """`what` is "", "delay" (50 ms), "limit" (50 Mbit/s), one of `SHARES`, "loss" (5 %) or "dead"; on all pairs of
    `nodes[0]`, or on the pair `nodes`. `sending_only` spoils one direction (from `nodes[0]`)."""

    what: str = ""
    nodes: tuple[str, ...] = ()
    sending_only: bool = False

    def hits(self, a: str, b: str) -> bool:
        if not self.what:
            return False
        return set(self.nodes) <= {a, b} if self.nodes else True


@dataclass
class Cluster:
    """Nodes whose links can be measured. All chance comes from `seed`."""

    seed: int
    nodes: Sequence[str] = tuple(f"h{i}" for i in range(1, 9))
    faults: Sequence[Fault] = ()
    chance: random.Random = field(init=False)
    stays: dict[object, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.base = self.chance.uniform(1000, 10000) * MBIT
        self.trip = self.chance.uniform(60e-6, 400e-6)
        self.jitter = self.chance.uniform(0.15, 0.25)

    def lognormal(self, sigma: float) -> float:
        return math.exp(self.chance.gauss(0, sigma))

    def steady(self, key: object, sigma: float) -> float:
        if key not in self.stays:
            self.stays[key] = self.lognormal(sigma)
        return self.stays[key]

    def outlier(self) -> float:
        drawn = self.chance.random()
        return 0.5 if drawn < 0.02 else 2.0 if drawn < 0.025 else 1.0

    def way(self, a: str, b: str, busy: float) -> Way:
        links = self.steady(a, 0.07) * self.steady(b, 0.07) * self.steady(tuple(sorted((a, b))), 0.05)
        rate = self.base * links * busy * self.lognormal(self.jitter) * self.outlier()
        trip = self.trip / busy * self.lognormal(0.3) / self.outlier()
        tail = trip * math.exp(self.chance.gauss(1.5, 0.7))
        for fault in self.faults:
            if not fault.hits(a, b) or (fault.sending_only and fault.nodes[0] != a):
                continue
            if fault.what == "delay":
                trip, tail = trip + 0.05, tail + 0.05 * self.lognormal(0.1)
                rate = min(rate, 4e6 / trip * self.lognormal(0.2))
            elif fault.what == "limit":
                rate = min(rate, 50 * MBIT * self.lognormal(0.05))
                tail *= self.lognormal(0.3)
            elif fault.what in SHARES:
                rate = min(rate, self.base * SHARES[fault.what] * self.lognormal(0.05))
            elif fault.what == "loss":
                rate = rate / 5 * self.lognormal(0.3)
                tail = max(tail, 0.2 * self.lognormal(0.1)) if self.chance.random() < 0.9 else tail
        return Way(rate, trip, tail)

    def measure(self, schedule: Iterable[Sequence[Pair]], start: int = 0) -> list[Measurement]:
        found = []
        for number, pairs in enumerate(schedule, start):
            busy = self.lognormal(0.10)
            found += [self.one(a, b, number, busy) for a, b in pairs]
        return found

    def one(self, a: str, b: str, number: int, busy: float) -> Measurement:
        dead = any(fault.what == "dead" and fault.hits(a, b) for fault in self.faults)
        if dead or self.chance.random() < 0.002:
            return Measurement(a, b, number, dead="timed out after 10 s")
        return Measurement(a, b, number, self.way(a, b, busy), self.way(b, a, busy))

    def judged(self, floors: Floors = NO_FLOORS) -> Judgement:
        """The whole test: a pass, the re-test, the judgement."""
        schedule = rounds(self.nodes)
        first = self.measure(schedule)
        again = self.measure(packed(retest(first, floors)), len(schedule))
        return judge(first, again, floors)


def fault_of(seed: int, nodes: Sequence[str]) -> Fault:
    """One slow node, one slow link or one dead link, by the seed."""
    chance = random.Random(f"fault {seed}")
    pair = tuple(chance.sample(list(nodes), 2))
    what = chance.choice(KINDS)
    kind = seed % 3
    if kind == 0:
        return Fault(what, pair[:1], sending_only=what == "limit" and chance.random() < 0.5)
    if kind == 1:
        return Fault(what, pair, sending_only=what == "limit" and chance.random() < 0.5)
    return Fault("dead", pair)


def answer(findings: Sequence[Finding]) -> set[tuple[str, ...]]:
    """(id, node) or (id, node, node) of each finding."""
    found = set()
    for item in findings:
        where = item.where
        ends = sorted(name for name in (where.node, where.peer) if name)
        found.add((item.id, *ends) if item.status == "fail" else ("unconfirmed", *ends))
    return found


def expected(fault: Fault) -> set[tuple[str, ...]]:
    """What should be answered to one fault."""
    if not fault.what:
        return set()
    what = "dead" if fault.what == "dead" else "slow"
    return {(f"{'node' if len(fault.nodes) == 1 else 'link'}-{what}", *sorted(fault.nodes))}


def accuracy(seeds: Iterable[int], nodes: int = 8, clean: bool = False) -> tuple[int, int, list[str]]:
    """(right, false alarms, what went wrong) over the seeds: a false alarm names what is not at fault."""
    right, alarms, wrong = 0, 0, []
    for seed in seeds:
        names = [f"h{i}" for i in range(1, nodes + 1)]
        fault = Fault() if clean else fault_of(seed, names)
        found = answer(Cluster(seed, names, [fault]).judged().findings)
        should = expected(fault)
        right += found == should
        alarms += bool(found - should)
        if found != should:
            wrong.append(f"seed {seed}: {fault}: expected {should}, found {found}")
    return right, alarms, wrong
