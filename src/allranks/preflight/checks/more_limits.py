"""Stack, processes, listen queue, memory maps and the cgroup's limits are large enough and alike.

Limits of the guard, which its ranks inherit. Sources: proc_pid_limits(5), Documentation/admin-guide/
cgroup-v2.rst (pids.max, memory.max count in every parent too), Documentation/admin-guide/sysctl/{net,vm}.rst.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, differences, part, place, remote, size
from ..host import Host

ID = "more_limits"
GROUP = "host"
LEVEL = "quick"
LINES = {"Max stack size": "stack", "Max processes": "nproc", "Max core file size": "core"}
SYSCTLS = {"somaxconn": "net/core/somaxconn", "pid_max": "kernel/pid_max", "max_map_count": "vm/max_map_count"}
UNLIMITED = 1 << 60  # cgroup v1 writes "none" as the largest number of pages
BY_SIZE = ("nproc", "pids")  # the defaults follow from the memory, so they differ by a little
# A rank with NCCL's and autograd's threads and a few data-loader workers has some hundred tasks.
TASKS, TASKS_A_GPU = 1024, 512
MEMORY, MEMORY_A_GPU = 1 << 30, 2 << 30


class Limit(NamedTuple):
    """One of them: its name in a sentence, how to show and how to raise it, the least for (GPUs, ranks)."""

    name: str
    show: Callable[[Any], str]
    remedy: str
    least: Callable[[int, int], int]


LIMITS = {
    "stack": Limit("stack limit (ulimit -s)", size, "set 'stack' in /etc/security/limits.conf to 8192",
                   lambda gpus, ranks: 8 << 20),
    "nproc": Limit("limit of processes (ulimit -u)", str, "raise 'nproc' in /etc/security/limits.conf",
                   lambda gpus, ranks: max(TASKS, TASKS_A_GPU * gpus)),
    "core": Limit("limit of core files (ulimit -c)", size, "set 'core' in /etc/security/limits.conf as elsewhere",
                  lambda gpus, ranks: 0),
    "somaxconn": Limit("net.core.somaxconn", str, "sudo sysctl -w net.core.somaxconn=4096",
                       lambda gpus, ranks: max(128, ranks)),  # all ranks reach the master's store at once
    "pid_max": Limit("kernel.pid_max", str, "sudo sysctl -w kernel.pid_max=4194304", lambda gpus, ranks: 32768),
    "max_map_count": Limit("vm.max_map_count", str, "sudo sysctl -w vm.max_map_count=262144",
                           lambda gpus, ranks: 65530),
    "pids": Limit("cgroup limit of tasks (pids.max)", str,
                  "raise it: docker --pids-limit, kubelet podPidsLimit, systemd TasksMax",
                  lambda gpus, ranks: max(TASKS, TASKS_A_GPU * gpus)),
    "memory": Limit("cgroup limit of memory (memory.max)", size,
                    "raise it: docker --memory, the pod's limits.memory, Slurm --mem",
                    lambda gpus, ranks: max(MEMORY, MEMORY_A_GPU * gpus)),
}  # fmt: skip


def collect(host: Host) -> Optional[Dict[str, int]]:
    """The soft limits and the kernel's; -1 is unlimited."""
    found: Dict[str, int] = {}
    for line in (host.text("/proc/self/limits") or "").splitlines():
        for head, key in LINES.items():
            words = line[len(head) :].split()
            if line.startswith(head) and words:
                found[key] = -1 if words[0] == "unlimited" else int(words[0])
    for key, path in SYSCTLS.items():
        text = host.text(f"/proc/sys/{path}", 64) or ""
        if text.isdigit():
            found[key] = int(text)
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            _cgroup(host, found, "", path, (("pids", "pids.max"), ("memory", "memory.max")))
        if "pids" in controllers.split(","):
            _cgroup(host, found, "/pids", path, (("pids", "pids.max"),))
        if "memory" in controllers.split(","):
            _cgroup(host, found, "/memory", path, (("memory", "memory.limit_in_bytes"),))
    return found or None


def _cgroup(host: Host, found: Dict[str, int], mount: str, path: str, files: Tuple[Tuple[str, str], ...]) -> None:
    """The smallest on the way up. In a container the path may be the host's, while the mount is our own."""
    parts = [p for p in path.split("/") if p and p != ".."]
    places = ["/".join(parts[:i]) for i in range(len(parts), -1, -1)]
    for key, name in files:
        values = [host.text(f"/sys/fs/cgroup{mount}/{p}/{name}".replace("//", "/"), 64) or "" for p in places[:16]]
        numbers = [int(v) for v in values if v.isdigit() and int(v) < UNLIMITED]
        if numbers:
            found[key] = min(numbers + [found[key]] if key in found and found[key] >= 0 else numbers)
        elif any(values):
            found.setdefault(key, -1)


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """Warnings: too small, and, where none is, different."""
    looked = {n: part(f, ID) for n, f in facts_by_node.items()}
    gpus = {n: int(part(f, "gpus").get("count") or 0) for n, f in facts_by_node.items()}
    roots = [n for n, f in facts_by_node.items() if part(f, "identity").get("uid") == 0]
    each = request.get("nproc")
    ranks = len(facts_by_node) * (each if isinstance(each, int) else max(1, max(gpus.values(), default=1)))
    found = []
    for key, limit in LIMITS.items():
        values = {n: int(v[key]) for n, v in looked.items() if isinstance(v.get(key), int)}
        if key == "nproc":  # does not bind root: getrlimit(2)
            values = {n: v for n, v in values.items() if n not in roots}
        small = {n: v for n, v in values.items() if 0 <= v < limit.least(gpus[n], ranks)}
        found += [_small(limit, value, nodes, limit.least(gpus[nodes[0]], ranks), key)
                  for value, nodes in by_value(small).items()]  # fmt: skip
        if not small and key not in BY_SIZE:
            found += _different(limit, values, key)
    return found


def _small(limit: Limit, value: int, nodes: List[str], least: int, key: str) -> Finding:
    name = f"the {limit.name}" if " " in limit.name else limit.name
    message = f"{name} on {join_names(nodes)} is {limit.show(value)}; {limit.show(least)} or more is safe"
    return Finding(ID, "warn", message, _remedy(limit, nodes[0], key), place(nodes))


def _different(limit: Limit, values: Mapping[str, int], key: str) -> List[Finding]:
    def show(value: Any) -> str:
        return "unlimited" if value < 0 else limit.show(value)

    if key == "memory":  # a share of the machine's: some bytes more or less
        values = {n: v if v < 0 else v >> 30 << 30 for n, v in values.items()}
    found = []
    for d in differences(limit.name, values, show):
        remedy = _remedy(limit, d.nodes[0], key)
        if key in SYSCTLS:
            most = max(values.values())
            low = next(n for n, v in values.items() if v != most)
            remedy = remote(low, "sudo", "sysctl", "-w", f"{limit.name}={most}")
        found.append(Finding(ID, "warn", d.message, remedy, place(d.nodes)))
    return found


def _remedy(limit: Limit, node: str, key: str) -> str:
    if limit.remedy.startswith("sudo "):
        return remote(node, *limit.remedy.split())
    return f"{limit.remedy}{f' on {node}, and log in again' if key in LINES.values() else ''}"
