"""From measurements to findings: which node or link is slow or dead (pure).

Two steps, so that one noisy sample is not an alarm: `retest` lists the pairs to measure again, suspects with suspects
and against nodes that passed; `judge` blames only what the re-test confirms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from allranks.findings import Finding

from ..metric_rows import Cell, Measurement
from .blame import NODE_SHARE, Culprit, explain, nodes_of
from .norms import FEW_NODES, CellState, Floors, Norms, Symptom, norms, states, symptoms
from .schedule import Pair
from .wording import Pass, finding, passed_again

# Re-tests of a suspect pair. Its state is their median, so three of five must be bad: of a clean link one sample
# in a hundred is (an outlier of 2x on top of jitter), three of five one in 100 000.
TIMES = 5
PEERS = 3  # of a suspect node: pairs tested again for it
NO_FLOORS: Floors = MappingProxyType({})
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


def _bad_cells(cells: Mapping[Cell, CellState], usual: Norms, floors: Floors) -> dict[Cell, list[Symptom]]:
    bad = {}
    for cell, state in cells.items():
        signs = symptoms(state, usual, floors)
        if signs or state.is_dead:
            bad[cell] = signs
    return bad


def _first_pass(measurements: Sequence[Measurement], floors: Floors) -> Pass:
    cells = states(measurements)
    bad = _bad_cells(cells, norms(cells), floors)
    return Pass(cells, bad, explain(cells, bad))


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
    both = _settled(first, retested, _bad_cells(retested, usual, floors))
    confirmed = []
    suspected = []
    for culprit in both.culprits:
        plain = finding(culprit, both, usual, addresses)
        if _is_confirmed(culprit, retested):
            confirmed.append(plain)
        else:
            message = f"{plain.message}. It was not measured again, so this may be chance"
            suspected.append(plain._replace(status="unknown", message=message, remedy="run the test once more"))
    blamed = {cell for culprit in both.culprits for cell in culprit.cells}
    remarks = [passed_again(culprit) for culprit in first.culprits if blamed.isdisjoint(culprit.cells)]
    return Judgement(confirmed + suspected, remarks, usual, both.cells)


def _settled(first: Pass, retested: Mapping[Cell, CellState], bad_again: Mapping[Cell, Sequence[Symptom]]) -> Pass:
    """Make one of both passes.

    A cell is bad when it was at first and its re-test confirms it or, where it had none, that of what is blamed for it
    does. What only a control of the re-test shows was no suspicion.
    """
    cells = {**first.cells, **retested}
    measured = set(nodes_of(retested))
    bad = {}
    for cell, signs in first.bad.items():
        if cell in bad_again or cell not in retested:
            bad[cell] = bad_again.get(cell, signs)
    while True:
        culprits = explain(cells, bad)
        refuted = {
            cell
            for culprit in culprits
            # Something of it was measured again: what is left unconfirmed passed.
            if not _is_confirmed(culprit, retested) and not measured.isdisjoint(culprit.nodes)
            for cell in culprit.cells
            if cell not in retested
        }
        if not refuted:
            return Pass(cells, bad, culprits)
        bad = {cell: signs for cell, signs in bad.items() if cell not in refuted}


def _is_confirmed(culprit: Culprit, retested: Collection[Cell]) -> bool:
    """Tell whether the re-test shows it, too: the link itself, or as large a share of a node's pairs as blames it."""
    again = culprit.charged(retested, culprit.cells)
    if culprit.kind == "link":
        return bool(again.cells)
    return again.bad_share() >= NODE_SHARE
