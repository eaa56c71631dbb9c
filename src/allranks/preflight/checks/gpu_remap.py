"""No GPU has a row of its memory waiting to be remapped, a failed remap, or a bank without spare rows.

A pending remap takes effect when the GPU is reset; one that failed is a reason to replace it (NVIDIA GPU Memory
Error Management, "Row Remapping"). `remapped_rows.pending` is 0 or 1 in older drivers, No or Yes in newer ones:
Azure NHC compares it as a number (`Yes` -gt 0 is false) and reads the count of remaps from a fourth field of
three, so its test never fires. Here each value goes by its name.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.text import count_of

from .. import smi
from ..compare import Nodes, part, place, remote
from ..host import Host, Record, Request

ID = "gpu_remap"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
COLUMNS = (
    "gpu_bus_id",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
NONE_LEFT = "remapped_rows.histogram.none"  # only newer drivers know it


def collect(host: Host) -> Optional[Record]:
    """{"gpus": how many can remap, "bad": [{"gpu", "pci", "rows", "pending", "failed", "full"}]}; None before
    Ampere."""
    answer = smi.query(host, [NONE_LEFT])
    if answer is None:
        return None
    ran = smi.nvidia_smi(host, "--query-remapped-rows=" + ",".join(COLUMNS), "--format=csv,noheader,nounits")
    full = {row["pci"]: int(smi.number(row.get(NONE_LEFT)) or 0) for row in answer.rows}
    index = {row["pci"]: row for row in answer.rows}
    count = 0
    bad = []
    for line in ran.out.splitlines():
        values = [value.strip() for value in line.split(", ")]
        if len(values) != len(COLUMNS) or not smi.value_of(values[3]):
            continue
        count += 1
        pci = smi.short(values[0])
        pending = _is_yes(values[3])
        failed = _is_yes(values[4])
        if pending or failed or full.get(pci):
            rows = sum(int(smi.number(value) or 0) for value in values[1:3])
            bad.append(
                {
                    **smi.gpu_of({**index.get(pci, {}), "pci": pci}),
                    "rows": rows,
                    "pending": pending,
                    "failed": failed,
                    "full": full.get(pci, 0),
                }
            )
    return {"gpus": count, "bad": bad[: smi.MOST]} if count else None


def _is_yes(value: str) -> bool:
    return value == "Yes" or (smi.number(value) or 0) > 0


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure: a remap that failed. Warnings: one that is pending, a bank without spare rows."""
    findings = []
    for node, facts in facts_by_node.items():
        for gpu in part(facts, ID).get("bad") or []:
            findings.append(_finding(node, gpu))
    return findings


def _finding(node: str, gpu: Record) -> Finding:
    which = smi.which_gpus([gpu])
    index = str(gpu.get("gpu"))
    where = place([node], gpu=gpu.get("gpu"))
    evidence = (f"{gpu['pci']}: remapped {gpu['rows']}, pending {gpu['pending']}, failed {gpu['failed']}",)
    look = remote(node, "nvidia-smi", "-q", "-d", "ROW_REMAPPER", "-i", index)
    if gpu.get("failed"):
        message = f"{which} of {node} could not remap a bad row of its memory: no spare rows are left for it"
        remedy = f"leave {node} out and have the GPU replaced; look: {look}"
        return Finding("ecc-error", "fail", message, remedy, where, evidence)
    if gpu.get("pending"):
        message = f"{which} of {node} has a bad row of its memory that is remapped only when the GPU is reset"
        reset = remote(node, "sudo", "nvidia-smi", "-r", "-i", index)
        remedy = f"end what uses it and reset it: {reset}, or reboot {node}"
        return Finding("ecc-error", "warn", message, remedy, where, evidence)
    message = f"{which} of {node} has {count_of(int(gpu['full']), 'bank')} of memory without spare rows"
    return Finding("ecc-error", "warn", message, f"plan its replacement; look: {look}", where, evidence)
