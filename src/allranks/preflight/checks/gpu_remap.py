"""No GPU has a row of its memory waiting to be remapped, a failed remap, or a bank without spare rows.

A pending remap takes effect when the GPU is reset. One that failed is a reason to replace it (NVIDIA GPU Memory
Error Management, "Row Remapping"). `remapped_rows.pending` is 0 or 1 in older drivers, No or Yes in newer ones.
Azure NHC compares it as a number (`Yes` -gt 0 is false) and reads the count of remaps from a fourth field of
three. So its test never fires. Here each value goes by its name.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import count_of

from .. import smi
from ..compare import Findings, Nodes, advise, collected, fail, warn
from ..host import Host
from ..typed_facts import Request

ID = "gpu_remap"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LABEL = "ecc-error"
ROWS = "remapped_rows"
QUERY = f"--query-remapped-rows=gpu_bus_id,{ROWS}.correctable,{ROWS}.uncorrectable,{ROWS}.pending,{ROWS}.failure"
NONE_LEFT = f"{ROWS}.histogram.none"  # only newer drivers know it


class Remapped(NamedTuple):
    """A GPU with remapped rows, whether a remap is pending or failed, and banks without spare rows."""

    gpu: Optional[int]
    pci: str
    rows: int
    pending: bool
    failed: bool
    full: int


def collect(host: Host) -> Optional[List[Remapped]]:
    """List the GPUs that need attention; None before Ampere."""
    answer = smi.query(host, [NONE_LEFT])
    if answer is None:
        return None
    rows = {row["pci"]: row for row in answer.rows}
    gpus = []
    for cells in smi.table(host, QUERY):
        if len(cells) == 5 and smi.value_of(cells[3]):
            pci = smi.short(cells[0])
            row = rows.get(pci, {})
            remapped = int(sum(smi.number(cell) or 0 for cell in cells[1:3]))
            full = int(smi.number(row.get(NONE_LEFT)) or 0)
            gpus.append(Remapped(*smi.gpu_of(row, pci), remapped, _is_yes(cells[3]), _is_yes(cells[4]), full))
    if not gpus:
        return None
    return [gpu for gpu in gpus if gpu.pending or gpu.failed or gpu.full][: smi.MOST]


def _is_yes(value: str) -> bool:
    return value == "Yes" or (smi.number(value) or 0) > 0


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail a remap that failed; warn of one that is pending and of a bank without spare rows."""
    for node, bad in collected(facts_by_node, ID, List[Remapped]).items():
        for gpu in bad:
            yield _finding(node, gpu)


def _finding(node: str, gpu: Remapped) -> Finding:
    subject = f"{smi.which_gpus([gpu])} of {node}"
    evidence = (f"{gpu.pci}: remapped {gpu.rows}, pending {gpu.pending}, failed {gpu.failed}",)
    show = f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.gpu}"
    if gpu.failed:
        message = f"{subject} could not remap a bad row of its memory: no spare rows are left for it"
        remedy = advise(f"leave {node} out and have the GPU replaced", node, show)
        return fail(LABEL, node, message, remedy, evidence, gpu.gpu)
    if gpu.pending:
        message = f"{subject} has a bad row of its memory that is remapped only when the GPU is reset"
        remedy = f"end what uses it and reset it: {smi.reset(node, [gpu])}, or reboot {node}"
    else:
        message = f"{subject} has {count_of(gpu.full, 'bank')} of memory without spare rows"
        remedy = advise("plan its replacement", node, show)
    return warn(LABEL, node, message, remedy, evidence, gpu.gpu)
