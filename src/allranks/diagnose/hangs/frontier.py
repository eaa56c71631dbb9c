"""From the flight recorders of all ranks to those that the others wait for (pure).

Every process group is judged. A rank that stands in a collective waits for the members that have not called it, and
one that stands in a send or a receive waits for the other end. Those members may wait for others again. The ranks at
the end of these chains, which do not wait, are the culprits.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from allranks.text import group, join_words, plural

from ..candidate import Candidate, Strength
from ..words import count_ranks, name_by_node
from .recorder import (
    DEFAULT,
    RankRecording,
    RecordedGroup,
    RecorderEntry,
    Transfer,
    TransferEnds,
    outside_most,
    ranks_by_call,
)

SAID = 2  # collectives that a message names
EVIDENCE = 3
ANY_SOURCE = -1
Ranks = tuple[int, ...]
Recorded = Mapping[int, RankRecording]
# Operations that no member comes through before all have called them; a root of the others may be through first.
SYNCHRONISING = frozenset(
    {
        *("all_reduce", "allreduce_coalesced", "all_gather", "_all_gather_base", "reduce_scatter"),
        *("_reduce_scatter_base", "all_to_all", "barrier"),
    }
)


class CollectiveFault(enum.Enum):
    """What is wrong with a collective."""

    DIFFERENT = "ranks have called different operations, shapes or types at one number"
    MISSING = "ranks have not called it, and wait nowhere"
    STUCK = "ranks do not come through what the others have come through"
    BEHIND = "with Gloo: the same, where the link to them may be at fault as well"
    ORDER = "ranks wait for each other: in different groups, or in sends and receives"
    TOGETHER = "all ranks are in it alike"


@dataclass(frozen=True)
class Account:
    """What everything waits for. `culprits` are not in it, in another one of that number, or stuck in it.

    `is_shape`: ranks have called one operation with different shapes or types. `is_over`: it has ended, and nothing
    that has not ended explains the rest.
    """

    case: CollectiveFault
    culprits: Ranks
    message: str
    lines: tuple[str, ...] = ()
    is_shape: bool = False
    is_over: bool = False


@dataclass(frozen=True)
class Stall:
    """An unfinished collective: who waits in it, who has not come, who could not answer, who has come through it."""

    group: RecordedGroup
    seq: int
    inside: Mapping[int, RecorderEntry]
    absent: Ranks
    silent: Ranks = ()
    through: Ranks = ()

    @property
    def kinds(self) -> list[list[int]]:
        """Ranks by what they call at this number, the most first."""
        return ranks_by_call(self.inside)

    @property
    def waiting(self) -> Ranks:
        """The ranks that stand in it."""
        return tuple(rank for rank, entry in self.inside.items() if not entry.done)

    @property
    def missing(self) -> Ranks:
        """The ranks that those in it wait for; where all that could answer have called it, those that could not."""
        if self.absent or self.through:
            return self.absent
        return self.silent

    @property
    def is_different(self) -> bool:
        """Tell whether ranks have called it unlike each other, or its result fits none of its inputs."""
        return len(self.kinds) > 1 or not all(entry.fits_itself for entry in self.inside.values())

    @property
    def is_on_device(self) -> bool:
        """Tell whether devices carry it."""
        return next(iter(self.inside.values())).is_on_device

    @property
    def is_stuck(self) -> bool:
        """Tell whether ranks stand in what others have come through, which needs the call of every rank."""
        entry = next(iter(self.inside.values()))
        return entry.operation in SYNCHRONISING and bool(self.through) and bool(self.waiting)

    def says(self) -> str:
        """Write `ranks 0 and 1 are in all_gather #17 of 4 KB and rank 2 is in all_reduce #17 of 4 MB`."""
        entries = {ranks[0]: self.inside[ranks[0]] for ranks in self.kinds}
        calls = {rank: str(entry) for rank, entry in entries.items()}
        if self.is_different and len(set(calls.values())) < max(2, len(calls)):
            calls = {rank: entry.detail for rank, entry in entries.items()}
        parts = []
        for ranks in self.kinds:
            verb = f"{plural(len(ranks), 'has', 'have')} called"  # every rank has come out of it
            if self.waiting:
                verb = f"{plural(len(ranks), 'is', 'are')} in"
            parts.append(f"{count_ranks(ranks)} {verb} {calls[ranks[0]]}")
        text = f"{join_words(parts)}{self.group}"
        if not self.absent:
            return text
        return f"{text}, {count_ranks(self.absent)} {plural(len(self.absent), 'has', 'have')} not called it"

    def says_stuck(self, ranks: Sequence[int]) -> str:
        """Write `rank 2 is still in all_reduce #17 of 4 KB, which ranks 0 and 1 have come through`."""
        through = f"{count_ranks(self.through)} {plural(len(self.through), 'has', 'have')} come through"
        verb = plural(len(ranks), "is", "are")
        return f"{count_ranks(ranks)} {verb} still in {self.inside[ranks[0]]}{self.group}, which {through}"


@dataclass(frozen=True)
class Unmatched:
    """Sends or receives of one rank that its peer has no other end of."""

    group: RecordedGroup
    rank: int
    transfer: Transfer

    @property
    def waiting(self) -> Ranks:
        """The rank that stands in it."""
        return (self.rank,)

    @property
    def missing(self) -> Ranks:
        """The rank that it waits for."""
        return (self.transfer.peer,)

    def says(self) -> str:
        """Write `rank 2 is in recv from rank 3, which has not called the send`."""
        other = "recv" if self.transfer.is_send else "send"
        return f"rank {self.rank} is in {self.transfer.name}{self.group}, which has not called the {other}"


def account(recordings: Sequence[RankRecording]) -> Account | None:
    """Find what everything waits for; None where no recorder has anything unfinished or unlike."""
    by_rank = {r.rank: r for r in recordings if not r.error}
    mute = {r.rank for r in recordings if r.error}  # of ranks that were not asked nothing follows
    groups = _groups(by_rank.values())
    stalls = [stall for group in groups for stall in _stalls(group, by_rank, mute)]
    unmatched = [one for group in groups for one in _unmatched(group, by_rank, mute)]
    matched = _matched(groups, by_rank)
    unheard = [f"rank {r.rank}: {r.error}" for r in recordings if r.error]
    different = [stall for stall in stalls if stall.is_different]
    if different:
        return _different(different, unheard)
    unequal = [sentence for group in groups for sentence in _unequal(group, by_rank)]
    if unequal:
        return Account(CollectiveFault.DIFFERENT, (), unequal[0], _lines(unequal, unheard), is_shape=True)
    reasons: list[Stall | Unmatched] = [*stalls, *unmatched]
    waits = _absences(stalls, unmatched)
    waited_for = {rank for reason in reasons for rank in reason.missing}
    circles = [ranks for ranks in _ends(waits) if len(ranks) > 1]
    _meetings(waits, stalls, matched)
    culprits = {rank for ranks in _ends(waits) if len(ranks) == 1 for rank in ranks & waited_for}
    stuck = {rank for stall in stalls if stall.is_stuck and stall.is_on_device for rank in stall.waiting}
    if culprits or stuck:
        culprits |= _idle(by_rank)
        return _blamed(culprits, stuck, reasons, unheard)
    crossed = [reason for reason in reasons if reason.missing]
    if circles:
        blamed = _most_waited_for(circles, crossed)
        # the blamed rank's send or receive comes first; where none is blamed, any of them
        crossed.sort(key=lambda reason: not (isinstance(reason, Unmatched) and (not blamed or reason.rank in blamed)))
        message = "; ".join(reason.says() for reason in crossed[:SAID])
        lines = _lines([reason.says() for reason in crossed[:EVIDENCE]], unheard)
        return Account(CollectiveFault.ORDER, blamed, message, lines)
    passed = [stall for group in groups for stall in _unlike(group, by_rank)]
    if passed:
        return replace(_different(passed, unheard), is_over=True)
    if stalls:
        return _called_by_all(stalls, unheard)
    if not matched:
        return None
    source, target = min(matched)
    message = f"rank {source} sends to rank {target}, which receives from it, and neither comes through"
    return Account(CollectiveFault.TOGETHER, (), message, _lines([message], unheard))


def _called_by_all(stalls: Sequence[Stall], unheard: Sequence[str]) -> Account:
    """Make the account of collectives that all members have called alike, and that do not come to an end."""
    behind = next((stall for stall in stalls if stall.is_stuck and len(stall.waiting) <= len(stall.through)), None)
    if behind is not None:
        message = behind.says_stuck(behind.waiting)
        return Account(CollectiveFault.BEHIND, behind.waiting, message, _lines([message], unheard))
    alike = [stall for stall in stalls if not stall.missing] or stalls
    message = alike[0].says()
    return Account(CollectiveFault.TOGETHER, (), message, _lines([message], unheard))


# -- what is unfinished ----------------------------------------------------------------------------------


def _groups(recordings: Iterable[RankRecording]) -> list[RecordedGroup]:
    names = {group for r in recordings for group in r.entries}
    return sorted(names, key=lambda g: (g.desc != DEFAULT, len(g.name), g.name, g.ranks))


def _stalls(group: RecordedGroup, by_rank: Recorded, mute: Collection[int]) -> Iterator[Stall]:
    """Give the collectives of a group that ranks stand in, the earliest first.

    Of each rank its first unfinished one counts. What it has queued behind that holds no rank.
    """
    heard = {r: by_rank[r] for r in group.ranks if r in by_rank}
    waits = {rank: entry for rank, r in heard.items() if (entry := r.waits(group)) is not None}
    reached = {rank: r.reached(group) for rank, r in heard.items()}
    silent = tuple(rank for rank in group.ranks if rank in mute)
    for seq in sorted({entry.seq for entry in waits.values()}):
        inside = {rank: entry for rank, r in heard.items() if (entry := r.at(group, seq)) is not None}
        absent = tuple(rank for rank in heard if reached[rank] < seq)
        through = tuple(rank for rank in heard if reached[rank] >= seq and (rank not in waits or waits[rank].seq > seq))
        yield Stall(group, seq, inside, absent, silent, through)


def _unlike(group: RecordedGroup, by_rank: Recorded) -> Iterator[Stall]:
    """Give the first collective of a group that its members have called unlike each other, though it may have ended.

    Gloo lets some of them pass, and what follows from it fails elsewhere: it counts where nothing unfinished explains
    the rest. Of two calls with one number (a group that was made again under its name) the newer one counts.
    """
    numbered: dict[int, dict[int, RecorderEntry]] = {}
    for rank in group.ranks:
        if rank in by_rank:
            for entry in by_rank[rank].entries.get(group, ()):
                newest = numbered.setdefault(entry.seq, {})
                if rank not in newest or newest[rank].order <= entry.order:
                    newest[rank] = entry
    for seq in sorted(numbered):
        if len({entry.kind for entry in numbered[seq].values()}) > 1:
            absent = tuple(r for r in group.ranks if r in by_rank and by_rank[r].reached(group) < seq)
            yield Stall(group, seq, numbered[seq], absent)
            return


def _unequal(group: RecordedGroup, by_rank: Recorded) -> Iterator[str]:
    """Name the sends whose receive is of another size or type: of two ranks the unfinished ones pair by order.

    Where the two have a different number of them, one is done on one side, and so nothing follows.
    """
    for rank in (r for r in group.ranks if r in by_rank):
        for (peer, is_send), sent in _by_peer(by_rank[rank], group).items():
            if not is_send or peer not in by_rank:
                continue
            received = _by_peer(by_rank[peer], group).get((rank, False), [])
            if len(sent) != len(received):
                continue
            one = sent[0]
            other = received[0]
            if one.elements and other.elements and one.amount != other.amount:
                yield f"rank {rank} sends {one.amount} to rank {peer}, which receives {other.amount}"


def _unmatched(group: RecordedGroup, by_rank: Recorded, mute: Collection[int]) -> Iterator[Unmatched]:
    """Give the sends and receives whose other end is not there: of two ranks the unfinished ones pair by order.

    Where both ranks have counted all of them, the k-th of one pairs with the k-th of the other.
    """
    for rank in (r for r in group.ranks if r in by_rank):
        for (peer, is_send), transfers in _by_peer(by_rank[rank], group).items():
            answers = 0
            if peer in by_rank and transfers[0].number and by_rank[peer].posted:
                yield from _unanswered(group, rank, transfers, by_rank[peer].posted.get(group, {}))
                continue
            if peer in by_rank:
                answers = len(_by_peer(by_rank[peer], group).get((rank, not is_send), ()))
            elif peer not in mute:
                continue
            if len(transfers) > answers:
                yield Unmatched(group, rank, transfers[answers])


def _unanswered(
    group: RecordedGroup, rank: int, transfers: Iterable[Transfer], posted: Mapping[TransferEnds, int]
) -> Iterator[Unmatched]:
    """Give the first transfer whose other end its peer has not called; none where the peer receives from any rank."""
    for transfer in transfers:
        anything = transfer.is_send and any(peer == ANY_SOURCE and not is_send for peer, is_send, _ in posted)
        answers = posted.get((rank, not transfer.is_send, transfer.tag), 0)
        if transfer.number > answers and not anything:
            yield Unmatched(group, rank, transfer)
            return


def _by_peer(recording: RankRecording, of_group: RecordedGroup) -> dict[tuple[int, bool], list[Transfer]]:
    return group(recording.transfers.get(of_group, ()), lambda transfer: (transfer.peer, transfer.is_send))


def _matched(groups: Iterable[RecordedGroup], by_rank: Recorded) -> set[tuple[int, int]]:
    """List the pairs of ranks that stand at both ends of a transfer."""
    ends = Counter[tuple[int, int, int, bool]]()
    for at, of_group in enumerate(groups):
        for recording in by_rank.values():
            for transfer in recording.transfers.get(of_group, ()):
                ends[at, transfer.source, transfer.target, transfer.is_send] = 1
    return {(source, target) for at, source, target, is_send in ends if ends[at, source, target, not is_send]}


# -- who waits for whom ----------------------------------------------------------------------------------


# A graph: a rank points at the call that it stands in, and that at the ranks that it waits for.
Waits = dict[Hashable, set[Hashable]]


def _add(waits: Waits, waiting: Iterable[int], call: Hashable, targets: Iterable[int]) -> None:
    waited_for = set(targets)
    if waited_for:
        waits.setdefault(call, set()).update(waited_for)
        for rank in waiting:
            waits.setdefault(rank, set()).add(call)


def _ends(waits: Waits) -> list[set[int]]:
    """List the ranks at the end of each chain: one rank that does not wait, or the ranks of a circle."""
    return [{node for node in component if isinstance(node, int)} for component in terminal_components(waits)]


def _absences(stalls: Sequence[Stall], unmatched: Sequence[Unmatched]) -> Waits:
    waits: Waits = {}
    for stall in stalls:
        _add(waits, stall.waiting, (stall.group, stall.seq), stall.missing)
    for one in unmatched:
        _add(waits, one.waiting, one, one.missing)
    return waits


def _meetings(waits: Waits, stalls: Sequence[Stall], matched: Iterable[tuple[int, int]]) -> None:
    """Add to a graph those that stand in one call with all others that belong to it: they wait for each other."""
    for stall in stalls:
        if not stall.missing and not (stall.is_stuck and stall.is_on_device):
            _add(waits, stall.waiting, (stall.group, stall.seq), (*stall.waiting, *stall.through))
    for pair in matched:
        _add(waits, pair, pair, pair)


def terminal_components(edges: Mapping[Hashable, Collection[Hashable]]) -> list[set[Hashable]]:
    """Find the sets of nodes that reach each other and nothing else, by Tarjan's algorithm without recursion."""
    number: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    stack: list[Hashable] = []
    component_of: dict[Hashable, int] = {}
    components: list[set[Hashable]] = []
    for root in edges:
        if root in number:
            continue
        path = [(root, iter(edges.get(root, ())))]
        number[root] = low[root] = len(number)
        stack.append(root)
        while path:
            node, targets = path[-1]
            following = next(targets, None)
            if following is not None and following not in number:
                number[following] = low[following] = len(number)
                stack.append(following)
                path.append((following, iter(edges.get(following, ()))))
                continue
            if following is not None:
                if following not in component_of:
                    low[node] = min(low[node], number[following])
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == number[node]:
                component: set[Hashable] = set()
                while node not in component:
                    member = stack.pop()
                    component.add(member)
                    component_of[member] = len(components)
                components.append(component)
    leaving = {
        component_of[node]
        for node, targets in edges.items()
        if any(component_of[target] != component_of[node] for target in targets)
    }
    return [component for at, component in enumerate(components) if at not in leaving]


