"""Files, processes, ports, locked memory, tracked connections and other limits have room for this run.

A limit below what the run needs at least is a failure, one below what is safe a warning. What it needs follows from
its ranks: two nodes of one run differ where one has the master or more ranks.

Sources: proc_pid_limits(5), getrlimit(2), Documentation/admin-guide/cgroup-v2.rst (pids.max, memory.max count in every
parent too), Documentation/admin-guide/sysctl/{kernel,fs,net,vm}.rst, Documentation/networking/nf_conntrack-sysctl.rst.
Limits are the agent's, which its ranks inherit; it raises the soft limits of files, locked memory and processes to the
hard ones. Files and threads of a rank were counted with torch 2.13 and Gloo, 2 to 8 ranks: 10 files and one a rank of
the run, as many again and one more a rank where the store is (rank 0), 6 threads.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from allranks.findings import Finding, Status
from allranks.text import count_of, join_names

from ..compare import Facts, Nodes, by_value, differences, gpu_count, part, place, remote, size
from ..figures import Ranks
from ..host import Host, Request

ID = "limits"
GROUP = "host"
LEVEL = "quick"
SOFT = {"Max stack size": "stack", "Max core file size": "core"}
HARD = {"Max open files": "nofile", "Max locked memory": "memlock", "Max processes": "nproc"}
SYSCTLS = {
    "somaxconn": "net/core/somaxconn",
    "pid_max": "kernel/pid_max",
    "threads_max": "kernel/threads-max",
    "max_map_count": "vm/max_map_count",
    "conntrack": "net/netfilter/nf_conntrack_max",
    "conntrack_used": "net/netfilter/nf_conntrack_count",
}
USED = {
    "nproc": "nproc_used",
    "pids": "pids_used",
    "pid_max": "tasks",
    "threads_max": "tasks",
    "files": "files_used",
    "conntrack": "conntrack_used",
}
UNLIMITED = 1 << 60  # cgroup v1 writes "none" as the largest number of pages
BY_SIZE = ("nproc", "pids", "threads_max", "files", "conntrack")  # the defaults follow from the memory: differ a little
PROCESSES = 4096  # of all users, that are looked at

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
SAFE_MEMORY = 1 << 30
SAFE_MEMORY_A_GPU_RANK = 2 << 30
SAFE_MEMLOCK = 1 << 30  # ibv_reg_mr of NCCL's buffers counts against it
# NCCL: bootstrap, proxies, several sockets a connection
SAFE_PORTS = 256
SAFE_PORTS_A_RANK = 32
SAFE_GROUPS = 4  # of ranks, each with connections of its own


class Load(NamedTuple):
    """What the run puts on one machine: its ranks, those of the whole run, GPUs, whether rank 0 is here."""

    local: int
    world: int
    gpus: int
    has_store: bool

    @property
    def remote(self) -> int:
        """Ranks on other machines."""
        return self.world - self.local


def files_needed(load: Load) -> int:
    """Open files of one process."""
    store = FILES_OF_THE_STORE + load.world if load.has_store else 0
    return max(_files_of_a_rank(load) + store, FILES_OF_THE_AGENT + load.local)


def _files_of_a_rank(load: Load) -> int:
    """Without GPUs a connection to every other rank (Gloo); NCCL's are fewer, and their number is not known."""
    return FILES + (0 if load.gpus else load.world)


def tasks_needed(load: Load) -> int:
    """Processes and threads."""
    return TASKS_OF_OURS + THREADS * load.local


def safe_tasks(load: Load) -> int:
    """The same with data-loader workers and NCCL."""
    each = SAFE_TASKS_A_GPU_RANK if load.gpus else SAFE_TASKS_A_RANK
    return max(SAFE_TASKS, each * load.local)


def ports_needed(load: Load) -> int:
    """Ports that the kernel picks: a rank listens on one and takes one to the store; all stand at the same time."""
    return 2 * load.local


