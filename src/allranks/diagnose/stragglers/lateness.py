"""Who comes late to collectives, by how much and since when, from the times of the calls of all ranks (pure).

A rank is late by the time from the call of the usual rank (the median) to its own. A step is what repeats in the order
of the calls, and a rank's lateness of a step is its greatest in it: a data loader delays one call of many. Medians
over steps are compared, so one long step (a checkpoint, an evaluation) counts for nothing.

On a device (NCCL) the time of a call is when it was queued, while the device may have other work. There the end is
common to all ranks, and the device of a rank came to a collective as long before it as it was in the collective: that
is measured by the device itself (TORCH_NCCL_ENABLE_TIMING), and no clocks are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.protocol.samples import GroupCalls, RankCalls
from allranks.text import group

WARM_UP = 4  # first collectives of a group, which include the start of libraries
LEAST_STEPS = 12  # of a window that is judged
BLOCK = 4  # steps whose mean is judged where no rank is late at every step
MOST_BLOCKS = 16
MOST_STEPS = 48  # the newest of them: a change must not need half an hour
LEAST_BEFORE = 6  # steps before a change
LEAST = 0.003  # seconds of lateness: less is the noise of schedulers
SHARE = 0.1  # of a step: a rank that costs less is not worth a warning
STEADY = 0.7  # of the steps at which a straggler is late
APART = 0.5  # of the top's lateness that the other ranks do not reach
LIKE_TOP = 0.6  # of the top's lateness from which a rank of its node is late with it
CHANGED = 0.85  # probability that a step after the change is later than one before
WAITED = 0.75  # of a wait that lies before the next call: clocks differ a little
LONGEST_PERIOD = 64  # collectives of a step


class GroupKey(NamedTuple):
    """A process group: two of one name may have other ranks."""

    name: str
    size: int
    first: int


class ClockEstimate(NamedTuple):
    """A node's clock: `offset` is ahead of ours, known to `error` seconds either way."""

    offset: float = 0.0
    error: float = 0.0


class GroupStep(NamedTuple):
    """One step of a group: when the usual rank began it (our clock), its first collective, how late each rank was.

    `seconds` to the next step; `waits` is for how long the usual rank waited for each rank.
    """

    t: float
    sequence: int
    late: Mapping[int, float]
    waits: Mapping[int, float]
    seconds: float
    calls: int = 1  # collectives of the step


@dataclass
class GroupHistory:
    """The steps of a group so far; old ones are thinned out, so the beginning stays known."""

    operation: str = ""
    steps: list[GroupStep] = field(default_factory=list)

    def add(self, fresh: Sequence[GroupStep], operation: str, most: int) -> None:
        """Add the steps that are newer than those known."""
        newest = self.steps[-1].sequence if self.steps else -1
        self.operation = operation
        self.steps += [step for step in fresh if step.sequence > newest]
        while len(self.steps) > most:
            half = len(self.steps) // 2
            self.steps = self.steps[:half:2] + self.steps[half:]


class Straggler(NamedTuple):
    """Ranks of one node that the others of a group wait for.

    `late` in seconds, the median; `share` of the time for which the usual rank waits; `steady`: share of steps at
    which they are late. `since_t` is the time of the change, None where they were late from the first known step on.
    """

    ranks: tuple[int, ...]
    late: float
    steady: float
    steps: int
    period: float
    share: float = 0.0
    key: GroupKey = GroupKey("", 0, 0)
    operation: str = ""
    since_t: float | None = None
    before: float = 0.0
    calls_of_step: int = 1
    is_mean: bool = False  # not at every step, but on average over a few

    @property
    def top(self) -> int:
        """The latest of them."""
        return self.ranks[0]


# -- reading -------------------------------------------------------------------------------------------


def read_steps(
    calls: Mapping[int, RankCalls], clocks: Mapping[int, ClockEstimate]
) -> dict[GroupKey, tuple[str, list[GroupStep]]]:
    """Give the steps of each group that two ranks or more have answered for, with the name of its usual operation."""
    groups: dict[GroupKey, dict[int, tuple[RankCalls, GroupCalls]]] = {}
    for rank, of_rank in calls.items():
        for one in of_rank.groups:
            is_whole = len(one.sequence) == len(one.created) == len(one.kind)
            if rank in clocks and is_whole:
                groups.setdefault(GroupKey(one.name, one.size, one.first), {})[rank] = (of_rank, one)
    read = {}
    for key, members in groups.items():
        if len(members) >= 2:
            steps = _steps_of(members, clocks)
            if steps:
                read[key] = (_usual_operation(members), steps)
    return read