def _idle(by_rank: Recorded) -> set[int]:
    """Find the ranks that stand in nothing while the job stands still, whether or not one waits for them already.

    Gloo records no sends and receives, so there it proves nothing. Where most ranks are idle it does not either.
    """
    calls = [entry for r in by_rank.values() for of_group in r.entries.values() for entry in of_group]
    idle = {rank for rank, recording in by_rank.items() if recording.stands_at is None}
    if len(idle) * 2 >= len(by_rank) or not all(entry.is_on_device for entry in calls):
        return set()
    return idle


# -- what is said ----------------------------------------------------------------------------------------


def _different(stalls: Sequence[Stall], unheard: Sequence[str]) -> Account:
    odd = tuple(sorted({rank for stall in stalls for rank in outside_most(stall.kinds)}))
    is_shape = len({entry.operation for entry in stalls[0].inside.values()}) == 1
    sentences = [stall.says() for stall in stalls[:EVIDENCE]]
    return Account(CollectiveFault.DIFFERENT, odd, sentences[0], _lines(sentences, unheard), is_shape)


def _blamed(
    absent: Collection[int], stuck: Collection[int], reasons: Sequence[Stall | Unmatched], unheard: Sequence[str]
) -> Account:
    """Make the account of ranks that do not wait, or do not come through. Each rank is named once."""
    texts: dict[str, None] = {}
    left = set(stuck)
    for reason in reasons:
        if isinstance(reason, Stall) and reason.is_stuck and left & {*reason.waiting}:
            ranks = sorted(left & {*reason.waiting})
            texts[reason.says_stuck(ranks)] = None
            left -= {*ranks}
    left = set(absent) - set(stuck)
    for reason in reasons:
        if left & {*reason.missing}:
            texts[reason.says()] = None
            left -= {*reason.missing}
    if left:
        texts[f"{count_ranks(sorted(left))} {plural(len(left), 'stands', 'stand')} in no call at all"] = None
    case = CollectiveFault.STUCK if stuck else CollectiveFault.MISSING
    sentences = list(texts)
    message = "; ".join(sentences[:SAID])
    return Account(case, tuple(sorted({*absent, *stuck})), message, _lines(sentences, unheard))


