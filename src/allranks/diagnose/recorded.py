"""The events of a run → the Incident of one attempt, as it was judged when the run ended (pure).

`gang/evidence.py` builds the same from the gang's memory at the end of a run; error files and the ends of logs are
added by `runs/recorded_incident.py`. Events: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.findings import Finding
from allranks.protocol.codec import DecodeError, decode, decode_each, decode_parts
from allranks.protocol.jsontext import Json

from .hangs.attribute import Hang
from .incident import AgentFault, ExitRecord, Incident, Left, LostNode, NotedHang, Pause

COUNTED = ("warn", "fail")  # what is in order is not evidence of a failure


@dataclass(frozen=True)
class RunEvent:
    """What a judge takes of a line of events.jsonl; what is absent there has its default."""

    event: str = ""
    attempt: int | None = None
    t: float = 0.0
    node: str = ""
    rank: int = -1
    reason: str = ""
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    expected: bool = False
    oom_kills: int = 0
    waits: bool = False
    threads: tuple[str, ...] = ()
    program: str = ""
    world_size: int = 0
    ranks: Mapping[str, int] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    gpus: int = 0
    memory: int = 0
    quiet: float = 0.0
    deepspeed: Mapping[str, int] = field(default_factory=dict)
    at: str = ""


def last_attempt(lines: Iterable[Json]) -> int:
    """Find the number of the attempt that was started last."""
    events = [decode_parts(RunEvent, line) for line in lines]
    return max((event.attempt or 0 for event in _all(events, "attempt-start")), default=0)


def fold(lines: Iterable[Json], attempt: int, nodes: Sequence[str], launcher: str = "direct") -> Incident:
    """Make the Incident of an attempt from the events; exits are without error files and logs.

    `nodes` are those of the attempt by node rank, the master first. Raise DecodeError where an end does not have its
    node and time: another version wrote the events.
    """
    read = [(decode_parts(RunEvent, line), line) for line in lines]
    events = [event for event, _ in read if (event.attempt or 0) <= attempt]
    of_attempt = [event for event in events if event.attempt == attempt]
    lines_of: dict[str, list[Json]] = {}
    for event, line in read:
        if event.attempt == attempt:
            lines_of.setdefault(event.event, []).append(line)
    if any(not event.node for event in _all(of_attempt, "rank-exit")):
        raise DecodeError("events: expected the node of each end, got none")
    plan = (_all(events, "plan") or [RunEvent()])[-1]
    started = (_all(of_attempt, "attempt-start") or [RunEvent()])[-1]
    pids = {e.rank: e.pid for e in _all(of_attempt, "rank-started") if e.pid is not None}
    facts = {e.node: e for e in _all(events, "facts")}
    ranks = _ranks(of_attempt, nodes, launcher)
    last_left = {e.rank: e for e in _all(of_attempt, "rank-leaving")}
    last_joined = {e.rank: e for e in _all(of_attempt, "rank-entered", "rank-departed")}
    return Incident(
        attempt=attempt,
        world_size=plan.world_size,
        ranks_by_node=ranks,
        exits=tuple(_exit(e, pids) for e in _all(of_attempt, "rank-exit")),
        faults=decode(tuple[AgentFault, ...], lines_of.get("fault", [])),
        lost=decode(tuple[LostNode, ...], lines_of.get("node-lost", [])),
        findings=tuple(
            finding for finding in decode_each(Finding, lines_of.get("finding")) if finding.status in COUNTED
        ),
        initialised=frozenset(e.rank for e in _all(of_attempt, "rank-initialised")),
        init_entered=frozenset(last_joined),
        departed={rank: e.t for rank, e in last_joined.items() if e.event == "rank-departed"},
        departed_at={rank: e.at for rank, e in last_joined.items() if e.event == "rank-departed" and e.at},
        init_timeout_hit=bool(_all(of_attempt, "init-timeout")),
        hang=next(iter(decode_each(Hang, lines_of.get("hang", [])[-1:])), None),
        noted=_noted(_all(of_attempt, "hang-noted"), lines_of.get("hang-noted", [])),
        stop_reason=next((e.reason for e in _all(events, "stop-asked")), None),
        started_t=started.t,
        detected_t=next((e.t for e in reversed(_all(of_attempt, "failed"))), None),
        master="".join(nodes[:1]),
        addresses=own_addresses({node: e.addresses for node, e in facts.items()}),
        pids=pids,
        gpus={
            rank: at
            for node, of_node in ranks.items()
            for at, rank in enumerate(of_node)
            if node in facts and len(of_node) <= facts[node].gpus
        },
        left={rank: Left(e.t, e.code or 0, e.threads) for rank, e in last_left.items() if e.waits},
        pauses=tuple(decode_each(Pause, lines_of.get("launcher-paused"))),
        became={e.rank: e.program for e in _all(of_attempt, "rank-became")},
        memory={node: e.memory for node, e in facts.items() if e.memory},
        deepspeed=next((e.deepspeed for e in facts.values() if e.deepspeed), {}),
    )


def own_addresses(by_node: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Map addresses to nodes, without those that several nodes have (bridges of containers, virtual nodes)."""
    owners: dict[str, set[str]] = {}
    for node, addresses in by_node.items():
        for address in addresses:
            owners.setdefault(address, set()).add(node)
    return {address: next(iter(nodes)) for address, nodes in owners.items() if len(nodes) == 1}


def _all(events: Iterable[RunEvent], *kinds: str) -> list[RunEvent]:
    return [event for event in events if event.event in kinds]


def _ranks(of_attempt: Sequence[RunEvent], nodes: Sequence[str], launcher: str) -> dict[str, tuple[int, ...]]:
    """Give the plan's ranks by node; of a `command` launcher one a node stands for all, once it is started."""
    plans = _all(of_attempt, "plan")
    if not plans:
        return dict.fromkeys(nodes, ())
    is_one = launcher == "command" and bool(_all(of_attempt, "gate-proved"))
    by_node = {}
    first = 0
    for node, count in plans[-1].ranks.items():
        ranks = tuple(range(first, first + count))
        by_node[node] = ranks[:1] if is_one else ranks
        first += count
    return by_node


def _noted(events: Sequence[RunEvent], lines: Sequence[Json]) -> NotedHang | None:
    """Read the newest standstill with which the run went on."""
    for hang in decode_each(Hang, lines[-1:]):
        return NotedHang(events[-1].t, events[-1].quiet, hang)
    return None


def _exit(event: RunEvent, pids: Mapping[int, int]) -> ExitRecord:
    return ExitRecord(
        event.rank,
        event.node,
        event.code,
        event.signal,
        event.t,
        event.expected,
        event.attempt or 0,
        event.oom_kills,
        pid=event.pid or pids.get(event.rank),
    )
