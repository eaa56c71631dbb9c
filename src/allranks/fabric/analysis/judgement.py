"""From measurements to findings: which node or link is slow or dead (pure).

Two steps, so that one noisy sample is not an alarm: `retest` lists the pairs to measure again, suspects with suspects
and against nodes that passed; `judge` blames only what the re-test confirms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

from allranks.findings import Finding

from ..metric_rows import Cell, Measurement
from .blame import ALL_LINKS, NODE_SHARE, Culprit, explain, nodes_of
from .norms import BANDWIDTH, FEW_NODES, CellState, Floors, Metric, Norms, Symptom, norms, states, symptoms
from .schedule import Pair
from .wording import SentenceFacts, finding, passed_again, unconfirmed

# Re-tests of a suspect pair. Its state is their median, so three of five must be bad: of a clean link one sample
# in a hundred is (an outlier of 2x on top of jitter), three of five one in 100 000.
TIMES = 5
PEERS = 3  # of a suspect node: pairs tested again for it
NO_FLOORS = Floors()
NO_ADDRESSES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Judgement:
    """What a test of all pairs comes to.

    `findings`: confirmed (`fail`), or suspected and not measured again (`unknown`). `remarks`: what was suspected and
    passed when measured again. `norms`: the cluster's usual values. `cells`: the state of each link.
    """

    findings: list[Finding]
    remarks: list[str]
    norms: Norms
    cells: Mapping[Cell, CellState]

    @property
    def ok(self) -> bool:
        """Tell whether nothing is at fault."""
        return not self.findings


@dataclass(frozen=True)
class Pass:
    """All cells, what is bad about them (no symptom: dead), the culprits."""

    cells: Mapping[Cell, CellState]
    bad: Mapping[Cell, Sequence[Symptom]]
    culprits: Sequence[Culprit]


def _blame(cells: Mapping[Cell, CellState], bad: Mapping[Cell, Sequence[Symptom]]) -> Pass:
    return Pass(cells, bad, explain(cells, bad))


def _with_remainder(judged: Pass, usual: Norms) -> Pass:
    return replace(judged, culprits=[*judged.culprits, *remaining_culprits(judged.cells, judged.culprits, usual)])


def _bad_cells(cells: Mapping[Cell, CellState], usual: Norms, floors: Floors) -> dict[Cell, list[Symptom]]:
    bad = {}
    for cell, state in cells.items():
        signs = symptoms(state, usual, floors)
        if signs or state.is_dead:
            bad[cell] = signs
    return bad


def _first_pass(measurements: Sequence[Measurement], floors: Floors) -> Pass:
    cells = states(measurements)
    usual = norms(cells)
    return _with_remainder(_blame(cells, _bad_cells(cells, usual, floors)), usual)


# -- the re-test ---------------------------------------------------------------------------------------


def retest(measurements: Sequence[Measurement], floors: Floors = NO_FLOORS) -> list[Pair]:
    """List the pairs to measure again, each as often as it stands there; empty where nothing is suspect.

    `schedule.packed` makes rounds of them.
    """
    first = _first_pass(measurements, floors)
    cells = first.cells
    nodes = nodes_of(cells)
    suspects = {node for culprit in first.culprits for node in culprit.nodes}
    passed = [node for node in nodes if node not in suspects]
    pairs: dict[Pair, None] = {}
    for culprit in first.culprits:
        pairs.update(dict.fromkeys(_pairs_again(culprit, passed)))
    if pairs and len(nodes) < FEW_NODES:  # one bad sample of three pairs can mislead the norm itself
        pairs = dict.fromkeys(cells)
    return list(pairs) * TIMES


def _pairs_again(culprit: Culprit, passed: Sequence[str]) -> list[Pair]:
    """Choose a node's pairs with peers that passed and were bad with it; a link, and each end with one that passed."""
    pairs = list(culprit.cells)
    if culprit.kind == "link":
        return pairs + [(min(ends), max(ends)) for ends in zip(culprit.nodes, passed)]
    pairs.sort(key=lambda pair: -len(set(passed).intersection(pair)))  # stable: with those that passed first
    if culprit.kind == "all":
        pairs = _disjoint_first(pairs)
    return pairs[:PEERS]


