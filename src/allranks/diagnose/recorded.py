"""The events of a run → the Incident of one attempt, as it was judged when the run ended (pure).

`gang/evidence.py` builds the same from the gang's memory at the end of a run; error files and the ends of logs are
added by `runs/recorded_incident.py`. Events: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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

from .incident import AgentFault, ExitRecord, Incident, Left, LostNode, NotedHang, Pause

COUNTED = ("warn", "fail")  # what is in order is not evidence of a failure


def last_attempt(facts: Iterable[Stamped[Fact]]) -> int:
    """Find the number of the attempt that was started last."""
    return max((start.attempt or 0 for start in of_kind(facts, AttemptStart)), default=0)


def fold(facts: Iterable[Stamped[Fact]], attempt: int, nodes: Sequence[str], launcher: str = "direct") -> Incident:
    """Make the Incident of an attempt from the facts of its run; exits are without error files and logs.

    `nodes` are those of the attempt by node rank, the master first. Raise DecodeError where an end does not have its
    node: another version wrote it.
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
    known = {kept.node: kept.fact for kept in of_kind(so_far, NodeFactsKept)}
    ranks = _ranks(of_attempt, nodes, launcher)
    last_left = {leaving.fact.rank: leaving for leaving in of_kind(of_attempt, RankLeaving)}
    last_joined = {s.fact.rank: s for s in of_attempt if isinstance(s.fact, (RankEntered, RankDeparted))}
    departed = {one.fact.rank: one for one in of_kind(last_joined.values(), RankDeparted)}
    return Incident(
        attempt=attempt,
        world_size=0 if plan is None else plan.fact.world_size,
        ranks_by_node=ranks,
        exits=tuple(_exit(end, pids) for end in ends),
        faults=tuple(AgentFault(f.node, f.fact.id, f.fact.message, f.t) for f in of_kind(of_attempt, FaultMessage)),
        lost=tuple(LostNode(lost.node, lost.t, lost.fact.last_heard) for lost in of_kind(of_attempt, NodeLost)),
        findings=tuple(f.fact for f in of_kind(of_attempt, Finding) if f.fact.status in COUNTED),
        initialised=frozenset(one.fact.rank for one in of_kind(of_attempt, RankInitialised)),
        init_entered=frozenset(last_joined),
        departed={rank: one.t for rank, one in departed.items()},
        departed_at={rank: one.fact.at for rank, one in departed.items() if one.fact.at},
        init_timeout_hit=any(of_kind(of_attempt, InitTimeout)),
        hang=None if hang is None else hang.fact.hang,
        noted=None if noted is None else NotedHang(noted.t, noted.fact.quiet, noted.fact.hang),
        stop_reason=None if stopped is None else stopped.fact.reason,
        started_t=0.0 if started is None else started.t,
        detected_t=None if failed is None else failed.t,
        master="".join(nodes[:1]),
        addresses=own_addresses({node: facts.addresses for node, facts in known.items()}),
        pids=pids,
        gpus={
            rank: at
            for node, of_node in ranks.items()
            for at, rank in enumerate(of_node)
            if node in known and len(of_node) <= known[node].gpus
        },
        left={r: Left(one.t, one.fact.code, one.fact.threads) for r, one in last_left.items() if one.fact.waits},
        pauses=tuple(Pause(p.t, *p.fact) for p in of_kind(of_attempt, LauncherPaused)),
        became={one.fact.rank: one.fact.program for one in of_kind(of_attempt, RankBecame)},
        memory={node: facts.memory for node, facts in known.items() if facts.memory},
        deepspeed=next((facts.deepspeed for facts in known.values() if facts.deepspeed), {}),
    )


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


def _ranks(of_attempt: Sequence[Stamped[Fact]], nodes: Sequence[str], launcher: str) -> dict[str, tuple[int, ...]]:
    """Give the plan's ranks by node; of a `command` launcher one a node stands for all, once it is started."""
    plan = newest(of_kind(of_attempt, PlanMade))
    if plan is None:
        return dict.fromkeys(nodes, ())
    is_one = launcher == "command" and any(of_kind(of_attempt, GateProved))
    by_node = {}
    first = 0
    for node, count in plan.fact.ranks.items():
        ranks = tuple(range(first, first + count))
        by_node[node] = ranks[:1] if is_one else ranks
        first += count
    return by_node


def _exit(end: Stamped[ExitMessage], pids: Mapping[int, int]) -> ExitRecord:
    fact = end.fact
    return ExitRecord(
        fact.rank,
        end.node,
        fact.code,
        fact.signal,
        end.t,
        fact.expected,
        end.attempt or 0,
        fact.oom_kills,
        pid=fact.pid or pids.get(fact.rank),
    )
