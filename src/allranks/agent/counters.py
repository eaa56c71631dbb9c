"""Counters of GPUs and of RDMA ports while ranks run: NVML by ctypes, ports by sysfs, in a process of their own.

A driver may hang, and a reset card may take its library with it. So a child reads, and writes a line every so often,
at once after an Xid; the agent reads its lines, and ends a child that is silent. NVML's calls and structures are those
of nvml.h (NVIDIA/go-nvml, gen/nvml); counters of ports those of Documentation/ABI/stable/sysfs-class-infiniband, and of
the drivers of mlx5 and EFA. Nothing here needs root.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import time
from functools import partial
from typing import Dict, List, Mapping, Sequence, Tuple

from allranks.protocol.codec import DecodeError, decode, encode
from allranks.protocol.jsontext import read_object, write_json
from allranks.protocol.samples import MOST_DEVICES, DeviceCounters, GpuCounters, NodeUsage, PortCounters

from .files import names_in, read_text, write_all
from .forked_tasks import Child
from .link import log
from .processes import PR_SET_PDEATHSIG, prctl

LIBRARY = "libnvidia-ml.so.1"
PORTS = "/sys/class/infiniband"
COUNTED = (
    "counters/symbol_error",
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/port_rcv_errors",
    "counters/port_xmit_wait",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rx_drops",  # this and the next are of EFA
    "hw_counters/retrans_pkts",
    "hw_counters/retrans_timeout_events",
)
SILENCE = 60.0  # seconds without a line after which a child is ended: a reset takes half of that
LEAST = 1.0  # seconds between two lines
MOST_LINE = 1 << 20
XID_EVENT = 8
GPU_IS_LOST = 15
CLOCK_SM = 1
NVLINK_TOTALS = (38, 52, 59)  # flow control, replays, recoveries: NVML_FI_DEV_NVLINK_…_ERROR_COUNT_TOTAL


class CounterWatch:
    """The agent's side: the child and its newest line."""

    def __init__(self, selector: selectors.BaseSelector, addresses: Sequence[str], every: float) -> None:
        """Start the child; raise OSError."""
        self.newest = DeviceCounters()
        self.is_urgent = False  # something has happened that is not to wait for the next sample
        self._selector = selector
        self._data = b""
        self._heard = time.monotonic()
        self._every = every
        self.child = Child(partial(_read_for_ever, addresses, every))
        self._is_open = True
        selector.register(self.child.pipe, selectors.EVENT_READ, self._on_output)

    def look(self, now: float) -> None:
        """End a child that is silent. Ranks go on, and the node's log says it."""
        if self._is_open and now - self._heard > SILENCE + self._every:
            log("the counters of GPUs and ports are not read any more: no answer for %g s" % (now - self._heard))
            self.close()

    def added_to(self, usage: NodeUsage, ranks: Mapping[str, Sequence[int]]) -> NodeUsage:
        """Give a sample of the machine what the devices have said last. `ranks` by the address of their GPU."""
        self.is_urgent = False
        gpus = self.newest.gpus
        if gpus:
            usage = usage._replace(
                gpu_busy=round(sum(gpu.busy or 0.0 for gpu in gpus) / len(gpus), 3),
                gpu_memory_used=sum(gpu.memory_used for gpu in gpus),
                gpu_memory_total=sum(gpu.memory_total for gpu in gpus),
            )
        used = tuple(gpu._replace(ranks=tuple(ranks.get(gpu.address, ())[:MOST_DEVICES])) for gpu in gpus)
        return usage._replace(devices=self.newest._replace(gpus=used))

    def close(self) -> None:
        """End the child."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self.child.pipe)
            self.child.end()

    def _on_output(self) -> None:
        data = os.read(self.child.pipe, 1 << 16)
        self._data += data
        if not data or len(self._data) > MOST_LINE:
            self.close()
            return
        self._heard = time.monotonic()
        *lines, self._data = self._data.split(b"\n")
        for line in lines:
            try:
                counters = decode(DeviceCounters, read_object(line, MOST_LINE))
            except DecodeError:
                continue
            self.is_urgent = self.is_urgent or _troubles(counters) != _troubles(self.newest)
            self.newest = counters


def _troubles(counters: DeviceCounters) -> List[Tuple[str, object]]:
    gpus = [(gpu.address, (gpu.xids, gpu.ecc, gpu.lost)) for gpu in counters.gpus]
    return [*gpus, *((port.port, (port.is_up, port.counted.get("link_downed"))) for port in counters.ports)]


def _read_for_ever(addresses: Sequence[str], every: float, write_end: int) -> None:
    """Be the child. It keeps no descriptor of the agent: what that closes is to be closed."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.closerange(3, write_end)
    os.closerange(write_end + 1, min(os.sysconf("SC_OPEN_MAX"), 65536))
    reader = DeviceReader(addresses)
    while reader.has_devices:
        began = time.monotonic()
        write_all(write_end, write_json(encode(reader.read())) + b"\n")
        reader.wait(every)
        time.sleep(max(0.0, LEAST - (time.monotonic() - began)))


