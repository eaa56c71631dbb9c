"""When the ranks of this node called their newest collectives, and what keeps a suspected one (pure reading, no order).

The times come from the ranks themselves, the counters of connections from the kernel. A suspect's stacks are sampled
some times, and what its control groups and its CPU have counted meanwhile is compared.
"""

from __future__ import annotations

import os
import time
from typing import Dict, List, Mapping, Sequence

from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import CallTimesMessage
from allranks.protocol.samples import SuspectLook

from .asking import call_times
from .cgroups import quota_groups, read_cpu_stat
from .files import read_text
from .processes import Process
from .sample import sample
from .sockets import link_counts

SAMPLES = 10
PAUSE = 0.3  # seconds between samples: not a divisor of usual steps
STACK = 16_000  # characters of a sample: the main thread is the last
LOOK_SECONDS = 8.0  # no further sample is begun after


def answer(ranks: Mapping[int, Process], suspects: Sequence[int], node_dir: str, most: int) -> CallTimesMessage:
    """Look at suspects for some seconds, then ask all ranks for their newest collectives."""
    looks = look_at({rank: ranks[rank] for rank in suspects if rank in ranks}, node_dir)
    calls = call_times(dict(ranks), node_dir, most)
    links = link_counts({rank: process.pid for rank, process in ranks.items()})
    return CallTimesMessage(calls, tuple(links), looks, time.time())


def look_at(ranks: Dict[int, Process], node_dir: str) -> Dict[int, SuspectLook]:
    """Sample ranks some times; nothing without any."""
    if not ranks:
        return {}
    before = {rank: counted(process.pid) for rank, process in ranks.items()}
    samples: Dict[int, List[JsonObject]] = {rank: [] for rank in ranks}
    at: List[float] = []
    began = time.monotonic()
    while len(at) < SAMPLES and time.monotonic() - began < LOOK_SECONDS:
        if at:
            time.sleep(PAUSE)
        at.append(round(time.monotonic() - began, 3))
        for rank, one in sample(ranks, node_dir, "look").ranks.items():
            kept = {key: value for key, value in one.items() if key not in ("recorder", "counted", "sockets")}
            samples[rank].append(dict(kept, text=str(kept.get("text") or "")[-STACK:]))
    looks: Dict[int, SuspectLook] = {}
    for rank, process in ranks.items():
        after = counted(process.pid)
        earlier = before[rank]
        looks[rank] = SuspectLook(
            tuple(samples[rank]),
            tuple(at),
            max(0, after.periods - earlier.periods),
            max(0, after.throttled - earlier.throttled),
            round(max(0.0, after.stood - earlier.stood), 3),
        )
    return looks


def counted(pid: int) -> SuspectLook:
    """Read what the CPU quotas of a process have counted, of the group that stood still longest.

    A quota of any group above holds too (kernel: admin-guide/cgroup-v2.rst, scheduler/sched-bwc.rst).
    """
    most = SuspectLook()
    for path in quota_groups(pid):
        periods, throttled, stood = read_cpu_stat(read_text(os.path.join(path, "cpu.stat")))
        if stood > most.stood or not most.periods:
            most = SuspectLook(periods=periods, throttled=throttled, stood=stood)
    return most
