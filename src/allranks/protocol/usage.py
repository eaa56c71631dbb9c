"""What the machine of a node does while ranks run on it (pure, Python 3.8)."""

from __future__ import annotations

from typing import Optional

from .codec import omit_none
from .records import NamedTuple


@omit_none
class NodeUsage(NamedTuple):
    """What a node's machine did in the `seconds` before `t` (unix time). None: the kernel does not say it.

    Cores: `cores` in all, of them `cpu_used` by all processes, `cpu_ranks` by ranks and their children, `cpu_others` by
    the rest, and `cpu_waiting` idle while a disk was waited for. `cpu_throttled_s`: seconds for which a CPU quota held
    the ranks' control groups back, summed over processors. `cpu_pressure`, `memory_pressure` and `io_pressure`: the
    share of the time, 0 to 1, in which some process waited for it (proc/pressure). `cpu_heat`: how often heat slowed a
    package of processors.
    Memory in bytes; `swapped_in` bytes a second. Network, without lo: bytes a second, and packets dropped in all;
    `tcp_sent` and `tcp_retransmitted` are segments. Disks: bytes a second, `disk_busy` of the busiest one, 0 to 1, and
    `disk_wait_s`, seconds that all requests together took.
    """

    t: float = 0.0
    seconds: float = 0.0
    cores: int = 0
    load: Optional[float] = None  # runnable processes, over a minute
    cpu_used: Optional[float] = None
    cpu_ranks: Optional[float] = None
    cpu_others: Optional[float] = None
    cpu_waiting: Optional[float] = None
    cpu_throttled_s: Optional[float] = None
    cpu_pressure: Optional[float] = None
    cpu_heat: Optional[int] = None
    memory_used: Optional[int] = None
    memory_total: Optional[int] = None
    memory_pressure: Optional[float] = None
    swapped_in: Optional[float] = None
    received: Optional[float] = None
    sent: Optional[float] = None
    packets_dropped: Optional[int] = None
    tcp_sent: Optional[int] = None
    tcp_retransmitted: Optional[int] = None
    disk_read: Optional[float] = None
    disk_written: Optional[float] = None
    disk_busy: Optional[float] = None
    disk_wait_s: Optional[float] = None
    io_pressure: Optional[float] = None
    gpu_busy: Optional[float] = None  # mean of the GPUs that sysfs describes (amdgpu), 0 to 1
    gpu_memory_used: Optional[int] = None
    gpu_memory_total: Optional[int] = None
