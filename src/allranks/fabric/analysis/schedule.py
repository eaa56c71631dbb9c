"""Who is measured with whom, and when: rounds of disjoint pairs, and the stages of `--suite staged` (pure).

The circle method: one node stays, the others move on by one seat a round. Even n gives n - 1 rounds of n / 2 pairs, odd
n gives n rounds in which one node rests (SuperBench's schedule).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Tuple

from allranks.text import count_of, plural

ALL_PAIRS = 64  # nodes; beyond, `ENOUGH` others each: the time of the test must not grow with the cluster
ENOUGH = 8  # others a node is measured with: one bad link of eight is not taken for a bad node
STAGED_ALL_PAIRS = 8  # nodes; each round of `staged` starts processes, which takes seconds
STAGED_ROUNDS = 3  # of pairs beyond that
NAMES_SHOWN = 4  # of a group

Pair = Tuple[str, str]
Round = Tuple[Pair, ...]
Group = Tuple[str, ...]


def rounds(nodes: Sequence[str]) -> list[Round]:
    """Make rounds of disjoint pairs: every pair of up to `ALL_PAIRS` nodes; of more, `ENOUGH` others for each node."""
    count = len(nodes)
    if count < 2:
        return []
    total = count - 1 + count % 2
    numbers: Iterable[int] = range(total)
    if count > ALL_PAIRS:
        chosen = ENOUGH + count % 2  # with odd n a node rests in at most one of them
        numbers = (total * at // chosen for at in range(chosen))
    return [_circle(nodes, number) for number in numbers]


def _circle(nodes: Sequence[str], number: int) -> Round:
    seats: list[str | None] = [*nodes]
    if len(seats) % 2:
        seats.append(None)
    moved = number % (len(seats) - 1)
    circle = [seats[0], *seats[len(seats) - moved :], *seats[1 : len(seats) - moved]]
    half = len(circle) // 2
    facing = zip(circle[:half], reversed(circle[half:]))
    return tuple((a, b) for a, b in facing if a is not None and b is not None)


def coverage_note(nodes: int) -> str:
    """Write what the schedule leaves out; empty where it is all."""
    if nodes <= ALL_PAIRS:
        return ""
    return f"each of {nodes} nodes was measured with {ENOUGH} others (all pairs up to {ALL_PAIRS} nodes)"


def packed(pairs: Iterable[Pair]) -> list[Round]:
    """Make rounds of disjoint pairs of any list, repeats included: each pair goes into the first that has room."""
    result: list[list[Pair]] = []
    busy: list[set[str]] = []
    for pair in pairs:
        at = next((at for at, nodes in enumerate(busy) if nodes.isdisjoint(pair)), len(busy))
        if at == len(busy):
            result.append([])
            busy.append(set())
        result[at].append(pair)
        busy[at].update(pair)
    return [tuple(items) for items in result]


# -- staged --------------------------------------------------------------------------------------------

ALL_PASSED = "every stage passes, up to all nodes together: the cluster carries collectives. Look at the training code"


@dataclass(frozen=True)
class SuiteStage:
    """One step of `--suite staged`: groups of `size` nodes that run a test by themselves.

    `rounds` follow one another; the groups of one round are disjoint and may run at the same time.
    """

    name: str
    size: int
    rounds: Tuple[Tuple[Group, ...], ...]
    has_all_nodes: bool = False

    def groups(self) -> list[Group]:
        """List all groups of the stage in order."""
        return [group for groups in self.rounds for group in groups]

    def meaning(self, failed: Sequence[Group]) -> str:
        """Write what it means that these groups of the stage failed where all stages before passed."""
        count = len(failed)
        names = ", ".join(map(group_name, failed))
        verb = plural(count, "fails", "fail")
        if self.size == 1:
            these = plural(count, "that node", "these nodes")
            return (
                f"{names} {verb} alone: the trouble is inside {these} (interpreter, torch, GPUs, /dev/shm, loopback), "
                "not in the network between nodes"
            )
        if self.size == 2:
            return f"every node passes alone, but {_pairs_meaning(failed, self.groups(), names)}"
        if self.has_all_nodes:
            names = "all nodes together"
            verb = "fail"
        return (
            f"every smaller group passes, {names} {verb}. It is something that appears only with more nodes, not your "
            "training code.\nIt may be a pair that was not in an earlier group, a shared uplink or switch, or a limit "
            "on open files and connections."
        )


def _pairs_meaning(failed: Sequence[Group], tested: Sequence[Group], names: str) -> str:
    """Blame a node that fails with all that it was paired with, else the links."""
    in_all_failed = [node for node in failed[0] if all(node in group for group in failed)]
    for node in in_all_failed:
        count = sum(node in group for group in tested)
        if count == len(failed) > 1:
            partners = f"fails with each of the {count} it was paired with"
            return f"{node} {partners}: {node}'s network or firewall, not your training code"
    if len(failed) == len(tested) > 1:
        return "every pair fails: the network between all nodes, or a firewall on all of them"
    fail = plural(len(failed), "fails: the link", "fail: the links")
    return f"{names} {fail} or the firewall between them, not your training code"


def group_name(group: Group) -> str:
    """Name a group by its nodes, a large one by its ends."""
    if len(group) <= NAMES_SHOWN:
        return "–".join(group)
    return f"{group[0]}–{group[1]}–…–{group[-1]} ({count_of(len(group), 'node')})"


def stages(nodes: Sequence[str]) -> list[SuiteStage]:
    """Make the stages: each node alone, pairs, groups of 4, 8, …, then all nodes."""
    count = len(nodes)
    result = [SuiteStage("each node alone", 1, (tuple((node,) for node in nodes),), count == 1)]
    if count > 1:
        pairs = rounds(nodes)
        if count > STAGED_ALL_PAIRS:
            pairs = pairs[:: max(1, len(pairs) // STAGED_ROUNDS)][:STAGED_ROUNDS]
        result.append(SuiteStage("pairs of nodes", 2, tuple(pairs), count == 2))
    size = 4
    while size < count:
        result.append(SuiteStage(f"groups of {size} nodes", size, (_neighbours(nodes, size),)))
        size *= 2
    if count > 2:
        result.append(SuiteStage(f"all {count} nodes", count, ((tuple(nodes),),), True))
    return result


def _neighbours(nodes: Sequence[str], size: int) -> tuple[Group, ...]:
    """Make groups of neighbours; a node left over joins the last group."""
    groups = [tuple(nodes[start : start + size]) for start in range(0, len(nodes), size)]
    if len(groups[-1]) == 1:
        groups[-2:] = [groups[-2] + groups[-1]]
    return tuple(groups)