def _most_waited_for(circles: Iterable[Collection[int]], reasons: Iterable[Stall | Unmatched]) -> Ranks:
    """Find, among ranks that wait for each other, the one that most of them wait for; none where there are several."""
    inside = {rank for ranks in circles for rank in ranks}
    waiters = Counter[int]()
    for reason in reasons:
        for rank in inside.intersection(reason.missing):
            waiters[rank] += len(reason.waiting)
    most = waiters.most_common(2)
    if not most or (len(most) == 2 and most[0][1] == most[1][1]):
        return ()
    return (most[0][0],)


def _lines(sentences: Sequence[str], unheard: Sequence[str]) -> tuple[str, ...]:
    return (*(f"flight recorder: {sentence}" for sentence in sentences[:EVIDENCE]), *unheard)


CONDITION = "Look for a condition on rank or data there"
SAME = f"all ranks of a group must call the same collectives with the same shapes in the same order. {CONDITION}"
PAIRS = "allranks test --hosts … --suite pairs says whether a node or a link is at fault"
NOT_CALLED = (
    "find out what was done there instead: read the log, `dmesg -T` on the node, and while it stands `py-spy dump`"
)
STUCK = (
    "a device, a process or a link has stopped there. Read `dmesg -T` on the node for errors of the device. "
    f"If there are none, {PAIRS}"
)
BEHIND = f"its process or a link to it has stopped, as all ranks had called it. Look at its stack. {PAIRS}"
TOGETHER = f"all ranks have called it, so the network between them is suspect. {PAIRS}"
FEW = 4  # culprits that a mismatch still names
_LATE = {
    CollectiveFault.MISSING: (0.75, NOT_CALLED),
    CollectiveFault.STUCK: (0.75, STUCK),
    CollectiveFault.BEHIND: (0.6, BEHIND),
}


