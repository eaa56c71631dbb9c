"""The nodes are tuned alike: CPU governor, clock source, NUMA balancing, IOMMU, huge pages.

Sources: Documentation/admin-guide/pm/cpufreq.rst (powersave is the normal state of intel_pstate and
amd-pstate-epp in active mode only), Documentation/timers/timekeeping.rst, and AMD's advice for RCCL
(numa_balancing=0, iommu=pt). A virtual machine or a container may show none of it.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Differs, Nodes, by_value, nodes_of, parts, place, remote
from ..host import Host, Request

ID = "tuning"
GROUP = "host"
LEVEL = "quick"
CPUS = "/sys/devices/system/cpu"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
# Read without leaving user space or with one instruction; others (hpet, acpi_pm) take microseconds.
FAST_CLOCKS = (
    "tsc",
    "tsc-early",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "xen",
    "timebase",
    "tod",
    "riscv_clocksource",
    "vmware-clock",
    "stable_counter",
)
OWN_GOVERNOR = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
GOVERNOR = Differs("governor", "CPU governor", "ssh {node} 'sudo cpupower frequency-set -g {norm}'", (), "performance")
CLOCKSOURCE = Differs("clock", "clock source", "see why: ssh {node} 'sudo dmesg | grep -i clocksource'")
DIFFER = (
    GOVERNOR,
    CLOCKSOURCE,
    Differs("numa", "kernel.numa_balancing", "ssh {node} 'sudo sysctl -w kernel.numa_balancing={norm}'", (), "0"),
    Differs("iommu", "IOMMU mode", "boot all with one kernel command line: ssh {node} 'cat /proc/cmdline'"),
    Differs("pages", "transparent huge pages", f"ssh {{node}} 'echo {{norm}} | sudo tee {PAGES}'", (), "madvise"),
)


def collect(host: Host) -> Optional[Dict[str, str]]:
    """What the node shows of each."""
    values = {
        "governor": _governors(host),
        "driver": host.text(f"{CPUS}/cpu0/cpufreq/scaling_driver", 64) or "",
        "clock": host.text(CLOCK, 64) or "",
        "numa": host.text("/proc/sys/kernel/numa_balancing", 16) or "",
        "pages": (host.text(PAGES, 128) or "").partition("[")[2].partition("]")[0],
    }
    line = host.text("/proc/cmdline")
    if line:
        words = (w for w in line.split() if w.partition("=")[0] in ("iommu", "intel_iommu", "amd_iommu"))
        values["iommu"] = " ".join(sorted(words))[:100] or "default"
    return {k: v for k, v in values.items() if v} or None


def _governors(host: Host) -> str:
    """Of all CPUs; more than one value is told as such."""
    values = {host.text(path, 64) or "" for path in host.glob(f"{CPUS}/cpu*/cpufreq/scaling_governor")[:1024]}
    return " and ".join(sorted(v for v in values if v))[:100]


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: slow where all agree, and what differs."""
    collected = parts(facts_by_node, ID)
    findings = _slow_clock(collected) + _powersave(collected)
    reported = {node for finding in findings for node in nodes_of(finding.where)}
    for compared in DIFFER:
        for finding in compared.judge(ID, facts_by_node):
            if compared not in (GOVERNOR, CLOCKSOURCE) or not reported.issuperset(nodes_of(finding.where)):
                findings.append(finding)
    return findings


def _slow_clock(collected: Nodes) -> List[Finding]:
    slow = {n: v["clock"] for n, v in collected.items() if v.get("clock") and v["clock"] not in FAST_CLOCKS}
    findings = []
    for clock, nodes in by_value(slow).items():
        message = (
            f"{join_names(nodes)} {plural(len(nodes), 'reads', 'read')} the time from {clock}, a slow clock source:"
        )
        message += " every timestamp costs a system call"
        look = f"ssh {nodes[0]} 'sudo dmesg | grep -i -e tsc -e clocksource'"
        remedy = f"see why the TSC was given up: {look}"
        findings.append(Finding(ID, "warn", message, remedy, place(nodes)))
    return findings


def _powersave(collected: Nodes) -> List[Finding]:
    """Under other drivers it holds the lowest frequency."""
    slow = [n for n, v in collected.items() if v.get("governor") == "powersave" and v.get("driver") not in OWN_GOVERNOR]
    if not slow:
        return []
    driver = collected[slow[0]].get("driver") or "its driver"
    message = f"the CPUs of {join_names(slow)} stay at their lowest frequency (governor powersave with {driver})"
    remedy = remote(slow[0], "sudo", "cpupower", "frequency-set", "-g", "performance")
    return [Finding(ID, "warn", message, remedy, place(slow))]