def _usual_operation(members: Mapping[int, tuple[RankCalls, GroupCalls]]) -> str:
    one = next(iter(members.values()))[1]
    names = group((one.kinds[at] for at in one.kind if at < len(one.kinds)), lambda kind: kind.partition(" ")[0])
    return max(names, key=lambda name: len(names[name]), default="collective")


def _steps_of(
    members: Mapping[int, tuple[RankCalls, GroupCalls]], clocks: Mapping[int, ClockEstimate]
) -> list[GroupStep]:
    calls = {rank: _calls(*of_rank, clocks[rank]) for rank, of_rank in members.items()}
    if any(one.on_device for _, one in members.values()):
        durations = {  # of what the device has done
            rank: {n: duration / 1e6 for n, duration in zip(one.sequence, one.duration, strict=False) if duration}
            for rank, (_, one) in members.items()
        }
        calls = _device_arrivals(calls, durations)
    common = sorted(set.intersection(*map(set, calls.values())))
    common = [number for number in common if number > WARM_UP]
    if len(common) < 2:
        return []
    one = next(iter(members.values()))[1]
    kinds = dict(zip(one.sequence, one.kind, strict=True))
    period = _period([kinds[number] for number in common])
    usual = {number: middle([of_rank[number] for of_rank in calls.values()]) for number in common}
    steps = []
    for at in range(0, len(common) - period, period):
        numbers = common[at : at + period]
        late: dict[int, float] = {}
        waits: dict[int, float] = {}
        for rank, of_rank in calls.items():
            late[rank] = max(of_rank[number] - usual[number] for number in numbers)
            waited = 0.0
            for offset, number in enumerate(numbers):
                wait = max(0.0, of_rank[number] - usual[number])
                until_next = usual[common[at + offset + 1]] - usual[number]
                if until_next >= WAITED * wait:  # else the usual rank went on without it
                    waited += wait
            waits[rank] = waited
        seconds = usual[common[at + period]] - usual[numbers[0]]
        steps.append(GroupStep(usual[numbers[0]], numbers[0], late, waits, seconds, period))
    return steps


def _calls(calls: RankCalls, one: GroupCalls, clock: ClockEstimate) -> dict[int, float]:
    start = calls.base - clock.offset
    return {number: start + created / 1e6 for number, created in zip(one.sequence, one.created, strict=True)}


def _device_arrivals(
    queued: Mapping[int, Mapping[int, float]], durations: Mapping[int, Mapping[int, float]]
) -> dict[int, dict[int, float]]:
    """Give when the device of each rank came to each collective that all have done.

    The last to queue it and the shortest stay bound its end from below. An error of that is the same for all ranks.
    """
    arrivals: dict[int, dict[int, float]] = {rank: {} for rank in queued}
    for number in set.intersection(*map(set, durations.values())):
        stays = {rank: of_rank[number] for rank, of_rank in durations.items()}
        end = max(of_rank[number] for of_rank in queued.values()) + min(stays.values())
        for rank, stay in stays.items():
            arrivals[rank][number] = end - stay
    return arrivals