def connections_needed(load: Load) -> int:
    """Connections that are tracked: to the store, and to every other rank (Gloo) or to two neighbours (NCCL)."""
    store = load.world if load.has_store else load.local
    mesh = 2 * load.local if load.gpus else load.local * load.remote + load.local * (load.local - 1) // 2
    return store + mesh


class Limit(NamedTuple):
    """One of them: its name in a sentence, how to show and how to raise it, the least and what is safe for a load.

    `finding`: the id of what is said, the check's own where no cause of failure is named so.
    """

    name: str
    show: Callable[[Any], str]
    remedy: str
    least: Callable[[Load], int]
    safe: Callable[[Load], int]
    finding: str = ID


def _none(load: Load) -> int:
    """No figure that a run surely needs is known."""
    return 0


LIMITS: Dict[str, Limit] = {
    "nofile": Limit(
        "limit of open files (ulimit -Hn)",
        str,
        "raise 'nofile' in /etc/security/limits.conf to 65536",
        files_needed,
        lambda load: max(SAFE_FILES, SAFE_FILES_A_RANK * load.world),
        "too-many-open-files",
    ),
    "files": Limit(
        "fs.file-max",
        str,
        "sudo sysctl -w fs.file-max=2097152",
        lambda load: load.local * _files_of_a_rank(load),
        lambda load: load.local * SAFE_FILES,
    ),
    "stack": Limit(
        "stack limit (ulimit -s)", size, "set 'stack' in /etc/security/limits.conf to 8192", _none, lambda load: 8 << 20
    ),
    "nproc": Limit(
        "limit of processes (ulimit -Hu)", str, "raise 'nproc' in /etc/security/limits.conf", tasks_needed, safe_tasks
    ),
    "core": Limit(
        "limit of core files (ulimit -c)", size, "set 'core' in /etc/security/limits.conf as elsewhere", _none, _none
    ),
    "somaxconn": Limit(
        "net.core.somaxconn", str, "sudo sysctl -w net.core.somaxconn=4096", _none, lambda load: max(128, load.world)
    ),  # all ranks reach the master's store at once
    "pid_max": Limit("kernel.pid_max", str, "sudo sysctl -w kernel.pid_max=4194304", tasks_needed, safe_tasks),
    "threads_max": Limit(
        "kernel.threads-max", str, "sudo sysctl -w kernel.threads-max=1000000", tasks_needed, safe_tasks
    ),
    "max_map_count": Limit(
        "vm.max_map_count", str, "sudo sysctl -w vm.max_map_count=262144", _none, lambda load: 65530
    ),
    "pids": Limit(
        "cgroup limit of tasks (pids.max)",
        str,
        "raise it: docker --pids-limit, kubelet podPidsLimit, systemd TasksMax",
        tasks_needed,
        safe_tasks,
    ),
    "memory": Limit(
        "cgroup limit of memory (memory.max)",
        size,
        "raise it: docker --memory, the pod's limits.memory, Slurm --mem",
        _none,
        lambda load: max(SAFE_MEMORY, SAFE_MEMORY_A_GPU_RANK * load.local if load.gpus else 0),
    ),
    "memlock": Limit(
        "limit of memory locked for InfiniBand or RoCE (ulimit -Hl)",
        size,
        "set 'memlock' in /etc/security/limits.conf to unlimited",
        _none,
        lambda load: SAFE_MEMLOCK,
        "memlock-limit",
    ),
    "ports": Limit(
        "the number of ports in net.ipv4.ip_local_port_range",
        str,
        "sudo sysctl -w net.ipv4.ip_local_port_range=32768 60999",
        ports_needed,
        lambda load: SAFE_PORTS + SAFE_PORTS_A_RANK * load.local,
    ),
    "conntrack": Limit(
        "net.netfilter.nf_conntrack_max",
        str,
        "sudo sysctl -w net.netfilter.nf_conntrack_max=1048576",
        connections_needed,
        lambda load: 256 + SAFE_GROUPS * connections_needed(load),
    ),
}
OF_THE_LOGIN = ("stack", "core", "nofile", "memlock", "nproc")


