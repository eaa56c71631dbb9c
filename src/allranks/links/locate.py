"""From measurements to findings: which node, link or rail is slow or dead (pure).

Two steps, so that one noisy sample is no alarm: `retest` lists the pairs to measure again, suspects among
themselves and against nodes that passed; `judge` blames only what the re-test confirms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from allranks.findings import Finding

from .blame import NODE_SHARE, Culprit, explain
from .measure import Cell, Floors, Measurement
from .norms import FEW_NODES, Norms, State, Symptom, norms, states, symptoms
from .remainder import remaining_culprits, suspected_before
from .rounds import Pair
from .wording import Facts, finding, passed_again, unconfirmed

# Re-tests of a suspect pair. Its state is their median, so three of five must be bad: of a clean link one sample
# in a hundred is (an outlier of 2x on top of jitter), three of five one in 100 000.
TIMES = 5
PEERS = 3  # of a suspect node or rail: pairs tested again for it
NO_FLOORS = Floors()


@dataclass(frozen=True)
class Judgement:
    """`findings`: confirmed (`fail`), or suspected and not measured again (`unknown`). `remarks`: what was suspected
    and passed when measured again. `norms`: the cluster's usual values. `cells`: the state of each link."""

    findings: list[Finding]
    remarks: list[str]
    norms: Norms
    cells: Mapping[Cell, State]

    @property
    def ok(self) -> bool:
        """Nothing is at fault."""
        return not self.findings


@dataclass(frozen=True)
class _Look:
    """All cells, what is bad about them (no symptom: dead), the culprits."""

    cells: dict[Cell, State]
    bad: dict[Cell, list[Symptom]]
    culprits: list[Culprit]


def _look(cells: dict[Cell, State], usual: Norms, floors: Floors) -> _Look:
    found = {cell: symptoms(state, usual, floors) for cell, state in cells.items()}
    bad = {cell: signs for cell, signs in found.items() if signs or cells[cell].is_dead}
    return _with_remainder(_Look(cells, bad, explain(list(cells), list(bad))), usual)


def _with_remainder(look: _Look, usual: Norms) -> _Look:
    """Add the culprits of what the others leave unexplained."""
    return replace(look, culprits=look.culprits + remaining_culprits(look.cells, look.culprits, usual))


def retest(measurements: Sequence[Measurement], floors: Floors = NO_FLOORS) -> list[Pair]:
    """The pairs to measure again, each as often as it stands there; empty where nothing is suspect.

    `rounds.packed` makes rounds of them. All rails of a pair are measured again, as in the first pass.
    """
    cells = states(measurements)
    look = _look(cells, norms(cells), floors)
    nodes = list(dict.fromkeys(node for cell in cells for node in cell[:2]))
    passed = _passed(nodes, look)
    if look.culprits and len(nodes) < FEW_NODES:  # one bad sample of three pairs can mislead the norm itself
        return [pair for _ in range(TIMES) for pair in dict.fromkeys(cell[:2] for cell in cells)]
    wanted: dict[Pair, None] = {}
    for culprit in look.culprits:
        wanted.update(dict.fromkeys(_again(culprit, passed)))
    return [pair for _ in range(TIMES) for pair in wanted]


def _passed(nodes: Sequence[str], look: _Look) -> list[str]:
    """Nodes that are no culprit nor an end of a bad link."""
    suspect = {node for culprit in look.culprits for node in culprit.nodes}
    return [node for node in nodes if node not in suspect]


def _again(culprit: Culprit, passed: Sequence[str]) -> list[Pair]:
    """A node with peers that passed and were bad with it; a link by itself, and each end with one that passed."""
    pairs: list[Pair] = list(dict.fromkeys(cell[:2] for cell in culprit.cells))
    if culprit.kind == "link":
        controls = [(end, peer) for end, peer in zip(culprit.nodes, passed)]  # noqa: B905  (Python 3.9)
        return pairs + [(a, b) if a < b else (b, a) for a, b in controls]
    good = set(passed)
    pairs.sort(key=lambda pair: -len(good & set(pair)))  # stable: with those that passed first
    if culprit.kind in ("rail", "all"):
        pairs = _disjoint_first(pairs)
    return pairs[:PEERS]


