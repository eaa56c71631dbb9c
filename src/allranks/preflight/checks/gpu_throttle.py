"""No GPU is slowed down by heat, by its power supply or by a hardware brake.

Bits of clocks_event_reasons.active (before driver 535: clocks_throttle_reasons.active) are those of NVML's
nvmlClocksEventReasons. Idle, application clocks, the software power cap and sync boost are not faults (nor
for gpu-fryer and Azure NHC). AMD: amd-smi's violations. The power limit (PPT) is none either.
"""

from __future__ import annotations

from contextlib import suppress
from typing import List, Optional

from allranks.text import group

from .. import smi
from ..compare import Findings, Nodes, collected, remote, warn
from ..host import CouldNotLook, Host
from ..typed_facts import Request

ID = "gpu_throttle"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
FIELD = "clocks_event_reasons.active"
OLDER = "clocks_throttle_reasons.active"
REASONS = {
    0x20: "SW thermal slowdown (it is too hot)",
    0x40: "HW thermal slowdown (it is far too hot)",
    0x80: "HW power brake (the power supply asks for it)",
}
HW_SLOWDOWN = 0x8  # also set with 0x40 and 0x80
AMD = {
    "prochot_violation_status": "PROCHOT (it is far too hot)",
    "socket_thermal_violation_status": "socket thermal (it is too hot)",
    "vr_thermal_violation_status": "VR thermal (its voltage regulators are too hot)",
    "hbm_thermal_violation_status": "HBM thermal (its memory is too hot)",
}


def collect(host: Host) -> Optional[List[smi.GpuState]]:
    """List the GPUs that are slowed down; None where no GPU tells."""
    answer = smi.query(host, [FIELD, "temperature.gpu"], {FIELD: OLDER})
    if answer is None:
        return _amd(host)
    rows = [row for row in answer.rows if smi.value_of(row.get(FIELD)).startswith("0x")]
    slow = []
    for row in rows:
        why = decode(int(row[FIELD], 16))
        if why:
            heat = smi.value_of(row.get("temperature.gpu")) or "?"
            detail = f"{FIELD} {row[FIELD]}, {heat} °C"
            slow.append(smi.GpuState(*smi.gpu_of(row), why, detail))
    return slow if rows else None


def decode(bits: int) -> str:
    """Name the reasons that are faults."""
    reasons = [text for bit, text in REASONS.items() if bits & bit]
    if bits & HW_SLOWDOWN and not bits & 0xC0:
        reasons.insert(0, "HW slowdown (heat, power or an external brake)")
    return ", ".join(reasons)


def _amd(host: Host) -> Optional[List[smi.GpuState]]:
    """MI300 and later tell violations (-T), those before it a throttle status with the power (-p)."""
    gpus = smi.amd_smi(host, "metric", "-p")
    if gpus is None:
        return None
    slow = []
    for gpu in gpus:
        if smi.text_at(gpu, "power", "throttle_status") == "THROTTLED":
            slow.append(smi.GpuState(smi.integer(gpu["gpu"]), "", "throttle status THROTTLED"))
    with suppress(CouldNotLook):  # this amd-smi does not know -T
        for gpu in smi.amd_smi(host, "metric", "-T") or ():
            why = ", ".join(text for key, text in AMD.items() if smi.text_at(gpu, "throttle", key) == "ACTIVE")
            if why:
                slow.append(smi.GpuState(smi.integer(gpu["gpu"]), "", why))
    return slow


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn once a node and reason: a slow GPU slows all ranks."""
    for node, slow in collected(facts_by_node, ID, List[smi.GpuState]).items():
        for why, gpus in group(slow, lambda gpu: gpu.state).items():
            message = f"{smi.gpus_of(node, gpus)} slowed down: {why}"
            vendor = facts_by_node[node].gpus.vendor
            command = smi.by_vendor(vendor, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER", "amd-smi metric -t -p")
            remedy = f"leave {node} out, or check its cooling and power supply: {remote(node, command)}"
            evidence = [f"{gpu.pci}: {gpu.detail}" for gpu in gpus[:4] if gpu.detail]
            yield warn(ID, node, message, remedy, evidence, gpus[0].gpu)
