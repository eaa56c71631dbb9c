"""What a finished attempt left, put together as an Incident and judged (reads log tails)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.diagnose.incident import ExitRecord, Fault, Incident, LostNode
from allranks.diagnose.rules.agents import of_rank
from allranks.diagnose.verdict import judge
from allranks.findings import Verdict
from allranks.node.frames import METRICS, RANK_LOG
from allranks.runs.directory import RunDirectory
from allranks.spec import RunSpec

from .machine import Gang
from .states import Exit

TAIL = 16 << 10


def judge_attempt(gang: Gang, run: RunDirectory, spec: RunSpec) -> Verdict | None:
    """The verdict on the attempt that is just over; None where nothing failed."""
    ranks = gang.ranks()
    incident = Incident(
        attempt=gang.attempt,
        world_size=gang.plan.world_size if gang.plan is not None else len(ranks),
        ranks_by_node={n.name: tuple(n.ranks) for n in gang.nodes.values()},
        exits=tuple(_record(gang, run, e) for e in gang.exits),
        faults=tuple(Fault(f.node, f.id, f.message, f.t) for f in gang.faults),
        lost=tuple(LostNode(e.node, e.t, e.last_heard, "nothing was heard for the lease") for e in gang.lost),
        findings=tuple(gang.findings),
        initialised=frozenset(r.rank for r in ranks if r.initialised_t is not None),
        init_entered=frozenset(r.rank for r in ranks if r.entered),
        init_timeout_hit=gang.init_timeout_hit,
        hang=gang.hang,
        stop_reason=gang.stop_reason,
        started_t=gang.attempt_started,
        detected_t=gang.failed_t,
        master=gang.master.name,
        pids={r.rank: r.pid for r in ranks if r.pid is not None},
        gpus={r.rank: gpu for n in gang.nodes.values() for r in n.ranks.values() if (gpu := n.gpu_of(r)) is not None},
        command=spec.command,
        memory={n.name: total for n in gang.nodes.values() if (total := _memory(n.facts))},
    )
    return judge(incident)


def _memory(facts: Mapping[str, Any] | None) -> int:
    found = ((facts or {}).get("mem") or {}).get("total")
    return found if isinstance(found, int) else 0


def _record(gang: Gang, run: RunDirectory, item: Exit) -> ExitRecord:
    node = gang.nodes[item.node]
    head, tail, metrics = "", "", None
    if item.code != 0:
        path = run.log_path(node.index, node.name, RANK_LOG, item.rank, gang.attempt)
        shared = not path.exists() and bool(node.ranks)  # another launcher's: one log for all ranks of the node
        if shared:
            path = run.log_path(node.index, node.name, RANK_LOG, min(node.ranks), gang.attempt)
        head, tail = read_end(path, first=True), read_end(path)
        tail = of_rank(tail, item.rank) if shared else tail
        metrics = last_row(read_end(run.log_path(node.index, node.name, METRICS, item.rank, gang.attempt)))
    return ExitRecord(
        item.rank, item.node, item.code, item.signal, item.t, item.expected, item.attempt, item.oom_kills,
        dict(item.error) if item.error else None, tail, node.ranks[item.rank].pid if item.rank in node.ranks else None,
        head, metrics,
    )  # fmt: skip


def read_end(path: Path, first: bool = False) -> str:
    """The last bytes of a file, or the first; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0 if first else max(0, path.stat().st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def last_row(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                return row
    return None
