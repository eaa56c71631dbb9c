"""The nodes have the same processors and as much memory, and none of it is swapped out.

The slowest node sets the pace of all. Azure NHC compares CPU and memory with what its machine types
should have (check_hw_cpuinfo, check_hw_physmem); here the other nodes are the norm.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from allranks.findings import Finding

from ..compare import Nodes, differences, differing, part, parts, place, remote, size, warn
from ..host import Host, Record, Request

ID = "machine"
GROUP = "host"
LEVEL = "quick"
TOLERANCE = 0.02  # firmware and the kernel keep a different little for themselves
MUCH_SWAP = 1 << 30
MUCH_OF_MEMORY = 0.1  # a little is swapped out of every machine that has been up for long
MODEL_KEYS = ("model name", "cpu model", "cpu")  # x86; MIPS, LoongArch; POWER
ARM_KEYS = ("CPU implementer", "CPU part")


def collect(host: Host) -> Optional[Record]:
    """{"model": text, "swap": bytes in use}."""
    evidence: Dict[str, Any] = {}
    model = _model(host.text("/proc/cpuinfo", 16384) or "")
    if model:
        evidence["model"] = model
    memory = {}
    for line in (host.text("/proc/meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        memory[key] = int((rest.split() or ["0"])[0]) * 1024
    if "SwapTotal" in memory and "SwapFree" in memory:
        evidence["swap"] = memory["SwapTotal"] - memory["SwapFree"]
    return evidence or None


def _model(text: str) -> str:
    """Of the first processor; Arm kernels give numbers for the maker and the part."""
    values: Dict[str, str] = {}
    for line in text.splitlines():
        key, sign, value = line.partition(":")
        if sign:
            values.setdefault(key.strip(), value.strip())
    for key in MODEL_KEYS:
        if values.get(key):
            return " ".join(values[key].split())[:100]
    return " ".join(f"{key} {values[key]}" for key in ARM_KEYS if key in values)[:100]


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings under the check's own name."""
    counts = {n: f["cpu"] for n, f in facts_by_node.items() if isinstance(f.get("cpu"), int)}
    models = {n: one["model"] for n, one in parts(facts_by_node, ID).items() if one.get("model")}
    findings = []
    for d in differences("CPUs", counts, lambda v: str(v), "may use", "may use"):
        message = d.message.replace(" CPUs ", " ", 1).replace("; ", " CPUs; ", 1) if d.norm is not None else d.message
        remedy = f"look: {remote(d.nodes[0], 'nproc')}; {remote(d.nodes[0], 'lscpu')} (offline CPUs, a cpuset, SMT)"
        findings.append(Finding(ID, "warn", message, remedy, place(d.nodes)))
    advice = "use equal machines, or expect the slowest to set the pace"
    findings += warn(ID, differences("processor", models), lambda d: f"{advice}; {remote(d.nodes[0], 'lscpu')}")
    return findings + _memory(facts_by_node) + _swap(facts_by_node)


def _memory(facts_by_node: Nodes) -> List[Finding]:
    """Within a tolerance of the median, which most must be near."""
    totals = {n: int(part(f, "mem").get("total") or 0) for n, f in facts_by_node.items()}
    totals = {n: v for n, v in totals.items() if v > 0}
    if len(totals) < 2:
        return []
    norm = sorted(totals.values())[len(totals) // 2]
    odd = {n: v for n, v in totals.items() if abs(v - norm) > TOLERANCE * norm}
    fine = [n for n in totals if n not in odd]
    if not odd:
        return []
    if len(fine) < 2 or 2 * len(fine) <= len(totals):
        shown = differing({n: _gigabytes(v) for n, v in totals.items()})
        message = f"nodes differ in memory: {shown}"
        return [Finding(ID, "warn", message, _look_at_memory(next(iter(odd))), place(list(totals)))]
    rest = f"the other {len(fine)} have" if len(odd) == 1 else f"{len(fine)} of {len(totals)} nodes have"
    findings = []
    for node, value in odd.items():
        message = f"{node} has {_gigabytes(value)} of memory; {rest} {_gigabytes(norm)}"
        findings.append(Finding(ID, "warn", message, _look_at_memory(node), place([node])))
    return findings


def _look_at_memory(node: str) -> str:
    modules = remote(node, "sudo", "dmidecode", "-t", "17")
    return f"a lost memory module or a smaller machine: {remote(node, 'free', '-h')}; {modules}"


def _gigabytes(value: int) -> str:
    return f"{value / (1 << 30):.0f} GB" if value >= 10 << 30 else size(value)


def _swap(facts_by_node: Nodes) -> List[Finding]:
    findings = []
    for node, facts in facts_by_node.items():
        used = int(part(facts, ID).get("swap") or 0)
        total = int(part(facts, "mem").get("total") or 0)
        if used >= MUCH_SWAP and used >= MUCH_OF_MEMORY * total:
            message = f"{node} has {size(used)} swapped out: memory ran short"
            remedy = f"end what takes the memory ({remote(node, 'top', '-b', '-n1', '-o', '%MEM')}), "
            remedy += f"then ssh {node} 'sudo swapoff -a && sudo swapon -a'"
            findings.append(Finding(ID, "warn", message, remedy, place([node])))
    return findings
