"""The events of a run → the Incident of one attempt, as it was judged when the run ended (pure).

`gang/evidence.py` builds the same from the gang's memory at the end of a run; error files and the ends of logs are
added by `runs/recorded_incident.py`. Events: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allranks.findings import Finding
from allranks.protocol.codec import decode

from .hangs.attribute import Hang
from .incident import AgentFault, ExitRecord, Incident, Left, LostNode, Pause

LOST_REASON = "nothing was heard for the lease"
COUNTED = ("warn", "fail")  # what is in order is no evidence of a failure
Event = Mapping[str, Any]


def last_attempt(events: Iterable[Event]) -> int:
    """The number of the attempt that was started last."""
    return max((int(e.get("attempt") or 0) for e in events if e.get("event") == "attempt-start"), default=0)


def fold(events: Sequence[Event], attempt: int, nodes: Sequence[str], launcher: str = "direct") -> Incident:
    """`nodes` are those of the attempt by node rank, the master first; exits are without error files and logs."""
    events = [e for e in events if int(e.get("attempt") or 0) <= attempt]
    of_attempt = [e for e in events if e.get("attempt") == attempt]
    plan = _last(events, "plan") or {}
    pids = {int(e["rank"]): int(e["pid"]) for e in _all(of_attempt, "rank-started")}
    facts = {e["node"]: e for e in _all(events, "facts")}
    ranks = _ranks(of_attempt, nodes, launcher)
    hang = _last(of_attempt, "hang")
    failed = _last(of_attempt, "failed") or {}
    stops = [str(e["reason"]) for e in _all(events, "stop-asked")]
    return Incident(
        attempt=attempt,
        world_size=int(plan.get("world_size", 0)),
        ranks_by_node=ranks,
        exits=tuple(_exit(e, pids) for e in _all(of_attempt, "rank-exit")),
        faults=tuple(AgentFault(e["node"], e["id"], e["message"], e["t"]) for e in _all(of_attempt, "fault")),
        lost=tuple(LostNode(e["node"], e["t"], e["last_heard"], LOST_REASON) for e in _all(of_attempt, "node-lost")),
        findings=tuple(Finding.from_json(e) for e in _all(of_attempt, "finding") if e.get("status") in COUNTED),
        initialised=_which(of_attempt, "rank-initialised"),
        init_entered=_which(of_attempt, "rank-entered") | _which(of_attempt, "rank-departed"),
        departed=_departed(of_attempt),
        init_timeout_hit=_last(of_attempt, "init-timeout") is not None,
        hang=decode(Hang, hang) if hang else None,
        stop_reason=next(iter(stops), None),
        started_t=float((_last(of_attempt, "attempt-start") or {}).get("t") or 0.0),
        detected_t=failed.get("t"),
        master="".join(nodes[:1]),
        addresses=own_addresses({node: e.get("addresses") or () for node, e in facts.items()}),
        pids=pids,
        gpus={
            rank: at
            for node, of_node in ranks.items()
            for at, rank in enumerate(of_node)
            if len(of_node) <= int(facts.get(node, {}).get("gpus") or 0)
        },
        left=_left(of_attempt),
        pauses=tuple(Pause(e["t"], e["seconds"], bool(e["slept"])) for e in _all(of_attempt, "launcher-paused")),
        became={int(e["rank"]): str(e["program"]) for e in _all(of_attempt, "rank-became")},
        memory={node: e["memory"] for node, e in facts.items() if e.get("memory")},
    )


def own_addresses(by_node: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Address → node; without those that several nodes have (bridges of containers, virtual nodes)."""
    owners: dict[str, set[str]] = {}
    for node, addresses in by_node.items():
        for address in addresses:
            owners.setdefault(address, set()).add(node)
    return {address: next(iter(nodes)) for address, nodes in owners.items() if len(nodes) == 1}


def _all(events: Iterable[Event], name: str) -> list[Event]:
    return [e for e in events if e.get("event") == name]


def _last(events: Sequence[Event], name: str) -> Event | None:
    return next((e for e in reversed(events) if e.get("event") == name), None)


def _which(events: Iterable[Event], name: str) -> frozenset[int]:
    return frozenset(int(e["rank"]) for e in _all(events, name))


def _departed(events: Iterable[Event]) -> dict[int, float]:
    """Ranks whose last word on their process group is that it is destroyed."""
    last = {int(e["rank"]): e for e in events if e.get("event") in ("rank-entered", "rank-departed")}
    return {rank: e["t"] for rank, e in last.items() if e["event"] == "rank-departed"}


def _left(of_attempt: Sequence[Event]) -> dict[int, Left]:
    """Ranks whose last word is that their program has ended and their process waits."""
    last = {int(e["rank"]): e for e in _all(of_attempt, "rank-leaving")}
    return {rank: Left(e["t"], int(e["code"]), tuple(e["threads"])) for rank, e in last.items() if e["waits"]}


def _ranks(of_attempt: Sequence[Event], nodes: Sequence[str], launcher: str) -> dict[str, tuple[int, ...]]:
    """The plan's ranks by node; of a `command` launcher one a node stands for all, once it is started."""
    plan = _last(of_attempt, "plan")
    if plan is None:
        return dict.fromkeys(nodes, ())
    one = launcher == "command" and _last(of_attempt, "gate-proved") is not None
    by_node = {}
    first = 0
    for node, count in plan["ranks"].items():
        ranks = tuple(range(first, first + count))
        by_node[node] = ranks[:1] if one else ranks
        first += count
    return by_node


def _exit(event: Event, pids: Mapping[int, int]) -> ExitRecord:
    rank = int(event["rank"])
    return ExitRecord(
        rank,
        event["node"],
        event.get("code"),
        event.get("signal"),
        event["t"],
        bool(event.get("expected")),
        int(event.get("attempt") or 0),
        int(event.get("oom_kills") or 0),
        pid=event.get("pid") or pids.get(rank),
    )
