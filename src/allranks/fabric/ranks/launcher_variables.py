"""torchrun's environment (RANK, WORLD_SIZE, …) from what srun and mpirun set instead (pure).

A launcher that sets RANK itself (torchrun, allranks) is believed; of Slurm and Open MPI the counterparts are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FIRST_PORT = 20000
PORTS = 10000  # one is made from the job's number, the same in every rank
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM = {
    "RANK": "SLURM_PROCID",
    "WORLD_SIZE": "SLURM_NTASKS",
    "LOCAL_RANK": "SLURM_LOCALID",
    "GROUP_RANK": "SLURM_NODEID",
}
OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def complete(env: Mapping[str, str]) -> dict[str, str]:
    """Give what has to be added to the environment; raise ValueError for what no launcher has set."""
    added: dict[str, str] = {}
    if "RANK" not in env:
        if OPEN_MPI["RANK"] in env:
            added = {**_renamed(env, OPEN_MPI), **_open_mpi(env)}
        else:
            added = {**_renamed(env, SLURM), **_slurm(env)}
    complete_env = {**added, **env}
    missing = [name for name in NEEDED if not complete_env.get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} not set: start every rank with allranks, torchrun, srun or mpirun")
    for name in NEEDED:
        if name != "MASTER_ADDR" and not complete_env[name].isdecimal():
            raise ValueError(f"{name}={complete_env[name]!r} is not a number")
    return {name: value for name, value in added.items() if name not in env}


def _renamed(env: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {name: env[launcher_name] for name, launcher_name in names.items() if launcher_name in env}


def _slurm(env: Mapping[str, str]) -> dict[str, str]:
    added = {}
    counts = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", ""))
    node = int(env.get("SLURM_NODEID", "0"))
    if node < len(counts):
        added["LOCAL_WORLD_SIZE"] = str(counts[node])
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    if nodes:
        added["MASTER_ADDR"] = first_host(nodes)
    job = env.get("SLURM_JOB_ID", "")
    if job.isdecimal():
        added["MASTER_PORT"] = str(FIRST_PORT + int(job) % PORTS)
    return added


def _open_mpi(env: Mapping[str, str]) -> dict[str, str]:
    """Give rank 0's address where all ranks are here: Open MPI does not say it otherwise."""
    local = env.get(OPEN_MPI["LOCAL_WORLD_SIZE"])
    if local is not None and local == env.get(OPEN_MPI["WORLD_SIZE"]):
        return {"MASTER_ADDR": "127.0.0.1"}
    return {}


def tasks_per_node(text: str) -> list[int]:
    """Read Slurm's `4(x2),3` as 4, 4, 3."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def first_host(text: str) -> str:
    """Give the first of Slurm's `node[03-07,9],other`: node03."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)(?!\d)[^\]]*\])?([^,\[]*)", text)
    return "".join(match.groups("")) if match else text
