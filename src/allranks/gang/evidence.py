"""What a finished attempt left, put together as an Incident and judged (reads log tails)."""

from __future__ import annotations

from allranks.diagnose.incident import ExitRecord, Fault, Incident, LostNode
from allranks.diagnose.recorded import LOST_REASON, own_addresses
from allranks.diagnose.verdict import judge
from allranks.findings import Verdict
from allranks.plan.interfaces import addresses
from allranks.runs.directory import RunDirectory
from allranks.runs.incident import read_log
from allranks.settings import RunSpec

from .machine import Gang
from .states import Exit


def judge_attempt(gang: Gang, run: RunDirectory, spec: RunSpec) -> Verdict | None:
    """The verdict on the attempt that is just over; None where nothing failed."""
    ranks = gang.ranks()
    incident = Incident(
        attempt=gang.attempt,
        world_size=gang.plan.world_size if gang.plan is not None else len(ranks),
        ranks_by_node={n.name: tuple(n.ranks) for n in gang.nodes.values()},
        exits=tuple(_record(gang, run, e) for e in gang.exits),
        faults=tuple(Fault(f.node, f.id, f.message, f.t) for f in gang.faults),
        lost=tuple(LostNode(e.node, e.t, e.last_heard, LOST_REASON) for e in gang.lost),
        findings=tuple(gang.findings),
        initialised=frozenset(r.rank for r in ranks if r.initialised_t is not None),
        init_entered=frozenset(r.rank for r in ranks if r.entered),
        departed={r.rank: r.departed_t for r in ranks if r.departed_t is not None},
        init_timeout_hit=gang.init_timeout_hit,
        hang=gang.hang,
        stop_reason=gang.stop_reason,
        started_t=gang.attempt_started,
        detected_t=gang.failed_t,
        master=gang.master.name,
        addresses=own_addresses({n.name: addresses(n.facts or {}) for n in gang.nodes.values()}),
        pids={r.rank: r.pid for r in ranks if r.pid is not None},
        gpus={r.rank: gpu for n in gang.nodes.values() for r in n.ranks.values() if (gpu := n.gpu_of(r)) is not None},
        command=spec.command,
        left={r.rank: left for r in ranks if (left := r.departure.to_left()) is not None},
        became={r.rank: r.became for r in ranks if r.became},
        pauses=tuple(gang.pauses),
        lease=spec.lease,
        memory={n.name: n.memory for n in gang.nodes.values() if n.memory},
    )
    return judge(incident)


def _record(gang: Gang, run: RunDirectory, item: Exit) -> ExitRecord:
    node = gang.nodes[item.node]
    head, tail, metrics = read_log(run, node.index, node.name, item) if item.code != 0 else ("", "", None)
    return ExitRecord(
        item.rank, item.node, item.code, item.signal, item.t, item.expected, item.attempt, item.oom_kills,
        dict(item.error) if item.error else None, tail, node.ranks[item.rank].pid if item.rank in node.ranks else None,
        head, metrics,
    )  # fmt: skip
