"""What a finished attempt left, put together as an Incident and judged (reads log tails)."""

from __future__ import annotations

from allranks.cluster.nodes import JOINED
from allranks.diagnose.incident import AgentFault, ExitRecord, Incident, LostNode
from allranks.diagnose.recorded import own_addresses
from allranks.diagnose.verdict import judge
from allranks.findings import Verdict
from allranks.plan.node_facts import outer_addresses
from allranks.runs.directory import RunDirectory
from allranks.runs.recorded_incident import read_log
from allranks.settings import RunSpec

from .gang import Gang
from .roster import Roster
from .states import Exit


def judge_attempt(gang: Gang, run: RunDirectory, spec: RunSpec) -> Verdict | None:
    """Judge the attempt that is just over; return None where nothing failed."""
    roster = gang.roster
    ranks = roster.ranks()
    incident = Incident(
        attempt=roster.attempt,
        world_size=roster.world_size,
        ranks_by_node={n.name: tuple(n.ranks) for n in roster.nodes.values()},
        exits=tuple(_record(roster, run, e) for e in roster.exits),
        faults=tuple(AgentFault(f.node, f.id, f.message, f.t) for f in roster.faults),
        lost=tuple(LostNode(e.node, e.t, e.last_heard) for e in roster.lost),
        findings=tuple(roster.findings),
        initialised=frozenset(r.rank for r in ranks if r.initialised_t is not None),
        init_entered=frozenset(r.rank for r in ranks if r.entered),
        departed={r.rank: r.departed_t for r in ranks if r.departed_t is not None},
        departed_at={r.rank: r.departed_at for r in ranks if r.departed_t is not None and r.departed_at},
        init_timeout_hit=roster.init_timeout_hit,
        hang=gang.hang_watch.hang,
        noted=gang.hang_watch.noted,
        stop_reason=roster.stop_reason,
        started_t=roster.attempt_started,
        detected_t=roster.failed_t,
        master=roster.master.name,
        addresses=own_addresses({n.name: outer_addresses(n.plan_facts) for n in roster.nodes.values()}),
        pids={r.rank: r.pid for r in ranks if r.pid is not None},
        gpus=_gpus(roster),
        command=spec.launch.command,
        left={r.rank: left for r in ranks if (left := r.departure.to_left()) is not None},
        became={r.rank: r.became for r in ranks if r.became},
        pauses=tuple(roster.pauses),
        lease=spec.limits.lease,
        local_nodes=roster.cluster.local_names,
        is_slurm=spec.target.slurm,
        is_joined=roster.cluster.source == JOINED,
        withheld=roster.setting.handed_over.not_forwarded,
        memory={n.name: n.memory for n in roster.nodes.values() if n.memory},
        deepspeed=next((n.deepspeed for n in roster.nodes.values() if n.deepspeed), {}),
    )
    return judge(incident)


def _record(roster: Roster, run: RunDirectory, item: Exit) -> ExitRecord:
    node = roster.nodes[item.node]
    head, tail, metrics = read_log(run, node.index, node.name, item) if item.code != 0 else ("", "", None)
    return ExitRecord(
        item.rank,
        item.node,
        item.code,
        item.signal,
        item.t,
        item.expected,
        item.attempt,
        item.oom_kills,
        dict(item.error) if item.error else None,
        tail,
        node.ranks[item.rank].pid if item.rank in node.ranks else None,
        head,
        metrics,
    )


def _gpus(roster: Roster) -> dict[int, int]:
    """Map each rank that takes a GPU by its local number to that GPU."""
    gpus: dict[int, int] = {}
    for node in roster.nodes.values():
        for rank in node.ranks.values():
            gpu = node.gpu_of(rank)
            if gpu is not None:
                gpus[rank.rank] = gpu
    return gpus
