"""The process group: who has come, which backend, how large payloads may be, and the first collective."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch
import torch.distributed as dist

from .hang import names
from .job import CGROUPS, MEMINFO, Job, read
from .lab import Lab, Test, Unusable
from .link import own_link
from .options import Options
from .sizes import available, fitting, refusal, say_size, within

GROUP = "process_group"
# NCCL's own watchdog would abort the process when a peer goes: ours says first who has gone.
QUIET = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_ASYNC_ERROR_HANDLING": "0"}
BOOT = "/proc/sys/kernel/random/boot_id"
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Setup:
    """What is known of all ranks. `facts` by rank; `refused` says why a smaller size is used."""

    def __init__(self, job: Job, options: Options) -> None:
        self.job, self.options = job, options
        self.facts: list[dict[str, Any]] = []
        self.refused = ""

    def test(self) -> Test:
        """The process group as a test like the others."""
        return Test(GROUP, self.make)

    def make(self, lab: Lab) -> str:
        """Meet, agree on backend and size, and do one collective."""
        lab.arrive()  # a rank that never comes is missed here already
        self.facts = self.job.exchange("facts", own_facts(self.job, self.options.suite))
        self.job.learn_nodes([fact["node"] for fact in self.facts])
        lab.backend = backend_of(self.options.backend, [fact["gpu"] for fact in self.facts])
        if lab.backend == "nccl":
            lab.device = torch.device("cuda", self.job.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(lab.device)
            for name, value in QUIET.items():
                os.environ.setdefault(name, value)
        self._bound(lab)
        dist.init_process_group(lab.backend, timeout=lab.patience)
        one = lab.empty(1, "int64") + 1
        dist.all_reduce(one)
        if int(one[0]) != lab.world:
            lab.note(0, "int64 sum of ones", 0, str(lab.world), str(int(one[0])))
        count = len(self.job.nodes)
        return f"{lab.backend}, {count} node{'s' * (count != 1)}"

    def _bound(self, lab: Lab) -> None:
        """The largest payload that every node has memory for, the smallest of all."""
        gpu = lab.backend == "nccl"
        free = torch.cuda.mem_get_info(lab.device)[0] if gpu else None
        here = fitting(lab.size, *((1, free) if gpu else (self._neighbours(lab.rank), self.facts[lab.rank]["free"])))
        all_of_them = self.job.exchange("sizes", [here, free])
        used, rank = min((size, rank) for rank, (size, _) in enumerate(all_of_them))
        if used < lab.size:
            fact = self.facts[rank]
            where, count, have = fact["host"], self._neighbours(rank), fact["free"]
            if gpu:
                where, count, have = f"a GPU of {where}", 1, all_of_them[rank][1]
            self.refused = f"{refusal(lab.size, count, have, where)}; {say_size(used)} used instead"
        lab.size = used

    def _neighbours(self, rank: int) -> int:
        """How many ranks share a rank's machine: several nodes may be on one."""
        machine = self.facts[rank]["machine"]
        return sum(fact["machine"] == machine for fact in self.facts)

    def versions(self) -> list[str]:
        """torch and Python, more than one where ranks differ; NCCL's where it is used."""
        return sorted({f"torch {fact['torch']}, Python {fact['python']}" for fact in self.facts})

    def node_names(self) -> list[str]:
        """By GROUP_RANK; hosts' own names where the caller gave none."""
        given = self.options.nodes
        return [given[node] if node < len(given) else self.facts[ranks[0]]["host"]
                for node, ranks in self.job.nodes.items()]  # fmt: skip


def own_facts(job: Job, suite: str) -> dict[str, Any]:
    """What the others need to know of this rank."""
    free = available(read(MEMINFO))
    for limit, used in CGROUPS:
        free = within(free, read(limit), read(used))
    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    backends = ("gloo", "nccl") if suite == "bandwidth" else ()
    links = {backend: own_link(backend, os.environ, job.host) for backend in backends}
    machine = read(BOOT).strip() or job.hostname
    return {"node": job.node, "links": links, "host": job.hostname, "machine": machine, "free": free, "gpu": gpu,
            "torch": str(torch.__version__), "python": platform.python_version()}  # fmt: skip


def backend_of(asked: str, gpus: list[bool]) -> str:
    """gloo or nccl, the same on all ranks; Unusable where only some ranks could."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu]
    if asked == "gloo" or (asked == "auto" and not any(gpus)):
        return "gloo"
    if without:
        others = "although others do; --backend gloo tests without GPUs" if any(gpus) else "but --backend is nccl"
        see = "see" if len(without) > 1 else "sees"
        raise Unusable(f"{names(without)} {see} no GPU that NCCL can use, {others}")
    return "nccl"


def nccl_version() -> str:
    """NCCL's version that torch brings."""
    found = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch gives it no types
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
