"""The nodes have the same processors and as much memory, and none of it is swapped out.

The slowest node sets the pace of all. Azure NHC compares CPU and memory with what its machine types
should have (check_hw_cpuinfo, check_hw_physmem). Here the other nodes are the norm.
"""

from __future__ import annotations

from typing import Optional

from allranks.protocol.records import NamedTuple

from ..compare import Findings, Nodes, collected, differences, having, remote, size, values_of, warn, warn_each
from ..host import Host, key_values, text_in
from ..typed_facts import Request

ID = "machine"
GROUP = "host"
LEVEL = "quick"
TOLERANCE = 0.02  # firmware and the kernel keep a different little for themselves
MUCH_SWAP = 1 << 30
MUCH_OF_MEMORY = 0.1  # a little is swapped out of every machine that has been up for long
MODEL_KEYS = ("model name", "cpu model", "cpu")  # x86; MIPS, LoongArch; POWER
ARM_KEYS = ("CPU implementer", "CPU part")


class Machine(NamedTuple):
    """The processor's model, and bytes that are swapped out."""

    model: str = ""
    swap: int = 0


def collect(host: Host) -> Optional[Machine]:
    """None where /proc shows neither."""
    memory = key_values(text_in(host, "/proc/meminfo"), ":")
    sizes = [int((memory.get(key) or "0").split()[0]) * 1024 for key in ("SwapTotal", "SwapFree")]
    machine = Machine(_model(text_in(host, "/proc/cpuinfo", 16384))[:100], sizes[0] - sizes[1])
    if any(machine) or memory:
        return machine
    return None


def _model(text: str) -> str:
    """Of the first processor; Arm kernels give numbers for the maker and the part."""
    values = key_values(text, ":")
    for key in MODEL_KEYS:
        if values.get(key):
            return " ".join(values[key].split())
    return " ".join(f"{key} {values[key]}" for key in ARM_KEYS if key in values)


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