def _disjoint_first(pairs: Sequence[Pair]) -> list[Pair]:
    seen: set[str] = set()
    first: list[Pair] = []
    for pair in pairs:
        if not seen & set(pair):
            first.append(pair)
            seen |= set(pair)
    return first + [pair for pair in pairs if pair not in first]


def judge(
    measurements: Sequence[Measurement],
    again: Sequence[Measurement] = (),
    floors: Floors = NO_FLOORS,
    addresses: Mapping[str, str] | None = None,
) -> Judgement:
    """What is at fault after the re-test. `again` are the measurements of the pairs that `retest` named;
    `addresses` are what remedies name peers by, where a node's name isn't one."""
    first, second = states(measurements), states(again)
    suspected = _look(first, norms(first), floors)
    usual = norms(states([*measurements, *again]))
    look = _with_remainder(_settled(suspected, _look(second, usual, floors)), usual)
    look = replace(
        look, culprits=[c for c in look.culprits if not c.besides or suspected_before(c, suspected.culprits)]
    )
    named = [c for c in look.culprits if _confirmed(c, look, second)]
    open_ = [c for c in look.culprits if c not in named]
    findings = [finding(_facts(c, look, usual, addresses or {})) for c in named]
    findings += [unconfirmed(_facts(c, look, usual, addresses or {})) for c in open_]
    blamed = {cell for culprit in look.culprits for cell in culprit.cells}
    remarks = [passed_again(c) for c in suspected.culprits if not set(c.cells) & blamed]
    return Judgement(findings, remarks, usual, look.cells)


def _settled(first: _Look, second: _Look) -> _Look:
    """Both passes as one: a cell is bad when it was at first and its re-test confirms it or, where it had none, that
    of what is blamed for it does. What only a control of the re-test shows was no suspicion."""
    cells = {**first.cells, **second.cells}
    old = {cell: signs for cell, signs in first.bad.items() if cell not in second.cells}
    while True:
        bad = {
            cell: second.bad.get(cell, signs) for cell, signs in first.bad.items() if cell in second.bad or cell in old
        }
        look = _Look(cells, bad, explain(list(cells), list(bad)))
        refuted = [c for c in look.culprits if not _confirmed(c, look, second.cells) and _measured(c, second.cells)]
        passed = {cell for culprit in refuted for cell in culprit.cells if cell in old}
        if not passed:
            return look
        old = {cell: signs for cell, signs in old.items() if cell not in passed}


def _retested(culprit: Culprit, look: _Look, second: Collection[Cell]) -> list[Cell]:
    """The cells measured again that the culprit would explain."""
    return [cell for cell in look.cells if cell in second and _touches(culprit, cell)]


def _touches(culprit: Culprit, cell: Cell) -> bool:
    if culprit.rail not in (None, cell[2]):
        return False
    if culprit.kind == "link":
        return cell[:2] == culprit.nodes
    return culprit.kind in ("rail", "all") or culprit.nodes[0] in cell[:2]


def _confirmed(culprit: Culprit, look: _Look, second: Collection[Cell]) -> bool:
    """Bad in the re-test, too: the link itself, or as large a share of a node's pairs as blames it."""
    mine = _retested(culprit, look, second)
    ill = [cell for cell in mine if cell in culprit.cells]
    return bool(ill) and (culprit.kind == "link" or len(ill) >= NODE_SHARE * len(mine))


def _measured(culprit: Culprit, second: Iterable[Cell]) -> bool:
    """Something of it was measured again: then what is left unconfirmed passed."""
    nodes = set(culprit.nodes)
    return any(not nodes or nodes & set(cell[:2]) for cell in second)


def _facts(culprit: Culprit, look: _Look, usual: Norms, addresses: Mapping[str, str]) -> Facts:
    mine = [look.cells[cell] for cell in culprit.cells]
    signs = [sign for cell in culprit.cells for sign in look.bad[cell]]
    nodes = tuple(dict.fromkeys(node for cell in look.cells for node in cell[:2]))
    ends = set(culprit.nodes)
    alone = not any(ends & set(cell[:2]) and cell[:2] != culprit.nodes for cell in look.bad)
    return Facts(culprit, mine, signs, usual, nodes, addresses, alone)
