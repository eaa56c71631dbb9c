"""The ranks of a node have a GPU each where GPUs are in use, and none of them is a MIG slice."""

from __future__ import annotations

from typing import Mapping

from allranks.findings import Finding, Status
from allranks.text import count_of, join_names, plural

from ..compare import Facts, Nodes, by_value, differing, part, place
from ..host import Request

ID = "slots"
GROUP = "gpu"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """invalid-device-ordinal where ranks would find no device; a warning where it may be a CPU program."""
    gpus = {n: part(f, "gpus") for n, f in facts_by_node.items()}
    counts = {n: int(g.get("count") or 0) for n, g in gpus.items()}
    if not any(counts.values()) or all(_is_cpu_only(f) for f in facts_by_node.values()):
        return []
    mig = [n for n, g in gpus.items() if g.get("mig")]
    if mig:
        return [_mig(request, mig)]
    wanted = {n: _wanted(request, n, len(counts)) for n in counts}
    findings = _too_few(request, counts, wanted)
    if not findings and request.get("nproc") is None and not request.get("virtual"):
        findings = _unequal(request, counts)
    return findings


def _is_cpu_only(facts: Facts) -> bool:
    """A torch without CUDA and HIP (torch/version.py) uses no GPU."""
    interpreter = part(facts, "interpreter")
    return bool(interpreter.get("torch")) and not interpreter.get("cuda") and not interpreter.get("hip")


def _wanted(request: Request, node: str, nodes: int) -> int:
    """GPUs the ranks of a node ask for; 0 where the number of ranks follows the GPUs. Virtual nodes
    share one machine's."""
    slots = (request.get("slots") or {}).get(node)
    count_of = request.get("nproc") or slots or 0
    return int(count_of) * (nodes if request.get("virtual") else 1)


def _mig(request: Request, mig: list[str]) -> Finding:
    """NCCL takes one MIG instance of a GPU only, and CUDA shows a process one."""
    auto = request.get("nproc") is None and not any((request.get("slots") or {}).values())
    message = f"{join_names(mig)} {plural(len(mig), 'has its GPUs', 'have their GPUs')} split by MIG"
    message += ": the number of ranks can't be taken from them" if auto else ": a rank sees one slice at most"
    remedy = "switch MIG off (sudo nvidia-smi -mig 0), or say --nproc and set CUDA_VISIBLE_DEVICES a rank"
    return Finding("invalid-device-ordinal", "fail" if auto else "warn", message, remedy, place(mig))


def _too_few(request: Request, counts: Mapping[str, int], wanted: Mapping[str, int]) -> list[Finding]:
    """A failure where other nodes have enough; else the program may not use them at all."""
    few = [n for n in counts if counts[n] < wanted[n]]
    if not few:
        return []
    if request.get("virtual"):
        message = f"{wanted[few[0]]} ranks share {count_of(counts[few[0]], 'GPU')} of this machine"
        return [
            Finding(
                "invalid-device-ordinal",
                "warn",
                message,
                "fine for a CPU program; else a smaller --nproc",
                place(few, gpu=counts[few[0]]),
            )
        ]
    enough = [n for n in counts if n not in few]
    shown = ", ".join(f"{n} has {count_of(counts[n], 'GPU')}" for n in few[:4])
    message = f"{shown} for {count_of(wanted[few[0]], 'rank')}"
    if enough:
        message += f"; the other {len(enough)} {plural(len(enough), 'has', 'have')} enough"
    least = min(counts[n] for n in few)
    remedy = f"look: ssh {few[0]} nvidia-smi -L; or " + (
        f"use --nproc {least}" if least else f"leave {few[0]} out of the list"
    )
    remedy += "; a program for CPUs: --env CUDA_VISIBLE_DEVICES="
    status: Status = "fail" if enough else "warn"
    return [Finding("invalid-device-ordinal", status, message, remedy, place(few, gpu=counts[few[0]]))]


def _unequal(request: Request, counts: Mapping[str, int]) -> list[Finding]:
    """--nproc auto with different numbers of GPUs: allowed, and yet often a GPU that is gone."""
    counts = {n: c for n, c in counts.items() if not (request.get("slots") or {}).get(n)}
    groups = by_value(counts)
    if len(groups) < 2:
        return []
    odd = list(groups.values())[-1]
    message = f"nodes have different numbers of GPUs: {differing(counts)}"
    zero = [n for n, c in counts.items() if c == 0]
    if zero:
        message += f"; {join_names(zero)} would run one rank without a GPU"
    remedy = f"look: ssh {odd[0]} nvidia-smi -L; a number for all: --nproc {max(1, min(counts.values()))}"
    return [Finding(ID, "warn", message, remedy, place(odd))]
