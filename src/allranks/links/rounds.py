"""Who is measured with whom, and when: rounds of disjoint pairs, and the stages of `--suite staged` (pure).

The circle method: one node stays, the others move on by one seat a round. Even n gives n - 1 rounds of n / 2
pairs, odd n gives n rounds in which one node rests (SuperBench's schedule).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALL_PAIRS = 64  # nodes; beyond, `ENOUGH` others each: the time of the test must not grow with the cluster
ENOUGH = 8  # others a node is measured with: one bad link of eight is not taken for a bad node
STAGED_ALL_PAIRS = 8  # nodes; each round of `staged` starts processes, which takes seconds
STAGED_ROUNDS = 3  # of pairs beyond that

Pair = tuple[str, str]
Round = tuple[Pair, ...]
Group = tuple[str, ...]


def rounds(nodes: Sequence[str]) -> list[Round]:
    """The rounds of disjoint pairs: every pair of up to `ALL_PAIRS` nodes; of more, `ENOUGH` others for each node."""
    count = len(nodes)
    if count < 2:
        return []
    total = count - 1 if count % 2 == 0 else count
    if count <= ALL_PAIRS:
        return [_circle(nodes, number) for number in range(total)]
    taken = ENOUGH + count % 2  # with odd n a node rests in at most one of them
    return [_circle(nodes, total * k // taken) for k in range(taken)]


def _circle(nodes: Sequence[str], number: int) -> Round:
    """Round `number` of the circle; the empty seat of an odd number of nodes gives its partner a rest."""
    seats: list[str | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    fixed, moving = seats[0], seats[1:]
    at = number % len(moving)
    ring = [fixed, *moving[len(moving) - at :], *moving[: len(moving) - at]]
    half = len(ring) // 2
    faced = zip(ring[:half], reversed(ring[half:]))  # noqa: B905  (Python 3.9)
    return tuple((a, b) for a, b in faced if a is not None and b is not None)


def covered(nodes: int) -> str:
    """What the schedule leaves out, in words; empty where it is all."""
    if nodes <= ALL_PAIRS:
        return ""
    return f"each of {nodes} nodes was measured with {ENOUGH} others (all pairs up to {ALL_PAIRS} nodes)"


def packed(pairs: Iterable[Pair]) -> list[Round]:
    """Any list of pairs, repeats included, as rounds of disjoint pairs: each goes into the first that has room."""
    found: list[list[Pair]] = []
    busy: list[set[str]] = []
    for a, b in pairs:
        at = next((k for k, seen in enumerate(busy) if a not in seen and b not in seen), len(found))
        if at == len(found):
            found.append([])
            busy.append(set())
        found[at].append((a, b))
        busy[at] |= {a, b}
    return [tuple(items) for items in found]


# -- staged ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One step of `--suite staged`: groups of `size` nodes that run a test by themselves.

    `rounds` follow one another; the groups of one round are disjoint and may run at the same time.
    """

    name: str
    size: int
    rounds: tuple[tuple[Group, ...], ...]
    whole: bool = False

    def groups(self) -> list[Group]:
        """All groups of the stage in order."""
        return [group for items in self.rounds for group in items]

    def meaning(self, failed: Sequence[Group]) -> str:
        """What it means that these groups of the stage failed where all stages before passed."""
        if self.size == 1:
            return _alone(failed)
        if self.size == 2:
            return _pairs(failed, self.groups())
        return _together(failed, self.whole)


ALL_PASSED = "every stage passes, up to all nodes together: the cluster carries collectives; look at the training code"


def stages(nodes: Sequence[str]) -> list[Stage]:
    """Each node alone, pairs, groups of 4, 8, …, then all nodes."""
    count = len(nodes)
    found = [Stage("each node alone", 1, (tuple((node,) for node in nodes),), whole=count == 1)]
    if count > 1:
        pairs = rounds(nodes)
        few = pairs if count <= STAGED_ALL_PAIRS else pairs[:: max(1, len(pairs) // STAGED_ROUNDS)][:STAGED_ROUNDS]
        found.append(Stage("pairs of nodes", 2, tuple(few), whole=count == 2))
    size = 4
    while size < count:
        found.append(Stage(f"groups of {size} nodes", size, (_parted(nodes, size),)))
        size *= 2
    if count > 2:
        found.append(Stage(f"all {count} nodes", count, ((tuple(nodes),),), whole=True))
    return found


def _parted(nodes: Sequence[str], size: int) -> tuple[Group, ...]:
    """Neighbours in groups of `size`; a node left over joins the last group."""
    found = [tuple(nodes[at : at + size]) for at in range(0, len(nodes), size)]
    if len(found[-1]) == 1:
        found[-2:] = [found[-2] + found[-1]]
    return tuple(found)


def _joined(group: Sequence[str]) -> str:
    return "–".join(group) if len(group) <= 4 else f"{group[0]}–{group[1]}–…–{group[-1]} ({len(group)} nodes)"


def _alone(failed: Sequence[Group]) -> str:
    """A node that fails by itself: no network between nodes is involved."""
    names = ", ".join(group[0] for group in failed)
    many = len(failed) > 1
    return (
        f"{names} {'fail' if many else 'fails'} alone: the trouble is inside {'these nodes' if many else 'that node'} "
        "(interpreter, torch, GPUs, /dev/shm, loopback), not in the network between nodes"
    )


def _pairs(failed: Sequence[Group], tried: Sequence[Group]) -> str:
    """Failing pairs: a node that fails with all it was paired with, else the links."""
    for node in dict.fromkeys(name for group in failed for name in group):
        mine = [group for group in tried if node in group]
        if len(mine) > 1 and all(group in failed for group in mine) and all(node in group for group in failed):
            return (
                f"every node passes alone; {node} fails with each of the {len(mine)} it was paired with: {node}'s "
                "network or firewall, not your training code"
            )
    if len(failed) == len(tried) > 1:
        return "every node passes alone; every pair fails: the network between all nodes, or a firewall on all of them"
    them = "the link or the firewall between them" if len(failed) == 1 else "the links or the firewall between them"
    verb = "fails" if len(failed) == 1 else "fail"
    return f"every node passes alone; {', '.join(map(_joined, failed))} {verb}: {them}, not your training code"


def _together(failed: Sequence[Group], whole: bool) -> str:
    """Groups that fail where the smaller ones passed."""
    names = "all nodes together" if whole else ", ".join(map(_joined, failed))
    verb = "fail" if whole or len(failed) > 1 else "fails"
    return (
        f"every smaller group passes; {names} {verb}: what appears only with more nodes (a pair that was not in an "
        "earlier group, a shared uplink or switch, limits on open files and connections), not your training code"
    )
