"""Plan: which ranks run on which node, with which argv and environment.

`make_plan` needs the facts of every node (slots, interpreter); `orders` needs the attempt's address.
What it returns is what an agent executes and what --dry-run prints.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from allranks.cluster import Cluster, Node
from allranks.settings import RunSpec

from .environment import Place, Process, rank_environment, weak_names
from .launchers import LAUNCHERS, collectives
from .ranks import Attempt, NodePlan, Plan, SuiteNodes


def make_plan(spec: RunSpec, cluster: Cluster, facts: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Fixes the number of ranks a node: --nproc, slots, visible devices, GPUs listed, else 1."""
    nodes = []
    first = 0
    for rank, node in enumerate(cluster.nodes):
        count, reason = ranks_of(spec, node, facts.get(node.name, {}), len(cluster) if spec.local else 1)
        nodes.append(NodePlan(node, count, first, len(cluster), reason, rank))
        first += count
    return Plan(tuple(nodes))


def ranks_of(spec: RunSpec, node: Node, facts: Mapping[str, Any], shared_by: int = 1) -> tuple[int, str]:
    """How many ranks a node runs, and what says so; `shared_by` virtual nodes have one machine's GPUs."""
    if spec.nproc is not None:
        return spec.nproc, "--nproc"
    if node.slots is not None:
        return node.slots, "slots in the host list"
    gpus = facts.get("gpus") or {}
    count = int(gpus.get("count") or 0) // shared_by
    if count:
        return count, str(gpus.get("source") or "GPUs found")
    return (2 if spec.test == "full" and spec.suite != "pairs" else 1), "no GPU found"


def room_on(node: Node, facts: Mapping[str, Any], shared_by: int = 1) -> int | None:
    """How many ranks a node can take, by its slots, else its GPUs; None where nothing says so."""
    if node.slots is not None:
        return node.slots
    return int((facts.get("gpus") or {}).get("count") or 0) // shared_by or None


def orders(
    spec: RunSpec, plan: Plan, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The `start` message for one node's agent."""
    launcher = collectives if attempt.tests else LAUNCHERS[spec.launcher]
    ranks = []
    for process in launcher(spec, plan.world_size, node, place, attempt, facts):
        environment = rank_environment(spec, plan.world_size, node, process, place, attempt)
        ranks.append(
            {
                "rank": process.rank,
                "local_rank": process.local_rank,
                "argv": _wrapped(spec, process.argv),
                "env": {**environment, **process.env},
                "weak": weak_names(spec, place),
                "path_first": _programs_beside(spec, process.argv),
                "workdir": place.workdir,
                "files": dict(process.files),
                "error_files": _error_files(process, node, place, attempt, environment),
                "seen": not process.per_rank and spec.launcher != "command",
            }
        )
    return {
        "type": "start",
        "attempt": attempt.number,
        "ranks": ranks,
        "make": [place.output_dir],
        "follow": _followed(spec, node, place, attempt),
        "terms": terms(plan.world_size, node, place, attempt),
    }


def _programs_beside(spec: RunSpec, argv: tuple[str, ...]) -> str | None:
    """Where the training interpreter's own programs lie (torchrun, ninja), first on PATH as after `activate`; None
    where the user sets PATH, or another program is started."""
    directory, _, name = argv[0].rpartition("/")
    return directory if directory.startswith("/") and name.startswith("python") and "PATH" not in spec.env else None


def _error_files(
    process: Process, node: NodePlan, place: Place, attempt: Attempt, environment: Mapping[str, str]
) -> list[str]:
    """Of the rank that a process is, or of those that it starts."""
    if process.per_rank:
        return [environment["TORCHELASTIC_ERROR_FILE"]]
    return [place.error(node.first_rank + i, attempt.number) for i in range(node.nproc)]


def terms(world_size: int, node: NodePlan, place: Place, attempt: Attempt) -> dict[str, Any]:
    """What a node needs to make its own `start` message from its own spec: see `plan.pinned`."""
    return {
        "world_size": world_size,
        "index": node.rank,
        "of": node.of,
        "first_rank": node.first_rank,
        "nproc": node.nproc,
        "attempt": attempt.number,
        "repeats": attempt.repeats,
        "tests": _tested(attempt.tests),
        "master_addr": attempt.master_addr,
        "master_port": attempt.master_port,
        "run": place.run,
        "mark": place.mark,
        "node_dir": place.node_dir,
        "interfaces": dict(place.interfaces),
    }


def _tested(tested: SuiteNodes | None) -> dict[str, Any] | None:
    return {"nodes": list(tested.nodes), "dead": [list(pair) for pair in tested.dead]} if tested is not None else None


def _wrapped(spec: RunSpec, argv: tuple[str, ...]) -> list[str]:
    return [*shlex.split(spec.wrap or ""), *argv]


def _followed(spec: RunSpec, node: NodePlan, place: Place, attempt: Attempt) -> list[dict[str, Any]]:
    """Files that others write and that travel to the run directory."""
    found: list[dict[str, Any]] = [{"kind": "ras", "rank": 0, "path": place.ras()}]
    for rank in range(node.first_rank, node.first_rank + node.nproc):
        metrics = f"{place.output_dir}/rank_{rank:02d}_metrics.jsonl"
        found.append({"kind": "metrics", "rank": rank, "path": metrics})
        found.append({"kind": "nccl", "rank": rank, "path": place.nccl_log(rank, attempt.number)})
        found.append({"kind": "stacks", "rank": rank, "path": place.stacks(rank)})
        found.append({"kind": "flight", "rank": rank, "path": place.flight(rank)})
        if spec.audit_data and not attempt.tests:
            found.append({"kind": "audit", "rank": rank, "path": place.audit(f"{rank:03d}", attempt.number)})
    return found
