"""Which node this is, from what a scheduler tells a process (pure): node rank, number of nodes, hosts, slots.

One table names the variables of every scheduler. One process a node: where a scheduler starts
several on a host, the error says how to start one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UsageError
from .hostlist import expand


@dataclass(frozen=True)
class Scheduler:
    """The variables of one scheduler.

    `size` counts its processes and `local_size` those on this host, `once` says how to have one a host. `hosts` holds
    the hosts in the order of their ranks: words, of srun a hostlist.
    """

    name: str
    rank: str
    size: str = ""
    local_size: str = ""
    once: str = ""
    hosts: str = ""


SKYPILOT = Scheduler(
    "SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", hosts="SKYPILOT_NODE_IPS"
)  # docs.skypilot.co, "Distributed Multi-Node Jobs"
SRUN = Scheduler(
    "srun",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "srun --ntasks-per-node=1",
    hosts="SLURM_STEP_NODELIST",
)  # srun(1), "OUTPUT ENVIRONMENT VARIABLES"
# The first whose rank is set counts. NODE_RANK stands first: who sets it means it. What a launcher sets for each
# process stands above what a batch system sets for a job.
SCHEDULERS = (
    Scheduler("the environment", "NODE_RANK", "NNODES"),
    SKYPILOT,
    Scheduler(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun -x ALLRANKS_JOIN_SECRET --map-by ppr:1:node",
    ),  # docs.open-mpi.org, "Environment variables set for MPI applications"
    Scheduler("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "mpirun -ppn 1"),
    SRUN,
    Scheduler("Kubernetes", "JOB_COMPLETION_INDEX"),
)
# Of the replicated job of a role, whose pods Kubernetes counts from 0: the node rank of its first (plan/render).
FIRST_NODE_RANK = "ALLRANKS_FIRST_NODE_RANK"


def whereabouts(environ: Mapping[str, str]) -> dict[str, str]:
    """Read settings by field name (node_rank, nodes, master_addr, nproc) as far as the environment has them."""
    settings: dict[str, str] = {}
    scheduler = _scheduler_of(environ)
    hosts = _listed_nodes(environ)
    if scheduler is not None:
        _one_a_node(scheduler, environ)
        settings["node_rank"] = _node_rank(scheduler, environ)
        if environ.get(scheduler.size, "").strip():
            settings["nodes"] = environ[scheduler.size].strip()
        elif hosts:
            settings["nodes"] = str(len(hosts))
    if hosts:
        settings["master_addr"] = hosts[0]
    gpus = environ.get("SKYPILOT_NUM_GPUS_PER_NODE", "").strip()
    if gpus.isdecimal() and int(gpus) > 0:
        settings["nproc"] = gpus
    return settings


def node_names(environ: Mapping[str, str], master: str, count: int) -> list[str]:
    """Return the scheduler's names of its nodes, in the order of their ranks; empty where it has none."""
    listed = _listed_nodes(environ)
    if listed:
        return listed
    pod, _, _ = master.partition(".")
    if environ.get("JOB_COMPLETION_INDEX") and pod.endswith("-0") and FIRST_NODE_RANK not in environ:
        return [f"{pod[:-1]}{rank}" for rank in range(count)]
    return []


def _scheduler_of(environ: Mapping[str, str]) -> Scheduler | None:
    return next((one for one in SCHEDULERS if environ.get(one.rank, "").strip()), None)


def _node_rank(scheduler: Scheduler, environ: Mapping[str, str]) -> str:
    """Count from 0. A text that is not a number stays as it is, and the setting refuses it."""
    text = environ[scheduler.rank].strip()
    if not text.isdecimal():
        return text
    before = environ.get(FIRST_NODE_RANK, "")
    return str(int(text) + (int(before) if before.isdecimal() else 0))


def _one_a_node(scheduler: Scheduler, environ: Mapping[str, str]) -> None:
    name = scheduler.local_size
    text = environ.get(name, "").split("(")[0].split(",")[0]
    if text.isdecimal() and int(text) > 1:
        raise UsageError(
            f"{name}={text}: {scheduler.name} started {text} of these on this host. "
            f"allranks starts the ranks itself, so start one a node\nhint: {scheduler.once} allranks join …"
        )


def _listed_nodes(environ: Mapping[str, str]) -> list[str]:
    asked = [SKYPILOT, _scheduler_of(environ), SRUN if environ.get(SRUN.rank) else None]
    for scheduler in filter(None, asked):
        text = environ.get(scheduler.hosts, "").strip()
        if text:
            return expand(text) if scheduler is SRUN else text.split()
    return []