def middle(values: Iterable[float]) -> float:
    """Give the median, the lower of two in the middle; 0 without any. The statistics module costs 10 ms of import."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[(len(ordered) - 1) // 2]


def _period(kinds: Sequence[int]) -> int:
    for period in range(1, min(LONGEST_PERIOD, len(kinds) // 3) + 1):
        pairs = len(kinds) - period
        same = sum(kinds[at] == kinds[at + period] for at in range(pairs))
        if same >= 0.97 * pairs:
            return period
    return 1


# -- judging -------------------------------------------------------------------------------------------


def lateness(steps: Sequence[GroupStep]) -> dict[int, float]:
    """Give the median lateness of each rank over the newest steps, in seconds, never below 0."""
    recent = steps[-MOST_STEPS:]
    if len(recent) < 2:
        return {}
    return {rank: max(0.0, middle(step.late.get(rank, 0.0) for step in recent)) for rank in recent[-1].late}


def find_straggler(
    key: GroupKey, history: GroupHistory, fresh: int, node_of: Mapping[int, str], clocks: Mapping[int, ClockEstimate]
) -> Straggler | None:
    """Find the ranks that the others wait for in the newest steps; None where no rank stands out.

    `fresh` is the number of steps since the last look: as many are judged, within bounds. Ranks that are late
    together are a straggler where one node has them all. Where none is late at every step, means of some steps are
    judged: a quota stops a rank every other step.
    """
    steps = history.steps
    straggler = _judge(steps, fresh, node_of, clocks)
    if straggler is None:
        blocks = [_mean(steps[at : at + BLOCK]) for at in range(len(steps) % BLOCK, len(steps), BLOCK)]
        straggler = _judge(blocks, min(fresh // BLOCK, MOST_BLOCKS), node_of, clocks)
        if straggler is None:
            return None
        straggler = straggler._replace(is_mean=True)
    return straggler._replace(key=key, operation=history.operation)


def _mean(steps: Sequence[GroupStep]) -> GroupStep:
    ranks = steps[-1].late
    late = {rank: sum(max(0.0, step.late.get(rank, 0.0)) for step in steps) / len(steps) for rank in ranks}
    waits = {rank: sum(step.waits.get(rank, 0.0) for step in steps) / len(steps) for rank in ranks}
    return steps[0]._replace(late=late, waits=waits, seconds=sum(step.seconds for step in steps) / len(steps))


def _judge(
    steps: Sequence[GroupStep], fresh: int, node_of: Mapping[int, str], clocks: Mapping[int, ClockEstimate]
) -> Straggler | None:
    recent = steps[-max(LEAST_STEPS, min(fresh, MOST_STEPS)) :]
    if len(recent) < LEAST_STEPS:
        return None
    late = lateness(recent)
    period = middle(step.seconds for step in recent)
    ranked = sorted(late, key=lambda rank: -late[rank])
    if not ranked or period <= 0:  # clocks that were set back leave no step that took time
        return None
    top = ranked[0]
    node = node_of.get(top, "")
    with_top = [rank for rank in ranked if late[rank] >= LIKE_TOP * late[top] and node and node_of.get(rank) == node]
    culprits = [rank for rank in ranked if rank == top or rank in with_top]
    rest = [rank for rank in ranked if rank not in culprits]
    errors = {rank: clock.error for rank, clock in clocks.items()}
    clock_error = errors.get(top, 0.0) + middle(errors[rank] for rank in rest if rank in errors)
    floor = max(LEAST, SHARE * period, 2 * clock_error)
    if not rest or len(culprits) * 2 > len(ranked) or late[top] < floor:
        return None
    if max(late[rank] for rank in rest) > APART * late[top]:
        return None
    steady = sum(_leads(step, culprits, late[top] / 2) for step in recent) / len(recent)
    if steady < STEADY:
        return None
    straggler = Straggler(tuple(culprits), late=late[top], steady=steady, steps=len(recent), period=period)
    straggler = _with_change(straggler, steps, floor)
    since = [step for step in recent if straggler.since_t is None or step.t >= straggler.since_t] or recent
    return straggler._replace(share=_share(since, top), calls_of_step=recent[-1].calls)


def _leads(step: GroupStep, culprits: Sequence[int], least: float) -> bool:
    """Tell whether the last to come is one of them, and late."""
    last = max(step.late, key=lambda rank: step.late[rank], default=-1)
    return last in culprits and step.late[last] >= least


def _share(steps: Sequence[GroupStep], rank: int) -> float:
    """Give the share of the time for which the usual rank waits for a rank.

    Of a step counts at most the median of all, twice: single long ones are none of a straggler's.
    """
    waits = [step.waits.get(rank, 0.0) for step in steps]
    most = 2 * middle(waits)
    total = sum(step.seconds for step in steps)
    if total > 0:
        return min(1.0, sum(min(wait, most) for wait in waits) / total)
    return 0.0


def _with_change(found: Straggler, steps: Sequence[GroupStep], floor: float) -> Straggler:
    """Add when the rank became late, where it was not so from the first known step on."""
    measured = [step for step in steps if found.top in step.late]
    values = [step.late[found.top] for step in measured]
    at = change_point(values)
    if at is None:
        return found
    before = middle(values[:at])
    after = middle(values[at:])
    if after - before < floor or before > APART * after:
        return found
    return found._replace(since_t=measured[at].t, before=max(0.0, before))


def change_point(values: Sequence[float]) -> int | None:
    """Find where a series becomes greater: the index of the first greater value; None where it does not.

    Pettitt's test (Applied Statistics 28, 1979) on ranks finds the place. The two sides count as different where a
    value behind it is greater than one before with a probability of CHANGED (the Mann-Whitney statistic).
    """
    n = len(values)
    order = sorted(range(n), key=lambda at: values[at])
    ranks = [0.0] * n
    for position, at in enumerate(order):
        ranks[at] = position + 1.0
    total = 0.0
    best = 0.0
    best_at: int | None = None
    for at in range(n - 1):
        total += ranks[at]
        statistic = (at + 1) * (n + 1) - 2 * total  # positive where what follows is greater
        enough = at + 1 >= LEAST_BEFORE and n - at - 1 >= LEAST_STEPS // 2
        if enough and statistic > best:
            best = statistic
            best_at = at + 1
    if best_at is None:
        return None
    behind = n - best_at
    sum_before = sum(ranks[:best_at])
    greater = best_at * behind - (sum_before - best_at * (best_at + 1) / 2)
    if greater / (best_at * behind) < CHANGED:
        return None
    return best_at
