"""What agents sample: calls of collectives, links and sockets of ranks, usage of a node (pure, Python 3.8)."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from .codec import Annotated, at_most, omit_empty, omit_none
from .jsontext import Json, JsonObject
from .records import NamedTuple

NO_PY_SPY = "py-spy is not installed here"  # why a sample has no stack


def is_loopback(address: str) -> bool:
    """Tell whether an address, with a port or without, is of the machine itself."""
    return address.startswith(("127.", "::1"))


class RankSocket(NamedTuple):
    """One connection; `local` and `peer` are ADDRESS:PORT.

    `connecting`: the peer has not answered yet. `queued`: bytes that the program has written and the peer has not
    acknowledged. `retransmits`: time-outs in a row without an answer. `acked` and `received`: bytes, since it began;
    `sent` and `resent`: packets, since it began. `busy`: microseconds with data on its way, `held` those for which the
    peer had no room.
    """

    local: str
    peer: str
    connecting: bool = False
    queued: int = 0
    retransmits: int = 0
    acked: int = 0
    received: int = 0
    resent: int = 0
    sent: int = 0
    busy: int = 0
    held: int = 0


MOST_REASON = 1 << 10  # characters
MOST_DEVICES = 64  # GPUs and ports of a node that are read


@omit_empty()
class GpuCounters(NamedTuple):
    """A GPU as ranks number it, at its PCI `address`: its state, and what it has counted since it is watched.

    `busy` 0 to 1, memory in bytes, clocks of its processors in MHz. `held` are NVML's reasons for less than that, as
    bits. `ecc`: errors that were not corrected. `lost`: NVML says that it has fallen off the bus. `ranks` compute on
    it, as far as their environment says it.
    """

    address: Annotated[str, at_most(32)]
    busy: Optional[float] = None
    memory_used: int = 0
    memory_total: int = 0
    clock: int = 0
    clock_max: int = 0
    held: int = 0
    ecc: int = 0
    pcie_width: int = 0
    pcie_replays: int = 0
    nvlink_errors: int = 0
    xids: Annotated[Tuple[int, ...], at_most(MOST_DEVICES)] = ()
    lost: bool = False
    ranks: Annotated[Tuple[int, ...], at_most(MOST_DEVICES)] = ()


class PortCounters(NamedTuple):
    """A port of InfiniBand, RoCE or EFA, such as mlx5_0/1: whether it is up, and what it has counted since."""

    port: Annotated[str, at_most(80)]
    is_up: bool = True
    counted: Mapping[str, int] = {}


@omit_empty()
class DeviceCounters(NamedTuple):
    """What the GPUs and ports of a node say of themselves (agent/counters.py)."""

    gpus: Annotated[Tuple[GpuCounters, ...], at_most(MOST_DEVICES)] = ()
    ports: Annotated[Tuple[PortCounters, ...], at_most(MOST_DEVICES)] = ()


@omit_empty()
class StackSample(NamedTuple):
    """One rank at one moment: its stacks, or why there are none, what /proc says, and what its flight recorder said."""

    rank: int = -1
    text: str = ""
    how: str = ""  # asked, py-spy, signal
    error: str = ""
    state: str = ""  # as /proc has it
    cpu: float = 0.0  # seconds used so far
    wchan: str = ""
    file: str = ""  # that the main thread is reading
    counted: Mapping[str, Json] = {}  # numbers that grow with every collective
    recorder: Mapping[str, Json] = {}  # for `recorder.read_recording`
    ready: float = 0.0  # seconds for which it waited for a CPU
    io: int = 0  # bytes read and written
    silent: bool = False  # its thread that answers got no turn: something holds the interpreter's lock
    signalled: bool = False
    sockets: Tuple[RankSocket, ...] = ()  # to other machines


@omit_empty()
class RankProfile(NamedTuple):
    """A profile of one rank (agent/runner_profile.py), which was recorded for so many `seconds`.

    `stalled`: the seconds for which the program's Python stood still while the trace was made, `size` the bytes of the
    trace as it travels. `note`: what has ended it before it was asked to. `error`: why there is none."""

    seconds: float = 0.0
    stalled: float = 0.0
    size: int = 0
    note: Annotated[str, at_most(MOST_REASON)] = ""
    error: Annotated[str, at_most(MOST_REASON)] = ""


@omit_none
class NodeUsage(NamedTuple):
    """What a node's machine did in the `seconds` before `t` (unix time). None: the kernel does not say it.

    Cores: `cores` in all, of them `cpu_used` by all processes, `cpu_ranks` by ranks and their children, and
    `cpu_others` by the rest. `cpu_throttled_s`: seconds for which a CPU quota held the ranks' control groups back,
    summed over processors. `memory_pressure` and `io_pressure`: the share of the time, 0 to 1, in which some process
    waited for it (proc/pressure). Memory in bytes. Network, without lo: bytes a second. `tcp_sent` and
    `tcp_retransmitted` are segments.
    """

    t: float = 0.0
    seconds: float = 0.0
    cores: int = 0
    cpu_used: Optional[float] = None
    cpu_ranks: Optional[float] = None
    cpu_others: Optional[float] = None
    cpu_throttled_s: Optional[float] = None
    memory_used: Optional[int] = None
    memory_total: Optional[int] = None
    memory_pressure: Optional[float] = None
    received: Optional[float] = None
    sent: Optional[float] = None
    tcp_sent: Optional[int] = None
    tcp_retransmitted: Optional[int] = None
    io_pressure: Optional[float] = None
    devices: Optional[DeviceCounters] = None
    gpu_busy: Optional[float] = None  # mean of the GPUs that sysfs describes (amdgpu), 0 to 1
    gpu_memory_used: Optional[int] = None
    gpu_memory_total: Optional[int] = None


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
    that it stood still.
    """

    samples: Tuple[JsonObject, ...] = ()
    at: Tuple[float, ...] = ()
    periods: int = 0
    throttled: int = 0
    stood: float = 0.0
