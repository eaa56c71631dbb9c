"""The nodes are tuned alike: CPU governor, clock source, NUMA balancing, IOMMU.

Sources: Documentation/admin-guide/pm/cpufreq.rst (powersave is the normal state of intel_pstate and
amd-pstate-epp in active mode only), Documentation/timers/timekeeping.rst, and AMD's advice for RCCL
(numa_balancing=0, iommu=pt). A virtual machine or a container may show none of it.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional

from allranks.text import join_names

from ..compare import (
    Differs,
    Findings,
    Nodes,
    by_value,
    collected,
    having,
    nodes_of,
    remote,
    those,
    values_of,
    warn,
    who,
)
from ..host import Host, text_in
from ..typed_facts import Request

ID = "tuning"
GROUP = "host"
LEVEL = "quick"
CPUS = "/sys/devices/system/cpu"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
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
GOVERNOR = Differs("governor", "CPU governor", "ssh {node} 'sudo cpupower frequency-set -g {norm}'", "", "performance")
CLOCKSOURCE = Differs("clock", "clock source", "see why: ssh {node} 'sudo dmesg | grep -i clocksource'")
DIFFER = (
    GOVERNOR,
    CLOCKSOURCE,
    Differs("numa", "kernel.numa_balancing", "ssh {node} 'sudo sysctl -w kernel.numa_balancing={norm}'", "", "0"),
    Differs("iommu", "IOMMU mode", "boot all with one kernel command line: ssh {node} 'cat /proc/cmdline'"),
)


def collect(host: Host) -> Optional[Dict[str, str]]:
    """Read what the node shows of each; of several governors all."""
    governors = {text_in(host, path, 64) for path in host.glob(f"{CPUS}/cpu*/cpufreq/scaling_governor")[:1024]}
    values = {
        "governor": " and ".join(sorted(governors - {""}))[:100],
        "driver": text_in(host, f"{CPUS}/cpu0/cpufreq/scaling_driver", 64),
        "clock": text_in(host, CLOCK, 64),
        "numa": text_in(host, "/proc/sys/kernel/numa_balancing", 16),
    }
    line = host.text("/proc/cmdline")
    if line:
        words = (w for w in line.split() if w.partition("=")[0] in ("iommu", "intel_iommu", "amd_iommu"))
        values["iommu"] = " ".join(sorted(words))[:100] or "default"
    return having(values, lambda value: value) or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of what is slow, and of what differs among the others: what is slow is not a norm."""
    nodes = collected(facts_by_node, ID, Dict[str, str])
    slow = {CLOCKSOURCE: list(_slow_clock(nodes)), GOVERNOR: list(_powersave(nodes))}
    for findings in slow.values():
        yield from findings
    for compared in DIFFER:
        reported = {node for finding in slow.get(compared, ()) for node in nodes_of(finding.where)}
        yield from compared.judge(ID, {node: one for node, one in nodes.items() if node not in reported})


def _slow_clock(nodes: Mapping[str, Dict[str, str]]) -> Findings:
    clocks = {node: one["clock"] for node, one in nodes.items() if one.get("clock", FAST_CLOCKS[0]) not in FAST_CLOCKS}
    for clock, names in by_value(clocks).items():
        message = f"{who(names, 'reads', 'read')} the time from {clock}, a slow clock source:"
        message += " every timestamp costs a system call"
        show = f"ssh {names[0]} 'sudo dmesg | grep -i -e tsc -e clocksource'"
        yield warn(ID, names, message, f"see why the TSC was given up: {show}")


def _powersave(nodes: Mapping[str, Dict[str, str]]) -> Findings:
    """Under other drivers it holds the lowest frequency."""
    saving = those(nodes, lambda one: one.get("governor") == "powersave")
    drivers = values_of(saving, lambda one: one.get("driver", "its driver"))
    slow = those(drivers, lambda driver: driver not in OWN_GOVERNOR)
    for driver, names in by_value(slow).items():
        message = f"the CPUs of {join_names(names)} stay at their lowest frequency (governor powersave with {driver})"
        yield warn(ID, names, message, remote(names[0], "sudo cpupower frequency-set -g performance"))