def _disjoint_first(pairs: Sequence[Pair]) -> list[Pair]:
    nodes: set[str] = set()
    disjoint = []
    for pair in pairs:
        if nodes.isdisjoint(pair):
            disjoint.append(pair)
            nodes.update(pair)
    return disjoint + [pair for pair in pairs if pair not in disjoint]


# -- the judgement -------------------------------------------------------------------------------------


def judge(
    measurements: Sequence[Measurement],
    again: Sequence[Measurement] = (),
    floors: Floors = NO_FLOORS,
    addresses: Mapping[str, str] = NO_ADDRESSES,
) -> Judgement:
    """Say what is at fault after the re-test.

    `again` are the measurements of the pairs that `retest` named; `addresses` are what remedies name peers by, where a
    node's name isn't one.
    """
    retested = states(again)
    usual = norms(states([*measurements, *again]))
    first = _first_pass(measurements, floors)
    both = _with_remainder(_settled(first, retested, _bad_cells(retested, usual, floors)), usual)
    suspects = [culprit.place() for culprit in first.culprits]
    culprits = [culprit for culprit in both.culprits if not culprit.besides or culprit.place() in suspects]
    confirmed = []
    suspected = []
    for culprit in culprits:
        facts = _facts(culprit, both, usual, addresses)
        if _is_confirmed(culprit, retested):
            confirmed.append(finding(facts))
        else:
            suspected.append(unconfirmed(facts))
    blamed = {cell for culprit in culprits for cell in culprit.cells}
    remarks = [passed_again(culprit) for culprit in first.culprits if blamed.isdisjoint(culprit.cells)]
    return Judgement(confirmed + suspected, remarks, usual, both.cells)


def _settled(first: Pass, retested: Mapping[Cell, CellState], bad_again: Mapping[Cell, Sequence[Symptom]]) -> Pass:
    """Make one of both passes.

    A cell is bad when it was at first and its re-test confirms it or, where it had none, that of what is blamed for it
    does. What only a control of the re-test shows was no suspicion.
    """
    cells = {**first.cells, **retested}
    bad = {}
    for cell, signs in first.bad.items():
        if cell in bad_again or cell not in retested:
            bad[cell] = bad_again.get(cell, signs)
    while True:
        both = _blame(cells, bad)
        refuted = {
            cell
            for culprit in both.culprits
            if not _is_confirmed(culprit, retested) and _is_measured(culprit, retested)
            for cell in culprit.cells
            if cell not in retested
        }
        if not refuted:
            return both
        bad = {cell: signs for cell, signs in bad.items() if cell not in refuted}


def _is_confirmed(culprit: Culprit, retested: Collection[Cell]) -> bool:
    """Tell whether the re-test shows it, too: the link itself, or as large a share of a node's pairs as blames it."""
    again = culprit.charged(retested, culprit.cells)
    if culprit.kind == "link":
        return bool(again.cells)
    return again.bad_share() >= NODE_SHARE


def _is_measured(culprit: Culprit, retested: Collection[Cell]) -> bool:
    """Tell whether something of it was measured again: then what is left unconfirmed passed."""
    nodes = nodes_of(retested)
    return bool(nodes) and (not culprit.nodes or not set(nodes).isdisjoint(culprit.nodes))


def _facts(culprit: Culprit, both: Pass, usual: Norms, addresses: Mapping[str, str]) -> SentenceFacts:
    ends = set(culprit.nodes)
    return SentenceFacts(
        culprit,
        [both.cells[cell] for cell in culprit.cells],
        symptoms=[sign for cell in culprit.cells for sign in both.bad[cell]],
        norms=usual,
        nodes=tuple(nodes_of(both.cells)),
        addresses=addresses,
        alone=all(ends.isdisjoint(cell) or cell == culprit.nodes for cell in both.bad),
    )


