"""Hangs of simulated jobs with tensor, pipeline and data parallel groups: the ranks that stop are named, no other."""

import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.diagnose.hangs.test_recorder import answer, entry

from allranks.diagnose.hangs.frontier import account, terminal_components
from allranks.diagnose.hangs.recorder import read_recording

Call = tuple[str, str]  # a group, and what is called there


@dataclass
class Job:
    """Ranks are numbered by stage, then by replica, then within the tensor-parallel group; all calls block."""

    tensor: int
    stages: int
    replicas: int
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        per_stage = self.tensor * self.replicas
        self.groups["0"] = tuple(range(per_stage * self.stages))
        for rank in self.groups["0"]:
            stage, place = divmod(rank, per_stage)
            self.groups.setdefault(f"tp-{rank // self.tensor}", ())
            self.groups[f"tp-{rank // self.tensor}"] += (rank,)
            self.groups[f"pp-{place}"] = tuple(at * per_stage + place for at in range(self.stages))
            same = tuple(stage * per_stage + at * self.tensor + rank % self.tensor for at in range(self.replicas))
            self.groups[f"dp-{stage}-{rank % self.tensor}"] = same

    def calls(self, rank: int, steps: int) -> list[Call]:
        """What a rank calls: two micro-batches and the gradients a step, at the end a barrier."""
        per_stage = self.tensor * self.replicas
        stage, place = divmod(rank, per_stage)
        tensor_group = f"tp-{rank // self.tensor}"
        micro: list[Call] = [(tensor_group, "all_reduce")]
        if stage > 0:
            micro.insert(0, (f"pp-{place}", f"recv {stage}<-{stage - 1}"))
        if stage < self.stages - 1:
            micro.append((f"pp-{place}", f"send {stage}->{stage + 1}"))
        gradients = (f"dp-{stage}-{rank % self.tensor}", "all_reduce")
        return [*[*micro, *micro, gradients] * steps, ("0", "barrier")]


def run(job: Job, stops: dict[int, int], steps: int = 3) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Let every rank go as far as it comes; those in `stops` stop before that call.

    Return what their recorders have, and those that have come to where they stop.
    """
    calls = {rank: job.calls(rank, steps) for rank in job.groups["0"]}
    at = dict.fromkeys(calls, 0)
    moves = True
    while moves:
        moves = False
        for rank, own in calls.items():
            if at[rank] == len(own) or at[rank] == stops.get(rank):
                continue
            partners = _partners(job, own[at[rank]])
            if all(_has_reached(calls, at, stops, partner, rank) for partner in partners):
                for partner in partners:
                    at[partner] += 1
                moves = True
    stopped = tuple(rank for rank in calls if at[rank] == stops.get(rank))
    return [_recorded(job, rank, own, at[rank], stops) for rank, own in calls.items()], stopped


def _partners(job: Job, call: Call) -> tuple[int, ...]:
    group, what = call
    if " " not in what:
        return job.groups[group]
    ends = sorted(int(end) for end in what.partition(" ")[2].replace("<-", "->").split("->"))
    return tuple(job.groups[group][end] for end in ends)


def _has_reached(
    calls: dict[int, list[Call]], at: dict[int, int], stops: dict[int, int], partner: int, rank: int
) -> bool:
    """All calls of one meeting stand at the same moment: each partner waits in the call that belongs to it."""
    if at[partner] == stops.get(partner) or at[partner] == len(calls[partner]):
        return False
    group, what = calls[partner][at[partner]]
    own_group, own = calls[rank][at[rank]]
    both = {own.partition(" ")[0], what.partition(" ")[0]}
    if group != own_group or (partner != rank and " " in own and both != {"send", "recv"}):
        return False
    ends = {frozenset(one.partition(" ")[2].replace("<-", "->").split("->")) for one in (own, what)}
    return len(ends) == 1 or partner == rank


def _recorded(job: Job, rank: int, calls: list[Call], reached: int, stops: dict[int, int]) -> dict[str, Any]:
    numbers = Counter[str]()
    entries = []
    last = reached if rank in stops and stops[rank] == reached else reached + 1
    for order, (group, what) in enumerate(calls[:last]):
        is_transfer = " " in what
        numbers[group] += not is_transfer
        entries.append(entry(numbers[group], order < reached, what, "nccl", group=group, is_p2p=is_transfer,
                             record_id=order, p2p_seq_id=order))  # fmt: skip
    return answer(*entries, groups={name: ranks for name, ranks in job.groups.items() if rank in ranks})


def judged(job: Job, stops: dict[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that are named, and those that have stopped."""
    recorders, stopped = run(job, stops)
    found = account([read_recording(rank, one) for rank, one in enumerate(recorders)])
    assert found is not None
    return found.culprits, stopped


def hangs(count: int, culprits: int) -> list[tuple[Job, dict[int, int]]]:
    """Jobs of 4 to 32 ranks in which ranks stop, each before one of its own calls."""
    chance = random.Random(7)
    made = []
    for _ in range(count):
        job = Job(chance.choice((1, 2, 4)), chance.choice((1, 2, 4)), chance.choice((1, 2)))
        if len(job.groups["0"]) < 4:
            continue
        ranks = chance.sample(job.groups["0"], culprits)
        made.append((job, {rank: chance.randrange(len(job.calls(rank, 3))) for rank in ranks}))
    return made


def test_a_job_in_which_no_rank_stops_ends() -> None:
    for job, _ in hangs(10, 1):
        found = account([read_recording(rank, one) for rank, one in enumerate(run(job, {})[0])])
        assert found is None


def test_half_of_32768_ranks_wait_for_the_others() -> None:
    """As many ends as waiters: a search from each end through all that wait for it takes minutes."""
    waits: dict[Hashable, set[Hashable]] = {rank: {"all_reduce"} for rank in range(1 << 14)}
    absent = set[Hashable](range(1 << 14, 1 << 15))
    waits["all_reduce"] = absent
    assert sorted(map(repr, terminal_components(waits))) == sorted(repr({rank}) for rank in absent)


@pytest.mark.parametrize("at", range(60))
def test_the_rank_that_stops_is_named(at: int) -> None:
    job, stops = hangs(200, 1)[at]
    assert judged(job, stops) == (tuple(stops), tuple(stops)), (job, stops)


@pytest.mark.parametrize("at", range(60))
def test_of_ranks_that_stop_no_other_is_named(at: int) -> None:
    """One may stop where no other has come to wait for it. All are named, but where that is most of the job."""
    job, stops = hangs(200, 3)[at]
    named, stopped = judged(job, stops)
    assert named and set(named) <= set(stopped), (job, stops)
    assert named == stopped or len(job.groups["0"]) <= 2 * len(stopped), (job, stops)
