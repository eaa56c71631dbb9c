"""The limits of open files, processes, locked memory, the stack and waiting connections have room for this run.

A limit below what the run needs at least is a failure, one below what is safe a warning. What it needs follows from
its ranks: two nodes of one run differ where one has the master or more ranks.

Sources: proc_pid_limits(5), getrlimit(2), Documentation/admin-guide/cgroup-v2.rst (pids.max counts in every
parent too), Documentation/admin-guide/sysctl/net.rst.
Limits are the agent's, which its ranks inherit. It raises the soft limits of files, locked memory and processes to the
hard ones. Files and threads of a rank were counted with torch 2.13 and Gloo, 2 to 8 ranks. A rank has 10 files and one
a rank of the run. Where the store is (rank 0) it has as many again and one more a rank. A rank has 6 threads.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Optional, Tuple

from allranks.protocol.records import NamedTuple
from allranks.text import count_of, join_names

from ..compare import Findings, Nodes, alike, collected, fail_if, size
from ..host import Host, decimal, lines_of, number_in, text_in
from ..launcher_config import RankCounts
from ..typed_facts import Facts, Request

ID = "limits"
LABEL = "limit-too-small"
GROUP = "host"
LEVEL = "quick"
PROCESSES = 4096  # of all users, that are looked at
THREADS_LINE = r"(?m)^Threads:\t(\d{1,7})$"  # of /proc/PID/status

FILES = 10
FILES_OF_THE_STORE = 10
FILES_OF_THE_AGENT = 12
THREADS = 6
TASKS_OF_OURS = 8  # boot script, supervisor, agent, relay, and the agent's threads
# What is safe. A rank with NCCL's and autograd's threads and a few data-loader workers has some hundred tasks.
SAFE_FILES = 4096
SAFE_FILES_A_RANK = 8  # of the run: groups of ranks (data, tensor, pipeline) have connections of their own
SAFE_TASKS = 1024
SAFE_TASKS_A_RANK = 64
SAFE_TASKS_A_GPU_RANK = 512
SAFE_MEMLOCK = 1 << 30  # ibv_reg_mr of NCCL's buffers counts against it


class RunLoad(NamedTuple):
    """What the run puts on one machine: its ranks, those of the whole run, GPUs, whether rank 0 is here."""

    local: int
    world: int
    gpus: int
    has_store: bool


def files_needed(load: RunLoad) -> int:
    """Count open files of one process.

    Without GPUs a rank has a connection to every other (Gloo); NCCL's are fewer, and their number is not known.
    """
    files = FILES + (0 if load.gpus else load.world)
    if load.has_store:
        files += FILES_OF_THE_STORE + load.world
    return max(files, FILES_OF_THE_AGENT + load.local)


def tasks_needed(load: RunLoad) -> int:
    """Count processes and threads."""
    return TASKS_OF_OURS + THREADS * load.local


def safe_tasks(load: RunLoad) -> int:
    """Count them with data-loader workers and NCCL."""
    each = SAFE_TASKS_A_GPU_RANK if load.gpus else SAFE_TASKS_A_RANK
    return max(SAFE_TASKS, each * load.local)


class Limit(NamedTuple):
    """A limit: how a sentence begins with it, what is safe for a load and the least, how to raise it on {node}.

    `ulimit`: its line in /proc/self/limits; `column` 0 is the soft limit, 1 the hard one.
    """

    subject: str
    safe: Callable[[RunLoad], int]
    remedy: str
    least: Callable[[RunLoad], int] = lambda load: 0  # no figure that a run surely needs is known
    ulimit: str = ""
    column: int = 1
    show: Callable[[int], str] = str
    label: str = LABEL


CONF = "in /etc/security/limits.conf"
AGAIN = "on {node}, and log in again"
LIMITS: Dict[str, Limit] = {
    "nofile": Limit(
        "the limit of open files (ulimit -Hn)",
        lambda load: max(SAFE_FILES, SAFE_FILES_A_RANK * load.world),
        f"raise 'nofile' {CONF} to 65536 {AGAIN}",
        files_needed,
        ulimit="Max open files",
        label="too-many-open-files",
    ),
    "stack": Limit(
        "the stack limit (ulimit -s)",
        lambda load: 8 << 20,
        f"set 'stack' {CONF} to 8192 {AGAIN}",
        ulimit="Max stack size",
        column=0,
        show=size,
    ),
    "nproc": Limit(
        "the limit of processes (ulimit -Hu)",
        safe_tasks,
        f"raise 'nproc' {CONF} {AGAIN}",
        tasks_needed,
        ulimit="Max processes",
    ),
    "somaxconn": Limit(  # all ranks reach the master's store at once
        "net.core.somaxconn",
        lambda load: max(128, load.world),
        "ssh {node} 'sudo sysctl -w net.core.somaxconn=4096'",
    ),
    "pids": Limit(
        "the cgroup limit of tasks (pids.max)",
        safe_tasks,
        "raise it: docker --pids-limit, kubelet podPidsLimit, systemd TasksMax",
        tasks_needed,
    ),
    "memlock": Limit(
        "the limit of memory locked for InfiniBand or RoCE (ulimit -Hl)",
        lambda load: SAFE_MEMLOCK,
        f"set 'memlock' {CONF} to unlimited {AGAIN}",
        ulimit="Max locked memory",
        show=size,
        label="memlock-limit",
    ),
}
NAME_WIDTH = 25  # of a limit in /proc/self/limits (fs/proc/base.c, proc_pid_limits)
SOMAXCONN = "/proc/sys/net/core/somaxconn"


# -- what a node has -------------------------------------------------------------------------------


def collect(host: Host) -> Optional[Dict[str, int]]:
    """Limits and what is used of them; -1 is unlimited."""
    limits: Dict[str, int] = {}
    rows = {line[:NAME_WIDTH].rstrip(): line[NAME_WIDTH:].split() for line in lines_of(host, "/proc/self/limits")}
    for key, limit in LIMITS.items():
        if limit.ulimit in rows:
            number = decimal(rows[limit.ulimit][limit.column])
            limits[key] = -1 if number is None else number
    number = number_in(host, SOMAXCONN)
    if number is not None:
        limits["somaxconn"] = number
    uid = host.facts.identity.uid
    if limits.get("nproc", -1) >= 0 and uid != 0:  # root may pass it (setrlimit(2))
        limits["nproc_used"] = _tasks_of(host, uid)
    for line in lines_of(host, "/proc/self/cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            _cgroup(host, limits, "/sys/fs/cgroup{}/pids.max", path)
        elif "pids" in controllers.split(","):
            _cgroup(host, limits, "/sys/fs/cgroup/pids{}/pids.max", path)
    return limits or None


def _tasks_of(host: Host, uid: Optional[int]) -> int:
    tasks = 0
    for path in host.glob("/proc/[0-9]*/status")[:PROCESSES]:
        text = text_in(host, path, 4096)
        if f"\nUid:\t{uid}\t" in text:
            tasks += sum(map(int, re.findall(THREADS_LINE, text)))
    return tasks


def _cgroup(host: Host, limits: Dict[str, int], file: str, path: str) -> None:
    """Read the smallest limit on the way up. In a container the path may be the host's, while the mount is our own."""
    parts = [f"/{part}" for part in path.split("/") if part and part != ".."]
    files = [file.format("".join(parts[:depth])) for depth in range(len(parts), -1, -1)][:16]
    values = {path: text_in(host, path, 64) for path in files}
    numbers = {path: int(value) for path, value in values.items() if value.isdecimal()}
    if numbers:
        smallest = min(numbers, key=lambda path: numbers[path])
        limits["pids"] = numbers[smallest]
        used = number_in(host, smallest.replace("pids.max", "pids.current"))
        if used is not None:
            limits["pids_used"] = used