def collect(host: Host) -> Optional[Dict[str, int]]:
    """Limits and what is used of them; -1 is unlimited."""
    limits: Dict[str, int] = {}
    for line in (host.text("/proc/self/limits") or "").splitlines():
        for columns, at in ((SOFT, 0), (HARD, 1)):
            for head, key in columns.items():
                words = line[len(head) :].split()
                if line.startswith(head) and len(words) > 1:
                    limits[key] = -1 if words[at] == "unlimited" else int(words[at])
    for key, path in SYSCTLS.items():
        text = host.text(f"/proc/sys/{path}", 64) or ""
        if text.isdecimal():
            limits[key] = int(text)
    limits.update(_shares_of_the_kernel(host))
    if limits.get("nproc", -1) >= 0:
        limits["nproc_used"] = _tasks_of(host, int(host.facts.get("identity", {}).get("uid", -1)))
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if line.startswith("0::"):
            _cgroup(host, limits, "", path, (("pids", "pids.max"), ("memory", "memory.max")))
        if "pids" in controllers.split(","):
            _cgroup(host, limits, "/pids", path, (("pids", "pids.max"),))
        if "memory" in controllers.split(","):
            _cgroup(host, limits, "/memory", path, (("memory", "memory.limit_in_bytes"),))
    return limits or None


def _shares_of_the_kernel(host: Host) -> Dict[str, int]:
    """Open files, tasks and ports of the whole machine."""
    shares: Dict[str, int] = {}
    files = (host.text("/proc/sys/fs/file-nr", 64) or "").split()
    if len(files) == 3:
        shares["files_used"], shares["files"] = int(files[0]), min(int(files[2]), UNLIMITED)
    tasks = (host.text("/proc/loadavg", 128) or "").split()
    if len(tasks) > 3:
        shares["tasks"] = int(tasks[3].partition("/")[2] or 0)
    ports = (host.text("/proc/sys/net/ipv4/ip_local_port_range", 64) or "").split()
    if len(ports) == 2:
        shares["ports"] = int(ports[1]) - int(ports[0]) + 1
    return shares


def _tasks_of(host: Host, uid: int) -> int:
    """Processes and threads of a user, which count against ulimit -u."""
    tasks = 0
    for path in host.glob("/proc/[0-9]*/status")[:PROCESSES]:
        fields = dict(line.partition(":")[::2] for line in (host.text(path, 4096) or "").splitlines())
        if fields.get("Uid", "").split()[:1] == [str(uid)]:
            tasks += int(fields.get("Threads", "1"))
    return tasks


