"""No GPU has had an uncorrectable memory error or has a row of memory to remap, and all have ECC on or all off.

Volatile counts are since the driver was loaded or the GPU reset (nvidia-smi(1), "ECC Errors"): Meta's GCM and imbue
refuse a node with any. Aggregate ones are for the GPU's life. Of these only SRAM's count, as in Azure NHC
(azure_gpu_ecc.nhc): rows of DRAM are remapped. AMD: RAS counts of amd-smi since boot.

A pending remap takes effect when the GPU is reset. One that failed is a reason to replace it (NVIDIA GPU Memory Error
Management, "Row Remapping"). `remapped_rows.pending` is 0 or 1 in older drivers, No or Yes in newer ones. Azure NHC
reads another field, so its test never fires. Here each value goes by its name.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.protocol.records import NamedTuple
from allranks.text import count_of

from .. import smi
from ..compare import Findings, Nodes, advise, collected, differences, fail, having, remote, warn
from ..host import Host
from ..typed_facts import Request

ID = "gpu_ecc"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
LABEL = "ecc-error"
ERRORS = "ecc.errors.uncorrected"
VOLATILE = f"{ERRORS}.volatile.total"
SRAM = f"{ERRORS}.aggregate.sram"
OVER = f"{SRAM}.thresholdExceeded"
ROWS = "remapped_rows"
QUERY = f"--query-remapped-rows=gpu_bus_id,{ROWS}.correctable,{ROWS}.uncorrectable,{ROWS}.pending,{ROWS}.failure"
NONE_LEFT = f"{ROWS}.histogram.none"  # only newer drivers know it


class BadMemory(NamedTuple):
    """A GPU's uncorrectable errors (`over`: more of SRAM than NVIDIA's threshold), its remaps, banks without spares."""

    gpu: Optional[int]
    pci: str
    volatile: int
    sram: int = 0
    over: bool = False
    pending: bool = False
    failed: bool = False
    full: int = 0


class Ecc(NamedTuple):
    """The mode of all GPUs, and those with errors."""

    mode: str
    bad: List[BadMemory]
    vendor: str = "nvidia"


def collect(host: Host) -> Optional[Ecc]:
    """None where no GPU has ECC."""
    answer = smi.query(host, ["ecc.mode.current", VOLATILE, SRAM, OVER, NONE_LEFT])
    if answer is None:
        return _amd(host)
    modes = sorted({smi.value_of(row.get("ecc.mode.current")) for row in answer.rows} - {""})
    remaps = {smi.short(cells[0]): cells[3:] for cells in smi.table(host, QUERY) if len(cells) == 5}
    bad = []
    for row in answer.rows:
        counts = [int(smi.number(row.get(field)) or 0) for field in (VOLATILE, SRAM, NONE_LEFT)]
        pending, failed = map(_is_yes, remaps.get(row["pci"], ("", "")))
        is_over = row.get(OVER) == "Yes"
        memory = BadMemory(*smi.gpu_of(row), counts[0], counts[1], is_over, pending, failed, full=counts[2])
        if any(memory[2:]):
            bad.append(memory)
    if modes or bad:
        return Ecc(" and ".join(modes), bad)
    return None


def _is_yes(cell: str) -> bool:
    return cell == "Yes" or (smi.number(cell) or 0) > 0


def _amd(host: Host) -> Optional[Ecc]:
    """Deferred errors are detected, not yet used: not reported."""
    gpus = smi.amd_smi(host, "metric", "-e") or []
    counts = [smi.integer(smi.at(gpu, "ecc", "total_uncorrectable_count")) for gpu in gpus]
    bad = [BadMemory(smi.integer(gpus[at]["gpu"]), "", count) for at, count in enumerate(counts) if count]
    if not any(count is not None for count in counts):
        return None
    return Ecc("", bad, "amd")


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail errors since the driver was loaded and a remap that failed; warn of the others and of ECC that differs."""
    ecc = collected(facts_by_node, ID, Ecc)
    for node, one in ecc.items():
        for gpu in one.bad:
            subject = f"{smi.which_gpus([gpu])} of {node}"
            yield from _errors(node, gpu, subject, one.vendor == "amd")
            yield from _remaps(node, gpu, subject)
    for odd in differences("ECC", having(ecc, lambda one: one.mode)):
        line = remote(odd.nodes[0], "sudo nvidia-smi -e", str(int(odd.norm != "Disabled")))
        remedy = f"switch it the same way on every node, then reset the GPUs: {line}"
        yield warn(ID, odd.nodes, odd.message, remedy)


def _errors(node: str, gpu: BadMemory, subject: str, is_amd: bool) -> Findings:
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
        yield fail(LABEL, node, message, remedy, [f"uncorrected volatile: {gpu.volatile}"], gpu.gpu)
    elif gpu.sram or gpu.over:
        message = f"{subject} has had {count_of(gpu.sram, 'uncorrectable SRAM error')} in its life"
        if gpu.over:
            message += ", more than NVIDIA's threshold for a replacement"
        remedy = advise("have the GPU tested or replaced", node, show)
        yield warn(LABEL, node, message, remedy, [f"uncorrected aggregate SRAM: {gpu.sram}"], gpu.gpu)


def _remaps(node: str, gpu: BadMemory, subject: str) -> Findings:
    show = f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.gpu}"
    if gpu.failed:
        message = f"{subject} could not remap a bad row of its memory: no spare rows are left for it"
        remedy = advise(f"leave {node} out and have the GPU replaced", node, show)
        yield fail(LABEL, node, message, remedy, gpu=gpu.gpu)
    elif gpu.pending:
        message = f"{subject} has a bad row of its memory that is remapped only when the GPU is reset"
        remedy = f"end what uses it and reset it: {smi.reset(node, [gpu])}, or reboot {node}"
        yield warn(LABEL, node, message, remedy, gpu=gpu.gpu)
    elif gpu.full:
        message = f"{subject} has {count_of(gpu.full, 'bank')} of memory without spare rows"
        yield warn(LABEL, node, message, advise("plan its replacement", node, show), gpu=gpu.gpu)
