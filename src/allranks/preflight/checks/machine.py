"""The nodes have the same processors, memory, kernel, system and tuning, and no memory is swapped out.

The slowest node sets the pace of all. Azure NHC compares CPU and memory with what its machine types should have
(check_hw_cpuinfo, check_hw_physmem). Here the other nodes are the norm. Meta's GCM looks at the tuning, and so does
AMD's advice for RCCL. Sources: os-release(5), getconf(1) GNU_LIBC_VERSION, Documentation/admin-guide/pm/cpufreq.rst,
Documentation/timers/timekeeping.rst. A virtual machine or a container may show none of it.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional

from allranks.protocol.records import NamedTuple

from ..compare import (
    Difference,
    Findings,
    Nodes,
    by_item,
    collected,
    differences,
    having,
    remote,
    size,
    values_of,
    warn,
    warn_each,
)
from ..host import Host, key_values, text_in
from ..typed_facts import Request

ID = "machine"
GROUP = "host"
LEVEL = "quick"
TOLERANCE = 0.02  # firmware and the kernel keep a different little for themselves
MUCH_SWAP = 1 << 30
MUCH_OF_MEMORY = 0.1  # a little is swapped out of every machine that has been up for long
ARM_KEYS = ("CPU implementer", "CPU part")
CPUS = "/sys/devices/system/cpu"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


class Alike(NamedTuple):
    """What nodes should have in common: its name in a sentence, and the remedy.

    {norm} is what most nodes have or, where they do not agree on one value, `advised`.
    """

    label: str
    remedy: str
    advised: str = ""

    def remedy_for(self, odd: Difference[str]) -> str:
        """Write it for the first of the odd nodes."""
        norm = odd.norm
        if norm is None or " and " in norm:  # CPUs of one node differ
            norm = self.advised
        return self.remedy.format(node=odd.nodes[0], norm=norm)


IMAGE = "use one image for all nodes, or one container image (--wrap). Look: ssh {node} 'cat /etc/os-release'"
LIBC = "use one image, as compiled extensions may not load on the older one. Look: ssh {node} 'ldd --version'"
GOVERNOR = "ssh {node} 'sudo cpupower frequency-set -g {norm}'"
ALIKE = {
    "kernel": Alike("kernel", "boot the same kernel on all. Look: ssh {node} 'uname -r'"),
    "os": Alike("operating system", IMAGE),
    "libc": Alike("C library", LIBC),
    "governor": Alike("CPU governor", GOVERNOR, "performance"),
    "clock": Alike("clock source", "see why: ssh {node} 'sudo dmesg | grep -i clocksource'"),
    "numa": Alike("kernel.numa_balancing", "ssh {node} 'sudo sysctl -w kernel.numa_balancing={norm}'", "0"),
    "iommu": Alike("IOMMU mode", "boot all with one kernel command line: ssh {node} 'cat /proc/cmdline'"),
}


class Machine(NamedTuple):
    """The processor's model, bytes that are swapped out, and what is known of ALIKE."""

    model: str = ""
    swap: int = 0
    system: Mapping[str, str] = {}


def collect(host: Host) -> Optional[Machine]:
    """None where the node shows nothing of it."""
    memory = key_values(text_in(host, "/proc/meminfo"), ":")
    sizes = [int((memory.get(key) or "0").split()[0]) * 1024 for key in ("SwapTotal", "SwapFree")]
    machine = Machine(_model(text_in(host, "/proc/cpuinfo", 16384))[:100], sizes[0] - sizes[1], _system(host))
    if any(machine) or memory:
        return machine
    return None


def _model(text: str) -> str:
    """Of the first processor; Arm kernels give numbers for the maker and the part."""
    values = key_values(text, ":")
    name = values.get("model name")
    if name:
        return " ".join(name.split())
    return " ".join(f"{key} {values[key]}" for key in ARM_KEYS if key in values)


def _system(host: Host) -> Dict[str, str]:
    """Of several governors all; of the kernel's command line what concerns the IOMMU."""
    release = key_values(host.text("/etc/os-release") or text_in(host, "/usr/lib/os-release"))
    words = (release.get("ID"), release.get("VERSION_ID") or release.get("BUILD_ID"))
    libc = host.run(["getconf", "GNU_LIBC_VERSION"], 2.0)
    governors = {text_in(host, path, 64) for path in host.glob(f"{CPUS}/cpu*/cpufreq/scaling_governor")[:1024]}
    values = {
        "kernel": text_in(host, "/proc/sys/kernel/osrelease", 256),
        "os": " ".join(filter(None, words)),
        "libc": libc.out.strip() if libc.ok else "",
        "governor": " and ".join(sorted(governors - {""})),
        "clock": text_in(host, CLOCK, 64),
        "numa": text_in(host, "/proc/sys/kernel/numa_balancing", 16),
    }
    line = host.text("/proc/cmdline")
    if line:
        options = (word for word in line.split() if word.partition("=")[0] in ("iommu", "intel_iommu", "amd_iommu"))
        values["iommu"] = " ".join(sorted(options)) or "default"
    return {name: value[:100] for name, value in values.items() if value}


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings under the check's own name."""
    machines = collected(facts_by_node, ID, Machine)
    cpus = having(facts_by_node, lambda facts: facts.cpus)
    for odd in differences("CPUs", cpus, one="may use", many="may use", phrase="{value} {what}"):
        node = odd.nodes[0]
        remedy = f"look: {remote(node, 'nproc')} and {remote(node, 'lscpu')} (offline CPUs, a cpuset, SMT)"
        yield warn(ID, odd.nodes, odd.message, remedy)
    advice = "use equal machines, or expect the slowest to set the pace"
    models = having(machines, lambda machine: machine.model)
    odd_models = differences("processor", models)
    yield from warn_each(ID, odd_models, lambda d: f"{advice}. Look: {remote(d.nodes[0], 'lscpu')}")
    yield from _memory(facts_by_node)
    systems = by_item(values_of(machines, lambda machine: machine.system))
    for name, alike in ALIKE.items():
        yield from warn_each(ID, differences(alike.label, systems.get(name, {})), alike.remedy_for)
    for node, machine in machines.items():
        total = facts_by_node[node].mem.total or 0
        if machine.swap >= MUCH_SWAP and machine.swap >= MUCH_OF_MEMORY * total:
            message = f"{node} has {size(machine.swap)} swapped out: memory ran short"
            remedy = f"end what takes the memory ({remote(node, 'top -b -n1 -o %MEM')}), "
            yield warn(ID, node, message, remedy + f"then ssh {node} 'sudo swapoff -a && sudo swapon -a'")


def _memory(facts_by_node: Nodes) -> Findings:
    totals = having(facts_by_node, lambda facts: facts.mem.total)
    ordered = sorted(totals.values()) or [0]
    norm = ordered[len(ordered) // 2]
    near = values_of(totals, lambda total: norm if abs(total - norm) <= TOLERANCE * norm else total)
    odds = differences("memory", near, _gigabytes, phrase="{value} of {what}")
    return warn_each(ID, odds, lambda odd: _look_at_memory(min(odd.nodes, key=totals.__getitem__)))


def _look_at_memory(node: str) -> str:
    modules = remote(node, "sudo dmidecode -t 17")
    return f"look for a lost memory module or a smaller machine: {remote(node, 'free -h')} and {modules}"


def _gigabytes(value: int) -> str:
    if value >= 10 << 30:
        return f"{value / (1 << 30):.0f} GB"
    return size(value)
