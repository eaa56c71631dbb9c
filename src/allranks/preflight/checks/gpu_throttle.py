"""No GPU is slowed down by heat, by its power supply or by a hardware brake.

Bits of clocks_event_reasons.active (before driver 535: clocks_throttle_reasons.active) are those of NVML's
nvmlClocksEventReasons. Idle, application clocks, the software power cap and sync boost are no faults (gpu-fryer
and Azure NHC tell the same ones). AMD: amd-smi's violations; the power limit (PPT) is none either.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.text import plural

from .. import smi
from ..compare import Nodes, part, place, remote
from ..host import Host, Record, Request

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
DETAILS = "PERFORMANCE,TEMPERATURE,POWER"
HW_SLOWDOWN = 0x8  # also set with 0x40 and 0x80
AMD = {
    "prochot_violation_status": "PROCHOT (it is far too hot)",
    "socket_thermal_violation_status": "socket thermal (it is too hot)",
    "vr_thermal_violation_status": "VR thermal (its voltage regulators are too hot)",
    "hbm_thermal_violation_status": "HBM thermal (its memory is too hot)",
}


def collect(host: Host) -> Optional[Record]:
    """{"gpus": how many tell, "slow": [{"gpu", "pci", "why", "bits", "heat": °C}]}."""
    answer = smi.query(host, [FIELD, "temperature.gpu"], {FIELD: OLDER})
    if answer is None:
        return _amd(host)
    count = 0
    slow = []
    for row in answer.rows:
        text = smi.value_of(row.get(FIELD))
        if not text.startswith("0x"):
            continue
        count += 1
        bits = int(text, 16)
        why = decode(bits)
        if why:
            heat = smi.number(row.get("temperature.gpu"))
            slow.append({**smi.gpu_of(row), "why": why, "bits": text, "heat": heat})
    return {"gpus": count, "slow": slow} if count else None


def decode(bits: int) -> str:
    """The reasons that are faults."""
    reasons = [text for bit, text in REASONS.items() if bits & bit]
    if bits & HW_SLOWDOWN and not bits & 0xC0:
        reasons.insert(0, "HW slowdown (heat, power or an external brake)")
    return ", ".join(reasons)


def _amd(host: Host) -> Optional[Record]:
    """MI300 and later tell violations (-T), those before it a throttle status with the power (-p)."""
    gpus = smi.amd_smi(host, "metric", "-p")
    if gpus is None:
        return None
    slow = []
    for gpu in gpus:
        if part(gpu, "power").get("throttle_status") == "THROTTLED":
            slow.append({"gpu": smi.integer(gpu["gpu"]), "pci": "", "why": "throttle status THROTTLED", "heat": None})
    for gpu in smi.amd_smi_quiet(host, "metric", "-T"):
        violations = part(gpu, "throttle")
        why = ", ".join(text for key, text in AMD.items() if violations.get(key) == "ACTIVE")
        if why:
            slow.append({"gpu": smi.integer(gpu["gpu"]), "pci": "", "why": why, "heat": None})
    return {"gpus": len(gpus), "slow": slow, "vendor": "amd"}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning a node and reason: a slow GPU slows all ranks."""
    findings = []
    for node, facts in facts_by_node.items():
        one = part(facts, ID)
        for why, gpus in smi.group_by(one.get("slow") or [], "why").items():
            heat = [float(g["heat"]) for g in gpus if isinstance(g.get("heat"), (int, float))]
            message = f"{smi.which_gpus(gpus)} of {node} {plural(len(gpus), 'is', 'are')} slowed down: {why}"
            if heat:
                message += f", at {plural(len(heat), '', 'up to ')}{max(heat):.0f} °C"
            amd = one.get("vendor") == "amd"
            look = ["amd-smi", "metric", "-t", "-p"] if amd else ["nvidia-smi", "-q", "-d", DETAILS]
            remedy = f"see its cooling and power supply: {remote(node, *look)}; or leave {node} out"
            evidence = tuple(f"{g.get('pci')}: {FIELD} {g['bits']}" for g in gpus[:4] if g.get("bits"))
            findings.append(Finding(ID, "warn", message, remedy, place([node], gpu=gpus[0].get("gpu")), evidence))
    return findings
