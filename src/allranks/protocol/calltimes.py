"""When ranks called their newest collectives, and what a node says of a suspected rank (pure, Python 3.8).

A rank's runner makes `RankCalls` (agent/runner_recorder.py), its agent the rest, and the controller compares them.
"""

from __future__ import annotations

from typing import Tuple

from .codec import omit_empty
from .jsontext import JsonObject
from .records import NamedTuple


@omit_empty("duration")
class GroupCalls(NamedTuple):
    """The newest collectives of a process group as one rank called them, in the order of the calls.

    `size` and `first` (its lowest global rank) tell groups of one name apart. `kinds` are `OPERATION ELEMENTS`, and
    `kind` says which of them each call is. `created` are microseconds from `RankCalls.base` to the call; on a device
    (NCCL) that is when it was queued, and `duration` says for how many microseconds the device was in it, 0 where it
    still is or torch does not measure it (TORCH_NCCL_ENABLE_TIMING).
    """

    name: str
    size: int
    first: int = 0
    on_device: bool = False
    kinds: Tuple[str, ...] = ()
    sequence: Tuple[int, ...] = ()
    kind: Tuple[int, ...] = ()
    created: Tuple[int, ...] = ()
    duration: Tuple[int, ...] = ()


@omit_empty("error")
class RankCalls(NamedTuple):
    """What a rank's flight recorder has of its groups; `base` is in unix seconds by the node's clock."""

    base: int = 0
    groups: Tuple[GroupCalls, ...] = ()
    collections: int = 0  # of the oldest generation, by Python's garbage collector
    error: str = ""


class LinkCount(NamedTuple):
    """The kernel's counters of a rank's connections to one address, since they began (linux/tcp.h).

    `acked` in bytes; `busy`: microseconds with data on its way, `held` those of them for which the receiver had no
    room; `sent` and `resent` in packets.
    """

    rank: int
    peer: str
    acked: int = 0
    busy: int = 0
    held: int = 0
    sent: int = 0
    resent: int = 0


class SuspectLook(NamedTuple):
    """How a rank spent some seconds: stack samples (agent/sample.py), and what its control groups counted meanwhile.

    `at` are seconds from the first sample. `periods` of its CPU quota, those that were `throttled`, and the seconds
    that it stood still; `faults`: pages read back from disk. `heat`: how often heat slowed its processors. `clock_mhz`
    of the processor on which it ran, and `most_mhz`, the highest of that one; 0 where the kernel does not say it.
    """

    samples: Tuple[JsonObject, ...] = ()
    at: Tuple[float, ...] = ()
    periods: int = 0
    throttled: int = 0
    stood: float = 0.0
    faults: int = 0
    heat: int = 0
    clock_mhz: int = 0
    most_mhz: int = 0
