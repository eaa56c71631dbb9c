"""The allocation that this process runs in, from Slurm's variables: nodes, ranks a node, restarts (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..errors import ConfigError, UsageError
from ..text import format_choice
from .hostlist import expand
from .names import check_host, show
from .nodes import Cluster, Node

_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave. `tasks` are tasks a node as they were asked for; empty where none were asked for.

    `restarts` counts requeues of the job; `batch`: this process descends from the job's batch script, and
    `made_by_allranks`: allranks has written that script.
    """

    job: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...] = ()
    restarts: int = 0
    batch: bool = False
    made_by_allranks: bool = False


MADE_BY_ALLRANKS = "ALLRANKS_BATCH_SCRIPT"  # a variable that the scripts of `run --slurm` and `render slurm` set


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """None outside of an allocation; ConfigError where the variables contradict each other, UsageError in a
    heterogeneous job."""
    _refuse_heterogeneous(environ)
    job = environ.get("SLURM_JOB_ID", "")
    nodelist = environ.get("SLURM_JOB_NODELIST", "")
    if not job or not nodelist:
        return None
    if not job.isdecimal():
        raise ConfigError(f"SLURM_JOB_ID: found {show(job)}, which is not a number. Unset it, or start again")
    try:
        nodes = tuple(check_host(name) for name in expand(nodelist))
    except UsageError as error:
        raise ConfigError(f"SLURM_JOB_NODELIST: {error}") from None
    asked = any(environ.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    tasks = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", "")) if asked else ()
    if tasks and len(tasks) != len(nodes):
        raise ConfigError(
            f"SLURM_TASKS_PER_NODE={environ['SLURM_TASKS_PER_NODE']} has {len(tasks)} nodes,"
            f" SLURM_JOB_NODELIST={nodelist} has {len(nodes)}. Set --nproc"
        )
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    batch = environ.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in environ
    made_by_allranks = batch and bool(environ.get(MADE_BY_ALLRANKS))
    return Allocation(job, nodes, tasks, int(restarts) if restarts.isdecimal() else 0, batch, made_by_allranks)


def _refuse_heterogeneous(environ: Mapping[str, str]) -> None:
    """Its components are jobs of their own: salloc names no nodes for all of them, sbatch those of the first."""
    size = environ.get("SLURM_HET_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        raise UsageError(
            f"job {environ.get('SLURM_JOB_ID', '?')} is heterogeneous: its {size} components have no step in common.\n"
            "hint: ask for all nodes in one component, or reach them by ssh: --hosts"
        )


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Slurm's `4(x2),3` as 4, 4, 3; ConfigError for anything else but nothing."""
    counts: list[int] = []
    for part in text.split(",") if text else ():
        match = _TASKS.fullmatch(part)
        if not match or len(counts) + int(match[2] or 1) > 100_000:
            raise ConfigError(f"SLURM_TASKS_PER_NODE: found {show(text)}, set --nproc")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def refuse_step(environ: Mapping[str, str]) -> None:
    """UsageError in one of several tasks of a step: each of them would start a run of its own."""
    count = environ.get("SLURM_STEP_NUM_TASKS", "")
    if count.isdecimal() and int(count) > 1:
        raise UsageError(
            f"this is task {environ.get('SLURM_PROCID', '?')} of {count} that srun has started, and each would start a "
            "run of its own. Start allranks once, without srun (it starts its own step), or let every task `allranks "
            "join`"
        )


def require_nodes(allocation: Allocation, count: int | None) -> None:
    """UsageError where the allocation has fewer nodes."""
    there = len(allocation.nodes)
    if count is not None and count > there:
        raise UsageError(f"--nodes {count}: job {allocation.job} has {there}. Set --nodes {format_choice(there)}")


def allocation_cluster(allocation: Allocation, chosen: Collection[str]) -> Cluster:
    """Make a cluster of the chosen nodes of the allocation, in its order.

    They have slots where more than one task a node was asked for. One task a node is what people ask for who start
    torchrun themselves: then the GPUs count, as without slots.
    """
    slots: dict[str, int] = {}
    if any(count > 1 for count in allocation.tasks):
        slots = dict(zip(allocation.nodes, allocation.tasks, strict=True))
    names = [name for name in allocation.nodes if name in chosen]
    nodes = [Node(index, name, name, slots=slots.get(name)) for index, name in enumerate(names)]
    return Cluster(tuple(nodes), f"Slurm job {allocation.job}")
