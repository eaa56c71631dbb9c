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
    """The variables of one scheduler; `first` is the number of the first node.

    `size` counts its processes and `local_size` those on this host, `once` says how to have one a host. `hosts` holds
    the hosts in the order of their ranks, `form` says how: words, counts (`h1 8 h2 8`), a hostlist, or the path of a
    file with a host a line. `per_host`: processes on a host where no variable says it, as `size` over this one.
    """

    name: str
    rank: str
    size: str = ""
    local_size: str = ""
    once: str = ""
    hosts: str = ""
    form: str = ""
    first: int = 0
    per_host: str = ""


SKYPILOT = Scheduler(
    "SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", hosts="SKYPILOT_NODE_IPS", form="words"
)  # docs.skypilot.co, "Distributed Multi-Node Jobs"
SRUN = Scheduler(
    "srun",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "srun --ntasks-per-node=1",
    hosts="SLURM_STEP_NODELIST",
    form="hostlist",
)  # srun(1), "OUTPUT ENVIRONMENT VARIABLES"
# The first whose rank is set counts. NODE_RANK stands first: who sets it means it. What a launcher sets for each
# process stands above what a batch system sets for a job, and Flux above PMI, of which it sets the variables too.
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
    # jsrun of LSF; its rank 0 need not be on the first host of LSB_MCPU_HOSTS, which is the batch host
    # (lightning.fabric.plugins.environments.lsf).
    Scheduler(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "JSM_NAMESPACE_LOCAL_SIZE",
        "jsrun --rs_per_host 1 --tasks_per_rs 1",
    ),
    # flux-core src/shell/task.c; the hosts are in no variable: `flux hostlist local`.
    Scheduler(
        "Flux",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        once="flux run --tasks-per-node=1",
        per_host="FLUX_JOB_NNODES",
    ),
    Scheduler("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "mpirun -ppn 1"),
    SRUN,
    # LSF: blaunch numbers its tasks from 1 (PRRTE src/mca/ess/lsf: "LSF_PM_TASKID", -1); IBM Spectrum LSF 10.1,
    # "Environment variables set for job execution": LSB_MCPU_HOSTS is "hostA 4 hostB 4".
    Scheduler("LSF", "LSF_PM_TASKID", hosts="LSB_MCPU_HOSTS", form="counts", first=1),
    # PBS: pbsdsh's tasks have the number of their host; PBS Professional Reference Guide, "PBS Environment Variables".
    # The node file is on the first host alone.
    Scheduler("PBS", "PBS_NODENUM", hosts="PBS_NODEFILE", form="file"),
    Scheduler("Kubernetes", "JOB_COMPLETION_INDEX"),
)
# Of the replicated job of a role, whose pods Kubernetes counts from 0: the node rank of its first (plan/render).
FIRST_NODE_RANK = "ALLRANKS_FIRST_NODE_RANK"
HOST_FILES = tuple(scheduler.hosts for scheduler in SCHEDULERS if scheduler.form == "file")


def whereabouts(environ: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Read settings by field name (node_rank, nodes, master_addr, nproc) as far as the environment has them.

    `files` has the texts of those that the variables of HOST_FILES name, by variable.
    """
    settings: dict[str, str] = {}
    scheduler = _scheduler_of(environ)
    hosts = _listed_nodes(environ, files)
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


def node_names(environ: Mapping[str, str], files: Mapping[str, str], master: str, count: int) -> list[str]:
    """Return the scheduler's names of its nodes, in the order of their ranks; empty where it has none."""
    listed = _listed_nodes(environ, files)
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
    if not text.isdecimal() or int(text) < scheduler.first:
        return text
    before = environ.get(FIRST_NODE_RANK, "")
    return str(int(text) - scheduler.first + (int(before) if before.isdecimal() else 0))


def _one_a_node(scheduler: Scheduler, environ: Mapping[str, str]) -> None:
    name = scheduler.local_size
    text = environ.get(name, "").split("(")[0].split(",")[0]
    if scheduler.per_host:
        name = f"{scheduler.size} over {scheduler.per_host}"
        text = _per_host(environ.get(scheduler.size, ""), environ.get(scheduler.per_host, ""))
    if text.isdecimal() and int(text) > 1:
        raise UsageError(
            f"{name}={text}: {scheduler.name} started {text} of these on this host. "
            f"allranks starts the ranks itself, so start one a node\nhint: {scheduler.once} allranks join …"
        )


def _per_host(processes: str, hosts: str) -> str:
    """Return how many processes a host has, rounded up; empty where it is not known."""
    if not (processes.isdecimal() and hosts.isdecimal() and int(hosts)):
        return ""
    return str(-(-int(processes) // int(hosts)))


def _listed_nodes(environ: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    scheduler = _scheduler_of(environ)
    for one in (SKYPILOT, scheduler, SRUN):
        if one is None or (one is SRUN and not environ.get(one.rank)):
            continue
        hosts = _hosts(one, environ, files)
        if hosts:
            return hosts
    return []


def _hosts(scheduler: Scheduler, environ: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    text = environ.get(scheduler.hosts, "")
    if scheduler.form == "hostlist":
        if not text:
            return []
        return expand(text)
    if scheduler.form == "counts":
        return list(dict.fromkeys(text.split()[::2]))
    if scheduler.form == "file":
        return list(dict.fromkeys(files.get(scheduler.hosts, "").split()))
    return text.split()
