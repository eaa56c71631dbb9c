"""No GPU has had an uncorrectable memory error, and all have ECC on or all off.

Volatile counts are since the driver was loaded or the GPU reset (nvidia-smi(1), "ECC Errors"): Meta's GCM and imbue
refuse a node with any. Aggregate ones are for the GPU's life. Rows of DRAM are remapped (see gpu_remap), so only
those of SRAM count, as in Azure NHC (azure_gpu_ecc.nhc). AMD: RAS counts of amd-smi since boot.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import count_of

from .. import smi
from ..compare import Difference, Findings, Nodes, advise, collected, differences, fail, having, remote, warn, warn_each
from ..host import Host
from ..typed_facts import Request

ID = "gpu_ecc"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
LABEL = "ecc-error"
ERRORS = "ecc.errors.uncorrected"
VOLATILE = f"{ERRORS}.volatile.total"
SRAM = f"{ERRORS}.aggregate.sram"
OVER = f"{SRAM}.thresholdExceeded"


class Errors(NamedTuple):
    """Uncorrectable errors of a GPU; `over`: more of SRAM than NVIDIA's threshold."""

    gpu: Optional[int]
    pci: str
    volatile: int
    sram: int = 0
    over: bool = False


class Ecc(NamedTuple):
    """The mode of all GPUs, and those with errors."""

    mode: str
    bad: List[Errors]
    vendor: str = "nvidia"


def collect(host: Host) -> Optional[Ecc]:
    """None where no GPU has ECC."""
    answer = smi.query(host, ["ecc.mode.current", VOLATILE, SRAM, OVER])
    if answer is None:
        return _amd(host)
    modes = sorted({smi.value_of(row.get("ecc.mode.current")) for row in answer.rows} - {""})
    bad = []
    for row in answer.rows:
        counts = [int(smi.number(row.get(field)) or 0) for field in (VOLATILE, SRAM)]
        errors = Errors(*smi.gpu_of(row), counts[0], counts[1], row.get(OVER) == "Yes")
        if any(errors[2:]):
            bad.append(errors)
    if modes or bad:
        return Ecc(" and ".join(modes), bad)
    return None


def _amd(host: Host) -> Optional[Ecc]:
    """Deferred errors are detected, not yet used: not reported."""
    gpus = smi.amd_smi(host, "metric", "-e") or []
    counts = [smi.integer(smi.at(gpu, "ecc", "total_uncorrectable_count")) for gpu in gpus]
    bad = [Errors(smi.integer(gpus[at]["gpu"]), "", count) for at, count in enumerate(counts) if count]
    if not any(count is not None for count in counts):
        return None
    return Ecc("", bad, "amd")


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Failures: errors since the driver was loaded. Warnings: SRAM errors before that, ECC not on everywhere."""
    ecc = collected(facts_by_node, ID, Ecc)
    for node, one in ecc.items():
        for gpu in one.bad:
            yield _finding(node, gpu, one.vendor == "amd")
    yield from warn_each(ID, differences("ECC", having(ecc, lambda one: one.mode)), _switch)


def _switch(odd: Difference[str]) -> str:
    line = remote(odd.nodes[0], "sudo nvidia-smi -e", str(int(odd.norm != "Disabled")))
    return f"switch it the same way on every node, then reset the GPUs: {line}"


def _finding(node: str, gpu: Errors, is_amd: bool) -> Finding:
    subject = f"{smi.which_gpus([gpu])} of {node}"
    show = f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.gpu}"
    since = "since its driver was loaded"
    reset = f"reset the GPU ({smi.reset(node, [gpu])}) or reboot it"
    if is_amd:
        show = f"amd-smi metric -k -g {gpu.gpu}"
        since = "since boot"
        reset = "reboot it"
    if gpu.volatile:
        message = f"{subject} had {count_of(gpu.volatile, 'uncorrectable memory error')} {since}"
        remedy = advise(f"leave {node} out, or {reset}. If errors come back, replace the GPU", node, show)
        return fail(LABEL, node, message, remedy, [f"uncorrected volatile: {gpu.volatile}"], gpu.gpu)
    message = f"{subject} has had {count_of(gpu.sram, 'uncorrectable SRAM error')} in its life"
    if gpu.over:
        message += ", more than NVIDIA's threshold for a replacement"
    remedy = advise("have the GPU tested or replaced", node, show)
    return warn(LABEL, node, message, remedy, [f"uncorrected aggregate SRAM: {gpu.sram}"], gpu.gpu)
