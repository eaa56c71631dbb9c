"""What the counters of a node's GPUs and ports say: faults that begin in a run, and why a rank is slow (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from allranks.findings import Finding, Where
from allranks.protocol.samples import DeviceCounters, GpuCounters, PortCounters
from allranks.text import format_ranks, join_words
from allranks.xid import FAULTS, OFF_BUS

from .stragglers.reasons import Reason

CHECK = "device-fault"
# Bits of nvml.h (nvmlClocksEventReason…): what a person set, and a GPU at rest, are none of them.
HELD = (
    (0x40, "Heat (hardware thermal slowdown)"),
    (0x20, "Heat (software thermal slowdown)"),
    (0x80, "The power brake of its machine"),
    (0x8, "A hardware slowdown"),
)
PORT_ERRORS = ("symbol_error", "port_rcv_errors", "out_of_sequence", "packet_seq_err", "retrans_pkts")
POWER_CAP = 0x4
CLOCK_SET = 0x2
SLOWER = 0.85  # of the clock that the usual GPU has
# Since a sample of some minutes ago.
SYMBOLS = 100
REPLAYS = 100
OUT_OF_ORDER = 1000  # packets
LEAST_WAIT = 1_000_000  # ticks of a port
WAITED = 10.0  # times the usual port
NOTHING = DeviceCounters()


def new_faults(node: str, now: DeviceCounters, before: DeviceCounters) -> Iterator[Finding]:
    """Yield a warning for each fault that has begun between two samples of a node."""
    for number, gpu in enumerate(now.gpus):
        was = next((one for one in before.gpus if one.address == gpu.address), GpuCounters(gpu.address))
        said = list(_faults_of(gpu, was))
        if said:
            rank = next(iter(gpu.ranks), None)
            of_rank = f" ({format_ranks(gpu.ranks)})" if gpu.ranks else ""
            message = f"GPU {number} of {node}{of_rank} {join_words(said)}"
            remedy = f"hint: ssh {node} 'nvidia-smi -q -i {gpu.address}'. If it comes again, have the node repaired"
            where = Where(node, rank=rank, gpu=number)
            yield Finding(CHECK, "warn", message, remedy, where, (gpu.address,), lasts=True)
    for port in now.ports:
        last = next((one for one in before.ports if one.port == port.port), PortCounters(port.port))
        if (last.is_up and not port.is_up) or port.counted.get("link_downed", 0) > last.counted.get("link_downed", 0):
            state = "and is back" if port.is_up else "and is still down"
            message = f"the link of {port.port} on {node} went down {state}"
            remedy = f"check the cable and the switch's port. hint: ssh {node} 'ibstat {port.port.partition('/')[0]}'"
            yield Finding(CHECK, "warn", message, remedy, Where(node, interface=port.port), lasts=True)


def _faults_of(gpu: GpuCounters, was: GpuCounters) -> Iterator[str]:
    for xid in gpu.xids[len(was.xids) :]:
        if xid in FAULTS:
            yield f"has Xid {xid}: {FAULTS[xid].what}" if xid != OFF_BUS else "has fallen off the bus (Xid 79)"
    if gpu.ecc > was.ecc:
        yield f"counted {gpu.ecc - was.ecc} more uncorrected ECC errors"
    if gpu.lost and not was.lost and OFF_BUS not in gpu.xids:
        yield "has fallen off the bus"


class Devices(NamedTuple):
    """Two samples of a node, minutes apart."""

    now: DeviceCounters = NOTHING
    before: DeviceCounters = NOTHING

    def gpu(self, rank: int) -> tuple[GpuCounters, GpuCounters] | None:
        """Give the GPU of a rank as it is now, and as it was; None where it is not in both."""
        now = next((gpu for gpu in self.now.gpus if rank in gpu.ranks), None)
        was = [gpu for gpu in self.before.gpus if now is not None and gpu.address == now.address]
        return (now, was[0]) if now is not None and was else None


def device_reason(rank: int, node: str, of_nodes: Mapping[str, Devices]) -> Reason | None:
    """Say what slows the GPU of a rank, or its node's ports, and no other of the run; None where nothing shows."""
    devices = of_nodes.get(node, Devices())
    pair = devices.gpu(rank)
    if pair is not None:
        others = [gpu for one in of_nodes.values() for gpu in one.now.gpus if gpu is not pair[0]]
        reason = _slow_gpu(node, *pair, others)
        if reason is not None:
            return reason
    waits = [_grown(one, port, "port_xmit_wait") for one in of_nodes.values() for port in one.now.ports]
    usual = sorted(waits)[len(waits) // 2] if waits else 0
    reasons = (_slow_port(node, devices, port, usual) for port in devices.now.ports)
    return next((reason for reason in reasons if reason is not None), None)


def _slow_gpu(node: str, gpu: GpuCounters, before: GpuCounters, others: Sequence[GpuCounters]) -> Reason | None:
    usual = sorted(one.clock for one in others if one.clock)
    usual_clock = usual[len(usual) // 2] if usual else gpu.clock_max
    is_slow = 0 < gpu.clock < SLOWER * usual_clock
    clocks = f"its GPU runs at {gpu.clock} MHz, the others at {usual_clock}"
    evidence = (f"{gpu.address}: {gpu.clock} of {gpu.clock_max} MHz, NVML's reasons {gpu.held:#x}",)
    query = f"ssh {node} 'nvidia-smi -q -i {gpu.address}'"
    reseat = f"have the card of {node} reseated: `{query}`"
    why = next((words for bit, words in HELD if gpu.held & bit), "")
    if is_slow and why:
        remedy = f"check the fans and the power of {node}: `{query}`"
        return Reason(f"{clocks}. {why} holds it back", remedy, True, evidence)
    if is_slow and gpu.held & POWER_CAP:
        remedy = f"compare the power limits: `{query}`"
        return Reason(f"{clocks}. Its power limit holds it back", remedy, True, evidence)
    if is_slow and gpu.held & CLOCK_SET:
        remedy = f"give it its own clocks back: `ssh {node} 'sudo nvidia-smi -i {gpu.address} -rgc'`"
        return Reason(f"{clocks}. Its clock was set", remedy, True, evidence)
    lanes = min((one.pcie_width for one in others if one.pcie_width), default=0)
    if 0 < gpu.pcie_width < lanes:
        words = f"its GPU has {gpu.pcie_width} PCIe lanes, the others {lanes}"
        return Reason(words, reseat, True, evidence)
    if gpu.ecc > before.ecc:
        words = f"its GPU counted {gpu.ecc - before.ecc} uncorrected ECC errors"
        return Reason(words, f"leave {node} out, and have the card tested: `{query}`", True, evidence)
    repeated = gpu.pcie_replays - before.pcie_replays
    if repeated >= REPLAYS:
        return Reason(f"its GPU's PCIe link repeated {repeated} packets", reseat, True, evidence)
    errors = gpu.nvlink_errors - before.nvlink_errors
    if errors >= REPLAYS:
        remedy = f"look at its links: `ssh {node} 'nvidia-smi nvlink -e -i {gpu.address}'`"
        return Reason(f"its NVLinks counted {errors} errors", remedy, True, evidence)
    return None


def _grown(devices: Devices, port: PortCounters, *names: str) -> int:
    before = next((one for one in devices.before.ports if one.port == port.port), port)
    return sum(max(0, port.counted.get(name, 0) - before.counted.get(name, 0)) for name in names)


def _slow_port(node: str, devices: Devices, port: PortCounters, usual_wait: int) -> Reason | None:
    name = f"port {port.port} of {node}"
    symbols = _grown(devices, port, "symbol_error")
    if symbols >= SYMBOLS:
        return Reason(f"{name} counted {symbols} symbol errors", f"replace the cable of {port.port} on {node}", True)
    lost = _grown(devices, port, "out_of_sequence", "packet_seq_err", "retrans_pkts")
    if lost >= OUT_OF_ORDER:
        words = f"{name} counted {lost} packets out of sequence or sent again"
        return Reason(words, "look at the switches for lost packets: PFC, ECN, and the load of each path", True)
    waited = _grown(devices, port, "port_xmit_wait")
    if waited >= LEAST_WAIT and waited > WAITED * usual_wait:
        words = f"{name} could not send for {waited} ticks, the usual port for {usual_wait}"
        return Reason(words, f"look for what fills the path of {port.port}: other jobs, a slow receiver", True)
    return None