def _cgroup(host: Host, limits: Dict[str, int], mount: str, path: str, files: Tuple[Tuple[str, str], ...]) -> None:
    """The smallest on the way up. In a container the path may be the host's, while the mount is our own."""
    parts = [p for p in path.split("/") if p and p != ".."]
    places = ["/".join(parts[:i]) for i in range(len(parts), -1, -1)]
    for key, name in files:
        paths = [f"/sys/fs/cgroup{mount}/{p}/{name}".replace("//", "/") for p in places[:16]]
        values = {path: host.text(path, 64) or "" for path in paths}
        numbers = {path: int(v) for path, v in values.items() if v.isdecimal() and int(v) < UNLIMITED}
        if numbers:
            least = min(numbers, key=lambda path: numbers[path])
            limits[key] = min(numbers[least], limits[key]) if limits.get(key, -1) >= 0 else numbers[least]
            used = host.text(least.replace("pids.max", "pids.current"), 64) or ""
            if key == "pids" and used.isdecimal():
                limits["pids_used"] = int(used)
        elif any(values.values()):
            limits.setdefault(key, -1)


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Failures and warnings where a limit is too small for this run; warnings where none is, and they differ."""
    collected = {n: part(f, ID) for n, f in facts_by_node.items()}
    loads = _loads(request, facts_by_node)
    findings: List[Finding] = []
    for key, limit in LIMITS.items():
        values = {n: int(v[key]) for n, v in collected.items() if isinstance(v.get(key), int)}
        values = {n: v for n, v in values.items() if _binds(key, facts_by_node[n], loads[n])}
        used = {n: int(collected[n].get(USED.get(key, ""), 0)) for n in values}
        short = {n: v for n, v in values.items() if 0 <= v < used[n] + limit.least(loads[n])}
        tight = {n: v for n, v in values.items() if n not in short and 0 <= v < used[n] + limit.safe(loads[n])}
        findings += _findings(key, "fail", short, used, loads)
        findings += _findings(key, "warn", tight, used, loads)
        if not short and not tight and key not in BY_SIZE and key not in ("nofile", "memlock", "ports"):
            findings += _different(key, limit, values)
    return findings


def _loads(request: Request, facts_by_node: Nodes) -> Dict[str, Load]:
    """Virtual nodes are one machine, which has all ranks."""
    ranks = Ranks(request, facts_by_node)
    loads = {}
    for node, facts in facts_by_node.items():
        gpus = gpu_count(facts)
        if request.get("virtual"):
            loads[node] = Load(ranks.world, ranks.world, gpus, True)
        else:
            loads[node] = Load(ranks.by_node.get(node, 1), ranks.world, gpus, node == ranks.first)
    return loads


def _binds(key: str, facts: Facts, load: Load) -> bool:
    """Whether the limit holds for what runs there: getrlimit(2) has what root may do."""
    root = part(facts, "identity").get("uid") == 0
    if key == "nproc":
        return not root
    if key == "memlock":
        environ = part(facts, "nccl").get("environ") or {}
        rdma = part(facts, "nccl").get("rdma") and environ.get("NCCL_IB_DISABLE") != "1"
        return bool(rdma) and load.remote > 0 and not root
    return True


def _findings(
    key: str, status: Status, values: Mapping[str, int], used: Mapping[str, int], loads: Mapping[str, Load]
) -> List[Finding]:
    """One for the nodes that have and need the same."""
    limit = LIMITS[key]
    wanted = limit.least if status == "fail" else limit.safe
    findings = []
    for (value, need), nodes in by_value({n: (v, wanted(loads[n])) for n, v in values.items()}).items():
        load = loads[nodes[0]]
        name = f"the {limit.name}" if " " in limit.name and not limit.name.startswith("the ") else limit.name
        in_use = f" ({limit.show(used[nodes[0]])} in use)" if used[nodes[0]] else ""
        figure = limit.show(need)
        if used[nodes[0]]:
            figure += " more" if status == "fail" else " free"
        message = f"{name} on {join_names(nodes)} is {limit.show(value)}{in_use}; "
        if status == "fail":
            message += f"this run needs {figure} there ({count_of(load.local, 'rank')} of {load.world})"
        else:
            message += f"{figure} or more is safe"
        findings.append(Finding(limit.finding, status, message, _remedy(key, nodes[0]), place(nodes)))
    return findings


def _different(key: str, limit: Limit, values: Mapping[str, int]) -> List[Finding]:
    def show(value: Any) -> str:
        return "unlimited" if value < 0 else limit.show(value)

    if key == "memory":  # a share of the machine's: some bytes more or less
        values = {n: v if v < 0 else v >> 30 << 30 for n, v in values.items()}
    findings = []
    for d in differences(limit.name, values, show):
        remedy = _remedy(key, d.nodes[0])
        if key in SYSCTLS:
            most = max(values.values())
            low = next(n for n, v in values.items() if v != most)
            remedy = remote(low, "sudo", "sysctl", "-w", f"{limit.name}={most}")
        findings.append(Finding(ID, "warn", d.message, remedy, place(d.nodes)))
    return findings


def _remedy(key: str, node: str) -> str:
    limit = LIMITS[key]
    if limit.remedy.startswith("sudo "):
        program, sysctl, write, setting = limit.remedy.split(maxsplit=3)
        return remote(node, program, sysctl, write, setting)
    return f"{limit.remedy}{f' on {node}, and log in again' if key in OF_THE_LOGIN else ''}"