class DeviceReader:
    """The child's side: reads the devices again and again. What they had counted at first is left out."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._nvml = Nvml(addresses[:MOST_DEVICES])
        self._ports = _ports()[:MOST_DEVICES]
        self._first: Dict[str, int] = {}
        self.has_devices = bool(self._ports or self._nvml.devices)

    def read(self) -> DeviceCounters:
        """Read all of them."""
        gpus = map(self._nvml.read, self._nvml.devices)
        return DeviceCounters(tuple(map(self._since, gpus)), tuple(map(self._read_port, self._ports)))

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a GPU has an Xid."""
        if not self._nvml.wait(seconds):
            time.sleep(seconds)

    def _since(self, gpu: GpuCounters) -> GpuCounters:
        def of(name: str) -> int:
            return self._grown(gpu.address + name, getattr(gpu, name))

        return gpu._replace(ecc=of("ecc"), pcie_replays=of("pcie_replays"), nvlink_errors=of("nvlink_errors"))

    def _read_port(self, port: str) -> PortCounters:
        directory = os.path.join(PORTS, port.replace("/", "/ports/"))
        counted: Dict[str, int] = {}
        for path in COUNTED:
            text = read_text(os.path.join(directory, path))
            if text.isdecimal():
                counted[os.path.basename(path)] = self._grown(port + path, int(text))
        return PortCounters(port, "ACTIVE" in read_text(directory + "/state"), counted)

    def _grown(self, name: str, value: int) -> int:
        return max(0, value - self._first.setdefault(name, value))


def _ports() -> List[str]:
    """Name the ports that are up: one without a cable says nothing."""
    ports = []
    for device in sorted(names_in(PORTS)):
        for port in sorted(names_in(os.path.join(PORTS, device, "ports"))):
            if "ACTIVE" in read_text(os.path.join(PORTS, device, "ports", port, "state")):
                ports.append("%s/%s" % (device, port))
    return ports


# -- NVML ------------------------------------------------------------------------------------------------


class _Pair(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The library, and the devices at some PCI addresses. A function that it lacks, or that fails, gives nothing."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.devices: Dict[str, ctypes.c_void_p] = {}
        self._events = ctypes.c_void_p()
        self._xids: Dict[str, List[int]] = {}
        self._is_lost = False
        if not addresses:
            return
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            return
        if self._call("nvmlInit_v2"):
            return
        for address in addresses:
            device = ctypes.c_void_p()
            if self._call("nvmlDeviceGetHandleByPciBusId_v2", address.encode(), ctypes.byref(device)) == 0:
                self.devices[address] = device
        if self._call("nvmlEventSetCreate", ctypes.byref(self._events)):
            return
        for device in self.devices.values():
            self._call("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(XID_EVENT), self._events)

    def _call(self, name: str, *arguments: object) -> int:
        function = getattr(self._library, name, None)
        code = 13 if function is None else int(function(*arguments))
        self._is_lost = self._is_lost or code == GPU_IS_LOST
        return code

    def _number(self, name: str, device: ctypes.c_void_p, *arguments: int, wide: bool = False) -> int:
        value = ctypes.c_ulonglong() if wide else ctypes.c_uint()
        return value.value if self._call(name, device, *arguments, ctypes.byref(value)) == 0 else 0

    def read(self, address: str) -> GpuCounters:
        """Read a device: some ten calls."""
        device = self.devices[address]
        self._is_lost = False
        use = _Pair()
        memory = _Memory()
        knows_use = self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use)) == 0
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return GpuCounters(
            address,
            busy=use.gpu / 100 if knows_use else None,
            memory_used=memory.used,
            memory_total=memory.total,
            clock=self._number("nvmlDeviceGetClockInfo", device, CLOCK_SM),
            clock_max=self._number("nvmlDeviceGetMaxClockInfo", device, CLOCK_SM),
            held=self._number("nvmlDeviceGetCurrentClocksThrottleReasons", device, wide=True),
            ecc=self._number("nvmlDeviceGetTotalEccErrors", device, 1, 0, wide=True),  # uncorrected, since the boot
            pcie_width=self._number("nvmlDeviceGetCurrPcieLinkWidth", device),
            pcie_replays=self._number("nvmlDeviceGetPcieReplayCounter", device),
            nvlink_errors=self._nvlink_errors(device),
            xids=tuple(self._xids.get(address, ())),
            lost=self._is_lost,
        )

    def _nvlink_errors(self, device: ctypes.c_void_p) -> int:
        fields = (_FieldValue * len(NVLINK_TOTALS))(*(_FieldValue(id=number) for number in NVLINK_TOTALS))
        if self._call("nvmlDeviceGetFieldValues", device, len(fields), fields):
            return 0
        # The kind says unsigned int (1) or longer; a smaller one leaves the rest of the union as it was.
        return sum(f.value & 0xFFFFFFFF if f.kind == 1 else f.value for f in fields if f.code == 0)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until an Xid comes; False where that is not possible."""
        event = _Event()
        timeout = int(seconds * 1000)
        began = time.monotonic()
        for _ in range(MOST_DEVICES):
            if not self._events or self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), timeout):
                break
            timeout = 0  # take what else has come
            address = next((a for a, device in self.devices.items() if device.value == event.device), "")
            xids = self._xids.setdefault(address, [])
            if event.kind == XID_EVENT and len(xids) < MOST_DEVICES:
                xids.append(int(event.data))
        return timeout == 0 or time.monotonic() - began >= seconds / 2
