"""The process group: who has come, which backend, how large payloads may be, and the first collective."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass
from typing import Dict, Optional

import torch
import torch.distributed as dist

from allranks.text import count_of, format_ranks, format_size_option, group, plural

from ..analysis.payloads import available_memory, largest_fitting, refusal, within_group
from ..analysis.rates import NominalLink
from .job import SuiteJob
from .lab import Lab, Unusable
from .local_links import nominal_link, read_file
from .options import Options

NAME = "process_group"
# NCCL's own watchdog would abort the process when a peer ends: ours says first which one that is.
QUIET = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_ASYNC_ERROR_HANDLING": "0"}
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MEMINFO = "/proc/meminfo"
MEMORY_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class RankFacts:
    """What the others need to know of a rank; `free` are bytes of memory."""

    node: int
    host: str
    machine: str
    free: Optional[int]
    gpu: bool
    versions: str  # of torch and Python
    links: Dict[str, NominalLink]  # by backend


class ProcessGroup:
    """What is known of all ranks: `facts` by rank; `refusal` says why a smaller size is used."""

    def __init__(self, job: SuiteJob, options: Options) -> None:
        self.job = job
        self.options = options
        self.facts: list[RankFacts] = []
        self.refusal = ""

    def make(self, lab: Lab) -> str:
        """Meet, agree on backend and size, and do one collective: a test like the others."""
        lab.arrive()  # a rank that never comes is missed here already
        self.facts = self.job.exchange("facts", rank_facts(self.job, self.options.suite))
        node_of = [fact.node for fact in self.facts]
        lab.nodes = group(sorted(range(lab.world), key=node_of.__getitem__), node_of.__getitem__)
        lab.backend = choose_backend(self.options.backend, [fact.gpu for fact in self.facts])
        if lab.backend == "nccl":
            lab.device = torch.device("cuda", self.job.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(lab.device)
            for name, value in QUIET.items():
                os.environ.setdefault(name, value)
        self._limit_payloads(lab)
        dist.init_process_group(lab.backend, timeout=lab.patience)
        ones = lab.empty(1, "int64") + 1
        dist.all_reduce(ones)
        if int(ones[0]) != lab.world:
            lab.note(0, "int64 sum of ones", 0, str(lab.world), str(int(ones[0])))
        return f"{lab.backend}, {count_of(len(lab.nodes), 'node')}"

    def _limit_payloads(self, lab: Lab) -> None:
        """Use payloads for which every rank has the memory. With Gloo the ranks of a machine share it."""
        ranks_on = Counter(fact.machine for fact in self.facts)
        sharing = [ranks_on[fact.machine] for fact in self.facts]
        free = [fact.free for fact in self.facts]
        where = ""
        if lab.backend == "nccl":
            sharing = [1] * lab.world
            free = [*self.job.exchange("free", torch.cuda.mem_get_info(lab.device)[0])]
            where = "a GPU of "
        limits = [largest_fitting(lab.size, *shared) for shared in zip(sharing, free)]
        used = min(limits)
        if used < lab.size:
            rank = limits.index(used)
            reason = refusal(lab.size, sharing[rank], free[rank], f"{where}{self.facts[rank].host}")
            self.refusal = f"{reason}, {format_size_option(used)} used instead"
        lab.size = used


def rank_facts(job: SuiteJob, suite: str) -> RankFacts:
    """Collect what the others need to know of this rank."""
    free = available_memory(read_file(MEMINFO))
    for limit, used in MEMORY_GROUPS:
        free = within_group(free, read_file(limit), read_file(used))
    backends = ("gloo", "nccl") if suite == "bandwidth" else ()
    return RankFacts(
        node=job.node,
        host=job.hostname,
        machine=read_file(BOOT_ID).strip() or job.hostname,
        free=free,
        gpu=torch.cuda.is_available() and dist.is_nccl_available(),
        versions=f"torch {torch.__version__}, Python {platform.python_version()}",
        links={backend: nominal_link(backend, os.environ, job.host) for backend in backends},
    )


def choose_backend(wanted: str, gpus: list[bool]) -> str:
    """Choose gloo or nccl, the same on all ranks; raise Unusable where only some ranks could."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu]
    if wanted == "gloo" or (wanted == "auto" and not any(gpus)):
        return "gloo"
    if without:
        others = "although others do. --backend gloo tests without GPUs" if any(gpus) else "but --backend is nccl"
        see = plural(len(without), "sees", "see")
        raise Unusable(f"{format_ranks(without)} {see} no GPU that NCCL can use, {others}")
    return "nccl"
