"""A sample of what this machine does, by plain reads of /proc and /sys: under a millisecond, and no process.

An agent loads this module with the first sample, some time after its ranks have started. Formats are those of
proc(5) and of the kernel's Documentation: accounting/psi.rst, admin-guide/cgroup-v2.rst and gpu/amdgpu.
"""

from __future__ import annotations

import glob
import os
from typing import Dict, Iterable, List, Optional, Tuple

from allranks.protocol.samples import NodeUsage

from .cgroups import quota_groups, read_cpu_stat
from .files import read_text
from .processes import TICKS, children_of_thread, stat_fields

MOST_PROCESSES = 1024  # of the ranks and their children that are counted


class Sampler:
    """Gives what happened between two calls; the first gives None."""

    def __init__(self) -> None:
        self._before: Dict[str, float] = {}  # numbers that only grow, by name
        self._before_at: Optional[float] = None  # monotonic seconds
        self._gpus = glob.glob("/sys/class/drm/card*/device/gpu_busy_percent")

    def sample(self, pids: Iterable[int], now: float, t: float) -> Optional[NodeUsage]:
        """Look; `pids` are ranks, `now` and `t` monotonic and unix seconds."""
        counts: Dict[str, float] = {}
        ranks = with_children(pids)
        _load(counts, ranks)
        _network(counts)
        grown = {name: max(0.0, counts[name] - was) for name, was in self._before.items() if name in counts}
        began = self._before_at
        self._before = counts
        self._before_at = now
        if began is None or now <= began:
            return None
        return self._usage(grown, now - began, t)

    def _usage(self, grown: Dict[str, float], seconds: float, t: float) -> NodeUsage:
        def rate(name: str, places: int = 3) -> Optional[float]:
            return round(grown[name] / seconds, places) if name in grown else None

        def count(name: str) -> Optional[int]:
            return int(grown[name]) if name in grown else None

        used = rate("cpu_used")
        by_ranks = rate("cpu_ranks")
        others = None if used is None or by_ranks is None else round(max(0.0, used - by_ranks), 3)
        throttled = max((grown[name] for name in grown if name.startswith("throttled ")), default=None)
        memory_used, memory_total = _memory()
        gpu_busy, gpu_used, gpu_total = _gpus(self._gpus)
        return NodeUsage(
            t=round(t, 3),
            seconds=round(seconds, 3),
            cores=os.cpu_count() or 0,
            cpu_used=used,
            cpu_ranks=by_ranks,
            cpu_others=others,
            cpu_throttled_s=None if throttled is None else round(throttled, 3),
            memory_used=memory_used,
            memory_total=memory_total,
            memory_pressure=rate("pressure memory"),
            received=rate("received", 0),
            sent=rate("sent", 0),
            tcp_sent=count("tcp_sent"),
            tcp_retransmitted=count("tcp_retransmitted"),
            io_pressure=rate("pressure io"),
            gpu_busy=gpu_busy,
            gpu_memory_used=gpu_used,
            gpu_memory_total=gpu_total,
        )


def with_children(pids: Iterable[int]) -> List[int]:
    """Add the descendants of processes, where the kernel lists them (CONFIG_PROC_CHILDREN)."""
    all_pids: List[int] = []
    waiting = list(pids)
    while waiting and len(all_pids) < MOST_PROCESSES:
        pid = waiting.pop()
        all_pids.append(pid)
        waiting += children_of_thread(pid, pid)
    return all_pids


def _numbers(words: List[str]) -> List[int]:
    return [int(word) for word in words if word.isdecimal()]


def _load(counts: Dict[str, float], ranks: List[int]) -> None:
    """Take what processors and memory have done, for the ranks and in all."""
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    times = _numbers(read_text("/proc/stat", 4096).split("\n", 1)[0].split()[1:])
    if len(times) >= 8:
        counts["cpu_used"] = (sum(times[:3]) + sum(times[5:8])) / TICKS
    # utime, stime, cutime and cstime: fields 14 to 17 of /proc/PID/stat
    counts["cpu_ranks"] = sum(int(word) for pid in ranks for word in stat_fields(pid)[11:15]) / TICKS
    # how long control groups of the ranks, and those above, were held back by a CPU quota
    for group in {group for pid in ranks[:64] for group in quota_groups(pid)}:
        text = read_text(os.path.join(group, "cpu.stat"))
        if "throttled_" in text:
            counts["throttled " + group] = read_cpu_stat(text)[2]
    for resource in ("memory", "io"):  # some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
        _, _, total = read_text("/proc/pressure/" + resource).split("\n", 1)[0].partition("total=")
        if total.isdecimal():
            counts["pressure " + resource] = int(total) / 1e6


def _network(counts: Dict[str, float]) -> None:
    """Take bytes of all interfaces but lo, and TCP's segments, of this network namespace."""
    for name in ("received", "sent"):
        counts[name] = 0
    for line in read_text("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = [int(word) for word in rest.split()]
        if name.strip() != "lo" and len(fields) > 8:
            counts["received"] += fields[0]
            counts["sent"] += fields[8]
    lines = [line.split() for line in read_text("/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    if len(lines) == 2:
        tcp = dict(zip(lines[0], lines[1]))  # noqa: B905 - Python 3.8 has no `strict`
        for field, name in (("OutSegs", "tcp_sent"), ("RetransSegs", "tcp_retransmitted")):
            if field in tcp:
                counts[name] = int(tcp[field])


def _memory() -> Tuple[Optional[int], Optional[int]]:
    lines = [line.split() for line in read_text("/proc/meminfo").splitlines()[:5]]
    sizes = {words[0]: 1024 * int(words[1]) for words in lines if words[0].startswith("Mem")}
    total = sizes.get("MemTotal:")
    available = sizes.get("MemAvailable:")
    if total is None or available is None:
        return None, total
    return total - available, total


def _gpus(files: List[str]) -> Tuple[Optional[float], Optional[int], Optional[int]]:
    busy: List[int] = []
    used = total = 0
    for path in files:
        busy += _numbers([read_text(path)])
        directory = os.path.dirname(path)
        used += sum(_numbers([read_text(os.path.join(directory, "mem_info_vram_used"))]))
        total += sum(_numbers([read_text(os.path.join(directory, "mem_info_vram_total"))]))
    if not busy:
        return None, None, None
    return round(sum(busy) / len(busy) / 100, 3), used or None, total or None
