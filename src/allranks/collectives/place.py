"""torchrun's environment (RANK, WORLD_SIZE, …) from what srun and mpirun say instead. Pure.

A launcher that sets RANK itself (torchrun, allranks) is believed; of Slurm and Open MPI the counterparts are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PORTS = (20000, 10000)  # first, and how many: a port made from the job's number, the same in every rank
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID",
         "GROUP_RANK": "SLURM_NODEID"}  # fmt: skip
OPEN_MPI = {"RANK": "OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
            "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE"}  # fmt: skip


def contract(env: Mapping[str, str]) -> dict[str, str]:
    """What has to be added to the environment; ValueError says what can't be known."""
    added: dict[str, str] = {}
    if "RANK" not in env:
        names = OPEN_MPI if OPEN_MPI["RANK"] in env else SLURM
        added = {name: env[theirs] for name, theirs in names.items() if theirs in env}
        added.update(_slurm(env) if names is SLURM else _open_mpi(env))
    whole = {**added, **env}
    missing = [name for name in NEEDED if not whole.get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} not set: start every rank with allranks, torchrun, srun or mpirun")
    wrong = [name for name in NEEDED if name != "MASTER_ADDR" and not whole[name].isdigit()]
    if wrong:
        raise ValueError(f"{wrong[0]}={whole[wrong[0]]!r} is no number")
    return {name: value for name, value in added.items() if name not in env}


def _slurm(env: Mapping[str, str]) -> dict[str, str]:
    found = {}
    counts = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", ""))
    node = int(env.get("SLURM_NODEID", "0"))
    if node < len(counts):
        found["LOCAL_WORLD_SIZE"] = str(counts[node])
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    if nodes:
        found["MASTER_ADDR"] = first_host(nodes)
    if env.get("SLURM_JOB_ID", "").isdigit():
        found["MASTER_PORT"] = str(PORTS[0] + int(env["SLURM_JOB_ID"]) % PORTS[1])
    return found


def _open_mpi(env: Mapping[str, str]) -> dict[str, str]:
    """Open MPI does not say where rank 0 is, unless all ranks are here."""
    if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env.get("OMPI_COMM_WORLD_SIZE") is not None:
        return {"MASTER_ADDR": "127.0.0.1"}
    return {}


def tasks_per_node(text: str) -> list[int]:
    """Slurm's `4(x2),3` as 4, 4, 3."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def first_host(text: str) -> str:
    """The first of Slurm's `node[03-07,9],other`: node03."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)(?!\d)[^\]]*\])?([^,\[]*)", text)
    return "".join(part or "" for part in found.groups()) if found else text
