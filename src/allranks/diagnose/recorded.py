"""The events of a run → the Incident of one attempt, as it was judged when the run ended (pure).

Live and saved: `AttemptFacts` has those of a run that goes on, events.jsonl those of one that is over. Error files and
the ends of logs are added by `runs/recorded_incident.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from allranks.findings import Finding
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import ExitMessage, FaultMessage, StartedMessage
from allranks.protocol.run_facts import (
    AttemptStart,
    Fact,
    FailureNoted,
    GateProved,
    HangConcluded,
    HangNoted,
    InitTimeout,
    Kind,
    LauncherPaused,
    NodeFactsKept,
    NodeLost,
    PlanMade,
    RankBecame,
    RankDeparted,
    RankEntered,
    RankInitialised,
    RankLeaving,
    Stamped,
    StopAsked,
    of_kind,
)

from .incident import Incident, RankEnd

# What the Incident of an attempt is made of: facts that hold for the attempts that follow too, and its own.
OF_THE_RUN = (NodeFactsKept, PlanMade, StopAsked)
OF_AN_ATTEMPT = (
    AttemptStart,
    ExitMessage,
    FailureNoted,
    FaultMessage,
    Finding,
    GateProved,
    HangConcluded,
    HangNoted,
    InitTimeout,
    LauncherPaused,
    NodeLost,
    RankBecame,
    RankDeparted,
    RankEntered,
    RankInitialised,
    RankLeaving,
    StartedMessage,
)
OF_AN_INCIDENT = (*OF_THE_RUN, *OF_AN_ATTEMPT)
NOTHING = Incident()
_JOB = r"[A-Za-z0-9][A-Za-z0-9.-]{0,120}"  # it stands in a command to paste, and a node has sent it
COUNTED = ("warn", "fail")  # what is in order is not evidence of a failure


def last_attempt(facts: Iterable[Stamped[Fact]]) -> int:
    """Find the number of the attempt that was started last."""
    return max((start.attempt or 0 for start in of_kind(facts, AttemptStart)), default=0)


class AttemptFacts:
    """The facts of a run that goes on which say something of its present attempt."""

    def __init__(self) -> None:
        self.facts: list[Stamped[Fact]] = []

    def take(self, stamped: Stamped[Fact]) -> None:
        """Keep a fact; of attempts that are over, what holds for later ones too."""
        if isinstance(stamped.fact, AttemptStart):
            self.facts = [
                kept
                for kept in self.facts
                if isinstance(kept.fact, OF_THE_RUN) or (isinstance(kept.fact, Finding) and kept.fact.lasts)
            ]
        if isinstance(stamped.fact, OF_AN_INCIDENT):
            self.facts.append(stamped)


def fold(
    facts: Iterable[Stamped[Fact]],
    attempt: int,
    nodes: Sequence[str],
    one_process: bool = False,
    known: Incident = NOTHING,
) -> Incident:
    """Make the Incident of an attempt from the facts of its run, and what is `known` of the run without them.

    `nodes` are those of the attempt by node rank, the master first; `one_process` of each stands for all of its ranks.
    Exits are without logs. Raise DecodeError where an end does not have its node: another version wrote it.
    """
    so_far = [stamped for stamped in facts if (stamped.attempt or 0) <= attempt]
    of_attempt = [stamped for stamped in so_far if stamped.attempt == attempt]
    ends = list(of_kind(of_attempt, ExitMessage))
    if any(not end.node for end in ends):
        raise DecodeError("events: expected the node of each end, got none")
    plan = newest(of_kind(so_far, PlanMade))
    started = newest(of_kind(of_attempt, AttemptStart))
    failed = newest(of_kind(of_attempt, FailureNoted))
    hang = newest(of_kind(of_attempt, HangConcluded))
    noted = newest(of_kind(of_attempt, HangNoted))
    stopped = next(of_kind(so_far, StopAsked), None)
    pids = {start.fact.rank: start.fact.pid for start in of_kind(of_attempt, StartedMessage) if start.fact.pid}
    kept = {one.node: one.fact for one in of_kind(so_far, NodeFactsKept)}
    ranks = _ranks(of_attempt, nodes, one_process)
    last_left = {leaving.fact.rank: leaving for leaving in of_kind(of_attempt, RankLeaving)}
    last_joined = {s.fact.rank: s for s in of_attempt if isinstance(s.fact, (RankEntered, RankDeparted))}
    departed = {one.fact.rank: one for one in of_kind(last_joined.values(), RankDeparted)}
    return replace(
        known,
        attempt=attempt,
        world_size=0 if plan is None else plan.fact.world_size,
        ranks_by_node=ranks,
        exits=tuple(_exit(end, pids) for end in ends),
        faults=tuple(of_kind(of_attempt, FaultMessage)),
        lost=tuple(of_kind(of_attempt, NodeLost)),
        findings=tuple(_findings(so_far, attempt)),
        initialised=frozenset(one.fact.rank for one in of_kind(of_attempt, RankInitialised)),
        init_entered=frozenset(last_joined),
        departed=departed,
        init_timeout_hit=any(of_kind(of_attempt, InitTimeout)),
        hang=None if hang is None else hang.fact.hang,
        noted=noted,
        stop_reason=None if stopped is None else stopped.fact.reason,
        started_t=0.0 if started is None else started.t,
        detected_t=None if failed is None else failed.t,
        master="".join(nodes[:1]),
        addresses=own_addresses({node: facts.addresses for node, facts in kept.items()}),
        pids=pids,
        gpus=_gpus(ranks, kept),
        left={rank: one for rank, one in last_left.items() if one.fact.waits},
        pauses=tuple(of_kind(of_attempt, LauncherPaused)),
        became={one.fact.rank: one.fact.program for one in of_kind(of_attempt, RankBecame)},
        memory={node: facts.memory for node, facts in kept.items() if facts.memory},
        deepspeed=next((facts.deepspeed for facts in kept.values() if facts.deepspeed), {}),
        schedulers={node: facts.scheduler for node, facts in kept.items() if facts.scheduler},
        jobs={node: facts.job for node, facts in kept.items() if re.fullmatch(_JOB, facts.job)},
    )


def _findings(so_far: Iterable[Stamped[Fact]], attempt: int) -> Iterator[Finding]:
    for found in of_kind(so_far, Finding):
        if found.fact.status in COUNTED and (found.attempt == attempt or found.fact.lasts):
            yield found.fact


def _gpus(ranks: Mapping[str, Sequence[int]], kept: Mapping[str, NodeFactsKept]) -> dict[int, int]:
    """Map ranks to the GPUs that they take by their local numbers, on nodes that have enough."""
    enough = [of_node for node, of_node in ranks.items() if node in kept and len(of_node) <= kept[node].gpus]
    return {rank: at for of_node in enough for at, rank in enumerate(of_node)}


def newest(facts: Iterable[Stamped[Kind]]) -> Stamped[Kind] | None:
    """Give the last of some facts; None where there is none."""
    return next(iter([*facts][-1:]), None)


def own_addresses(by_node: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Map addresses to nodes, without those that several nodes have (bridges of containers, virtual nodes)."""
    owners: dict[str, set[str]] = {}
    for node, addresses in by_node.items():
        for address in addresses:
            owners.setdefault(address, set()).add(node)
    return {address: next(iter(nodes)) for address, nodes in owners.items() if len(nodes) == 1}


def _ranks(of_attempt: Sequence[Stamped[Fact]], nodes: Sequence[str], one_process: bool) -> dict[str, tuple[int, ...]]:
    """Give the plan's ranks by node; where `one_process` stands for all of a node, its first, once it is started.

    All of them where a hang names another: a script has started those of the plan."""
    plan = newest(of_kind(of_attempt, PlanMade))
    if plan is None:
        return dict.fromkeys(nodes, ())
    by_node = {node: tuple(ranks) for node, ranks in plan.fact.dealt.items()}
    alone = {node: ranks[:1] for node, ranks in by_node.items()}
    hang = newest(of_kind(of_attempt, HangConcluded))
    is_named = hang is not None and not set(hang.fact.hang.culprits).issubset(itertools.chain(*alone.values()))
    is_one = one_process and any(of_kind(of_attempt, GateProved)) and not is_named
    return alone if is_one else by_node


def _exit(end: Stamped[ExitMessage], pids: Mapping[int, int]) -> RankEnd:
    return RankEnd(end.node, end.t, end.fact._replace(pid=end.fact.pid or pids.get(end.fact.rank)))
