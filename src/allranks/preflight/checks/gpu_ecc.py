"""No GPU has had an uncorrectable memory error, and all have ECC on or all off.

Volatile counts are since the driver was loaded or the GPU reset (nvidia-smi(1), "ECC Errors"): Meta's GCM and imbue
refuse a node with any. Aggregate ones are for the GPU's life: rows of DRAM are remapped (see gpu_remap), so only
those of SRAM are told, as Azure NHC does (azure_gpu_ecc.nhc). AMD: RAS counts of amd-smi since boot.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.text import count_of

from .. import smi
from ..compare import Difference, Nodes, differences, part, parts, place, remote, warn
from ..host import Host, Record, Request

ID = "gpu_ecc"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
LABEL = "ecc-error"
ERRORS = "ecc.errors.uncorrected"
VOLATILE = f"{ERRORS}.volatile.total"
SRAM = f"{ERRORS}.aggregate.sram"
OVER = f"{SRAM}.thresholdExceeded"


def collect(host: Host) -> Optional[Record]:
    """{"mode": "Enabled", "bad": [{"gpu", "pci", "volatile", "sram", "over"}]}; None where no GPU has ECC."""
    answer = smi.query(host, ["ecc.mode.current", VOLATILE, SRAM, OVER])
    if answer is None:
        gpus = smi.amd_smi(host, "metric", "-e")
        return None if gpus is None else _amd(gpus)
    modes = sorted({smi.value_of(row.get("ecc.mode.current")) for row in answer.rows} - {""})
    bad = []
    for row in answer.rows:
        counts = {"volatile": smi.number(row.get(VOLATILE)) or 0, "sram": smi.number(row.get(SRAM)) or 0}
        over = row.get(OVER) == "Yes"
        if counts["volatile"] or counts["sram"] or over:
            bad.append({**smi.gpu_of(row), **{k: int(v) for k, v in counts.items()}, "over": over})
    return {"mode": " and ".join(modes), "bad": bad} if modes or bad else None


def _amd(gpus: List[Record]) -> Optional[Record]:
    """Deferred errors are detected, not yet used: not told."""
    counts = [(gpu, smi.integer(part(gpu, "ecc").get("total_uncorrectable_count"))) for gpu in gpus]
    if all(count is None for _, count in counts):
        return None
    bad = [{"gpu": smi.integer(g["gpu"]), "pci": "", "volatile": c, "sram": 0, "over": False} for g, c in counts if c]
    return {"mode": "", "bad": bad, "vendor": "amd"}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Failures: errors since the driver was loaded. Warnings: SRAM errors before that, ECC not on everywhere."""
    collected = parts(facts_by_node, ID)
    findings = []
    for node, one in collected.items():
        amd = one.get("vendor") == "amd"
        for gpu in one.get("bad") or []:
            findings.append(_finding(node, gpu, amd))
    odd = differences("ECC", {n: str(v["mode"]) for n, v in collected.items() if v.get("mode")})
    findings += warn(ID, odd, _switch)
    return findings


def _switch(odd: Difference) -> str:
    line = remote(odd.nodes[0], "sudo", "nvidia-smi", "-e", "0" if odd.norm == "Disabled" else "1")
    return f"switch it the same way on every node, then reset the GPUs: {line}"


def _finding(node: str, gpu: Record, amd: bool) -> Finding:
    which = smi.which_gpus([gpu])
    index = gpu.get("gpu")
    where = place([node], gpu=gpu.get("gpu"))
    look = (
        remote(node, "amd-smi", "metric", "-k", "-g", str(index))
        if amd
        else remote(node, "nvidia-smi", "-q", "-d", "ECC,ROW_REMAPPER", "-i", str(index))
    )
    if gpu.get("volatile"):
        since = "since boot" if amd else "since its driver was loaded"
        message = f"{which} of {node} had {count_of(int(gpu['volatile']), 'uncorrectable memory error')} {since}"
        reset = "reboot it"
        if not amd:
            reset = f"reset the GPU ({remote(node, 'sudo', 'nvidia-smi', '-r', '-i', str(index))}) or reboot it"
        remedy = f"leave {node} out, or {reset}; if errors come back, replace the GPU; look: {look}"
        return Finding(LABEL, "fail", message, remedy, where, (f"uncorrected volatile: {gpu['volatile']}",))
    message = f"{which} of {node} has had {count_of(int(gpu.get('sram') or 0), 'uncorrectable SRAM error')} in its life"
    if gpu.get("over"):
        message += ", more than NVIDIA's threshold for a replacement"
    remedy = f"have the GPU tested or replaced; look: {look}"
    return Finding(LABEL, "warn", message, remedy, where, (f"uncorrected aggregate SRAM: {gpu.get('sram')}",))