# Of a culprit's cells: where more are far from its middle, they are its own spread (a node that fails now and then).
REMAINDER_SHARE = 1 / 3


@dataclass(frozen=True)
class Share:
    """How much worse than usual a culprit's cells are, as factors (1: as usual), by metric and by direction.

    `is_limit`: only its bandwidth is bad. Two limits in a row give the lower one; delays and losses add up.
    """

    culprit: Culprit
    factors: Mapping[tuple[Metric, bool], float]
    is_limit: bool
    is_dead: bool


def remaining_culprits(cells: Mapping[Cell, CellState], culprits: Sequence[Culprit], usual: Norms) -> list[Culprit]:
    """Find what is at fault besides these culprits, in the cells that they explain."""
    several = [culprit for culprit in culprits if culprit.kind != "link"]
    shares = [_share(culprit, several, cells, usual) for culprit in several]
    worse = []
    for cell in dict.fromkeys(cell for culprit in several for cell in culprit.cells):
        if _is_worse(cells[cell], [share for share in shares if share.culprit.covers(cell)], usual):
            worse.append(cell)
    for culprit in several:
        covered = culprit.charged(cells, set(worse))
        if covered.bad_share() > REMAINDER_SHARE:
            worse = [cell for cell in worse if cell not in covered.cells]
    places = [culprit.place() for culprit in culprits]
    remaining = []
    for other in explain(cells, worse):
        if other.place() not in places:
            covering = [culprit for culprit in several if any(map(culprit.covers, other.cells))]
            names = tuple(culprit.nodes[0] if len(culprit.nodes) == 1 else ALL_LINKS for culprit in covering)
            remaining.append(replace(other, besides=names))
    return remaining


def _share(culprit: Culprit, culprits: Sequence[Culprit], cells: Mapping[Cell, CellState], usual: Norms) -> Share:
    """Take the share from the cells that no other culprit touches, where there are such."""
    others = [other for other in culprits if other is not culprit]
    alone = [cell for cell in culprit.cells if not any(other.covers(cell) for other in others)]
    states = [cells[cell] for cell in alone or culprit.cells]
    values: dict[tuple[Metric, bool], list[float]] = {}
    for state in states:
        for metric, start, value in state.figures():
            if metric.name in usual:
                values.setdefault((metric, _is_outward(culprit, start)), []).append(value)
    factors = {}
    is_limit = True
    for (metric, outward), values_of_way in values.items():
        norm = usual[metric.name].usual
        factor = max(1.0, (norm / median(values_of_way)) ** metric.better)
        factors[(metric, outward)] = factor
        if metric is not BANDWIDTH and factor >= metric.ratio:
            is_limit = False
    dead = sum(state.is_dead for state in states)
    return Share(culprit, factors, is_limit, is_dead=2 * dead > len(states))


def _is_outward(culprit: Culprit, start: str) -> bool:
    """Tell whether the way starts at the culprit; any way does, where the culprit is not a single node."""
    return culprit.kind != "node" or culprit.nodes[0] == start


def _is_worse(state: CellState, shares: Sequence[Share], usual: Norms) -> bool:
    """Tell whether it is out of the norm without the shares; or dead, where each share is of what is only slow."""
    if state.is_dead:
        return not any(share.is_dead for share in shares)
    values = {
        (metric.name, start): value * _joint_factor(metric, start, shares) ** metric.better
        for metric, start, value in state.figures()
    }
    return bool(symptoms(replace(state, values=values), usual, Floors()))


def _joint_factor(metric: Metric, start: str, shares: Sequence[Share]) -> float:
    """Tell how much worse all shares make a way: of limits the largest, times every other one."""
    limit = 1.0
    product = 1.0
    for share in shares:
        factor = share.factors.get((metric, _is_outward(share.culprit, start)), 1.0)
        if share.is_limit:
            limit = max(limit, factor)
        else:
            product *= factor
    return limit * product
