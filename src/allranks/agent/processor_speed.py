"""How fast this machine's processors run, and how often heat has slowed them: plain reads of /sys, where it says so.

A virtual machine's kernel says neither. Sources are the kernel's admin-guide/pm/cpufreq.rst (frequencies in kHz) and
arch/x86/kernel/cpu/mce/therm_throt.c (counts of events since the start).
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Mapping

from allranks.protocol.records import NamedTuple

from .files import read_text
from .processes import stat_fields

CPUS = "/sys/devices/system/cpu"
MOST_CPUS = 1024
RAN_ON = 36  # of stat_fields: `processor` of proc(5)


class Clock(NamedTuple):
    """The clock of a processor and its highest, in MHz; 0 where the kernel does not say it."""

    mhz: int = 0
    most_mhz: int = 0


NO_CLOCK = Clock()


def shows_clocks(root: str = CPUS) -> bool:
    """Tell whether the kernel says at which clock processors run."""
    return os.path.isdir(os.path.join(root, "cpu0", "cpufreq"))


def clock_under(pid: int, root: str = CPUS) -> Clock:
    """Read the clock of the processor on which a process's main thread runs; none of one that does not run now."""
    fields = stat_fields(pid)
    if len(fields) <= RAN_ON or fields[0] != "R":
        return NO_CLOCK
    return read_clock(int(fields[RAN_ON]), root)


def read_clock(cpu: int, root: str = CPUS) -> Clock:
    """Read the clock of a processor."""
    directory = os.path.join(root, "cpu%d" % cpu, "cpufreq")
    return Clock(
        _number(os.path.join(directory, "scaling_cur_freq")) // 1000,
        _number(os.path.join(directory, "cpuinfo_max_freq")) // 1000,
    )


def middle(clocks: Iterable[Clock]) -> Clock:
    """Give the median of those that are known; none of fewer than two."""
    known = sorted(clock for clock in clocks if clock.mhz)
    if len(known) < 2:
        return NO_CLOCK
    return known[len(known) // 2]


def heat_counts(cpus: Iterable[int], root: str = CPUS) -> Dict[str, int]:
    """Count how often heat has slowed these processors, each for itself and with its package; {} where unknown."""
    counts: Dict[str, int] = {}
    for cpu in list(cpus)[:MOST_CPUS]:
        for part in ("core", "package"):
            name = "cpu%d/thermal_throttle/%s_throttle_count" % (cpu, part)
            text = read_text(os.path.join(root, name)).strip()
            if text.isdecimal():
                counts[name] = int(text)
    return counts


def one_of_each_package(root: str = CPUS) -> List[int]:
    """List one processor of each package: what heat does to a package is the same on all of it."""
    packages: Dict[int, int] = {}
    for cpu in range(os.cpu_count() or 0):
        if os.path.exists(os.path.join(root, "cpu%d" % cpu, "thermal_throttle")):
            packages.setdefault(_number(os.path.join(root, "cpu%d" % cpu, "topology", "physical_package_id")), cpu)
    return list(packages.values())


def most_grown(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Give by how much the count grew that grew most."""
    return max([0, *(after[name] - count for name, count in before.items() if name in after)])


def _number(path: str) -> int:
    text = read_text(path).strip()
    return int(text) if text.isdecimal() and len(text) < 16 else 0