def read_account(recorded: Account, nodes: Mapping[int, str], all_wait: bool = False) -> Candidate:
    """Give cause, sentence and remedy of an account. `nodes` are those of ranks, as far as they are known.

    `all_wait`: the ranks' stacks show that those that have not called it wait for others, too. What made a rank late
    stands in its log, if anywhere, so only a mismatch explains itself.
    """
    late = frozenset(recorded.culprits)
    case = recorded.case
    named = name_by_node(recorded.culprits, lambda rank: nodes.get(rank, ""))
    unlike = f" ({named} unlike most)" if 0 < len(late) < FEW else ""
    called = ""
    if case is CollectiveFault.DIFFERENT:
        called = "a collective with different shapes or types" if recorded.is_shape else "different collectives"
    elif case is CollectiveFault.MISSING and all_wait:
        called = "a different number of collectives"
    if called:
        cause = "collective-shape-mismatch" if recorded.is_shape else "collective-mismatch"
        confidence = 0.9 if case is CollectiveFault.DIFFERENT else 0.8
        words = f"ranks have called {called}: {recorded.message}{unlike}"
        return Candidate(cause, confidence, words, SAME, culprits=late)
    weak = Strength.SYMPTOM
    if case in _LATE:
        confidence, remedy = _LATE[case]
        words = f"the others wait for {named}: {recorded.message}"
        if case is CollectiveFault.BEHIND:
            words += f". a link to {plural(len(late), 'it', 'them')} may be at fault as well"
        return Candidate("straggler", confidence, words, remedy, weak, culprits=late)
    if case is CollectiveFault.ORDER:
        words = f"ranks wait for each other: {recorded.message}{unlike}"
        return Candidate("collective-mismatch", 0.8 if late else 0.7, words, SAME, weak, culprits=late)
    return Candidate("unknown", 0.45, f"{recorded.message}, and none is behind", TOGETHER, weak)
