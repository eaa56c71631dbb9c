"""Which node this is, from what a scheduler tells a process (pure): node rank, number of nodes, master, slots.

One process a node: a scheduler that starts several on a host is told how to start one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..cluster.hostlist import expand
from ..errors import UsageError


@dataclass(frozen=True)
class Scheduler:
    """The names one scheduler uses; `local_size` counts processes on this host, `once` says how to have one."""

    name: str
    rank: str
    size: str = ""
    local_size: str = ""
    once: str = ""


# NODE_RANK stands first: who sets it means it.
SCHEDULERS = (
    Scheduler("the environment", "NODE_RANK", "NNODES"),
    Scheduler("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
    Scheduler(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun -x ALLRANKS_JOIN_SECRET --map-by ppr:1:node",
    ),
    Scheduler("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "mpirun -ppn 1"),
    Scheduler("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE", "srun --ntasks-per-node=1"),
    Scheduler("Kubernetes", "JOB_COMPLETION_INDEX"),
)


def whereabouts(environ: Mapping[str, str]) -> dict[str, str]:
    """Read settings by field name (node_rank, nodes, master_addr, nproc) as far as the environment has them."""
    settings: dict[str, str] = {}
    for scheduler in SCHEDULERS:
        if environ.get(scheduler.rank, "").strip():
            _one_a_node(scheduler, environ)
            settings["node_rank"] = environ[scheduler.rank].strip()
            if environ.get(scheduler.size, "").strip():
                settings["nodes"] = environ[scheduler.size].strip()
            break
    nodes = _listed_nodes(environ)
    if nodes:
        settings["master_addr"] = nodes[0]
    gpus = environ.get("SKYPILOT_NUM_GPUS_PER_NODE", "").strip()
    if gpus.isdecimal() and int(gpus) > 0:
        settings["nproc"] = gpus
    return settings


def _one_a_node(scheduler: Scheduler, environ: Mapping[str, str]) -> None:
    text = environ.get(scheduler.local_size, "").split("(")[0].split(",")[0]
    if text.isdecimal() and int(text) > 1:
        raise UsageError(
            f"{scheduler.local_size}={text}: {scheduler.name} started {text} of these on this host. "
            f"allranks starts the ranks itself, so start one a node\nhint: {scheduler.once} allranks join …"
        )


def _listed_nodes(environ: Mapping[str, str]) -> list[str]:
    """Return the scheduler's list of its nodes; empty where it gives none."""
    listed = environ.get("SKYPILOT_NODE_IPS", "").split()
    slurm_list = environ.get("SLURM_STEP_NODELIST")
    if slurm_list and not listed and environ.get("SLURM_PROCID"):
        return expand(slurm_list)
    return listed


def node_names(environ: Mapping[str, str], master: str, count: int) -> list[str]:
    """Return the scheduler's names of its nodes, in the order of their ranks; empty where it has none."""
    listed = _listed_nodes(environ)
    if listed:
        return listed
    pod, _, _ = master.partition(".")
    if environ.get("JOB_COMPLETION_INDEX") and pod.endswith("-0"):
        return [f"{pod[:-1]}{rank}" for rank in range(count)]
    return []
