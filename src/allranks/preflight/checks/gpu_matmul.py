"""Every GPU multiplies matrices about as fast as the others of its model.

A bf16 (fp16 before Ampere) product of 8192 × 8192 matrices for half a second a GPU, in the training interpreter's
torch; the best of many short blocks, so that a clock that rises late does not count. huggingface's gpu-fryer, with the
same product, tolerates 10 % below the best GPU; here it is the median. One whose memory others use is not judged.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional

from allranks.findings import Finding, Status
from allranks.text import count_of, plural

from .. import smi
from ..compare import Nodes, median, part, place, remote
from ..host import Host, Record, Request, ask

ID = "gpu_matmul"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 65.0
LIMIT = 60.0
ALONE = True
ODD = 0.9
PROGRAM = """
import json, sys, time
import torch
begun, found = time.monotonic(), []
for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    if time.monotonic() - begun > 30:
        break
    one = {"gpu": i, "name": torch.cuda.get_device_name(i)}
    found.append(one)
    try:
        torch.cuda.set_device(i)
        free, total = torch.cuda.mem_get_info(i) if hasattr(torch.cuda, "mem_get_info") else (4 << 30, 4 << 30)
        one["busy"] = free < 0.9 * total
        hip = getattr(torch.version, "hip", None)
        kind = torch.bfloat16 if hip or torch.cuda.get_device_capability(i)[0] >= 8 else torch.float16
        n = 8192 if free > 2 << 30 else 2048
        a = torch.randn(n, n, device="cuda", dtype=kind)
        b = torch.randn(n, n, device="cuda", dtype=kind)
        c = torch.empty(n, n, device="cuda", dtype=kind)
        for _ in range(5):
            torch.mm(a, b, out=c)
        torch.cuda.synchronize()
        best, until = 0.0, time.monotonic() + 0.5
        while time.monotonic() < until:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(10):
                torch.mm(a, b, out=c)
            end.record()
            end.synchronize()
            best = max(best, 20.0 * n ** 3 / start.elapsed_time(end) / 1e9)
        one["tflops"] = round(best, 1)
        del a, b, c
        torch.cuda.empty_cache()
    except RuntimeError as error:
        one["error"] = (str(error) or "RuntimeError").splitlines()[0][:200]
sys.stdout.write("\\nALLRANKS-ANSWER %s\\n" % json.dumps(found))
"""


def collect(host: Host) -> Optional[List[Record]]:
    """[{"gpu", "name", "tflops", "busy"} or {…, "error"}]; None without GPUs or a torch that can use them."""
    interpreter = part(host.facts, "interpreter")
    if not part(host.facts, "gpus").get("count") or not (interpreter.get("cuda") or interpreter.get("hip")):
        return None
    results = ask(host, PROGRAM, LIMIT)
    gpus: List[Record] = [one for one in results if isinstance(one, dict)]
    return gpus[:64] or None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: a GPU well below the median of its model. A failure: one that can't multiply at all."""
    gpus = [(n, one) for n, f in facts_by_node.items() for one in f.get(ID) or [] if isinstance(one, Mapping)]
    speeds: Dict[str, List[float]] = {}
    for _, one in gpus:
        if one.get("tflops") and not one.get("busy"):
            speeds.setdefault(str(one.get("name")), []).append(float(one["tflops"]))
    findings = [_failed(node, one) for node, one in gpus if one.get("error")]
    for node in facts_by_node:
        for name, alike in speeds.items():
            measured = [one for owner, one in gpus if owner == node and one.get("name") == name and not one.get("busy")]
            slow = [one for one in measured if one.get("tflops") and float(one["tflops"]) < ODD * median(alike)]
            if slow:
                findings.append(_slow(node, slow, alike))
    return findings


def _failed(node: str, one: Record) -> Finding:
    """A warning where others hold its memory: they may be gone by then."""
    text = str(one["error"])
    label = "cuda-out-of-memory" if "out of memory" in text else "cuda-device-unavailable"
    message = f"torch can't multiply matrices on GPU {one.get('gpu')} of {node}: {text}"
    remedy = f"look who uses it and whether it is in error: {remote(node, 'nvidia-smi')}"
    status: Status = "warn" if one.get("busy") else "fail"
    return Finding(label, status, message, remedy, place([node], gpu=one.get("gpu")), (text,))


def _slow(node: str, slow: List[Record], alike: List[float]) -> Finding:
    usual = median(alike)
    worst = min(float(one["tflops"]) for one in slow)
    less = round(100 - 100 * worst / usual)
    does = plural(len(slow), "multiplies", "multiply")
    message = f"{smi.which_gpus(slow)} of {node} {does} matrices at {worst:.0f} TFLOP/s"
    message += f", {less} % less than the median of {count_of(len(alike), 'GPU')} of the model ({usual:.0f})"
    indices = ",".join(str(one.get("gpu")) for one in slow)
    look = remote(node, "nvidia-smi", "-q", "-d", "PERFORMANCE,CLOCK,TEMPERATURE,POWER", "-i", indices)
    remedy = f"look for heat, a power limit or low clocks: {look}"
    evidence = tuple(f"GPU {one.get('gpu')}, {one.get('name')}: {one['tflops']} TFLOP/s" for one in slow[:8])
    return Finding(ID, "warn", message, remedy, place([node], gpu=slow[0].get("gpu")), evidence)