# -- what the run needs ----------------------------------------------------------------------------


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Failures and warnings where a limit is too small for this run."""
    nodes = collected(facts_by_node, ID, Dict[str, int])
    loads = _loads(request, facts_by_node)
    for key, limit in LIMITS.items():
        shortages = {}
        for node, limits in nodes.items():
            if key in limits and _binds(key, facts_by_node[node], loads[node]):
                used = limits.get(f"{key}_used", 0)
                shortages[node] = _shortage(limit, limits[key], used, loads[node])
        for (is_short, words), names in alike(shortages, lambda shortage: shortage).items():
            message = f"{limit.subject} on {join_names(names)} is {words}"
            yield fail_if(is_short, limit.label, names, message, limit.remedy.format(node=names[0]))


def _shortage(limit: Limit, value: int, used: int, load: RunLoad) -> Optional[Tuple[bool, str]]:
    """Tell whether it is less than the run needs at least, and say what it is and should be; None with enough room."""
    if value < 0:
        return None
    words = limit.show(value)
    if used:
        words += f" ({limit.show(used)} in use)"
    least = limit.least(load)
    if value < used + least:
        more = " more" if used else ""
        ranks = f"{count_of(load.local, 'rank')} of {load.world}"
        return True, f"{words}, and this run needs {limit.show(least)}{more} there ({ranks})"
    safe = limit.safe(load)
    if value < used + safe:
        free = " free" if used else ""
        return False, f"{words}, and {limit.show(safe)}{free} or more is safe"
    return None


def _loads(request: Request, facts_by_node: Nodes) -> Dict[str, RunLoad]:
    """Virtual nodes are one machine, which has all ranks."""
    ranks = RankCounts(request, facts_by_node)
    virtual = request.asked.virtual
    loads = {}
    for node, facts in facts_by_node.items():
        local = ranks.world if virtual else ranks.by_node.get(node, 1)
        loads[node] = RunLoad(local, ranks.world, facts.gpu_count, virtual or node == ranks.first)
    return loads


def _binds(key: str, facts: Facts, load: RunLoad) -> bool:
    """Whether the limit holds for what runs there: getrlimit(2) has what root may do."""
    is_root = facts.identity.uid == 0
    if key == "memlock":
        uses_rdma = facts.nccl.rdma and facts.nccl.environ_.get("NCCL_IB_DISABLE") != "1"
        return bool(uses_rdma) and load.world > load.local and not is_root
    return key != "nproc" or not is_root
