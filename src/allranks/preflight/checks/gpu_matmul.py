"""Every GPU multiplies matrices about as fast as the others of its model.

A bf16 (fp16 before Ampere) product of 8192 × 8192 matrices for half a second a GPU, in the training interpreter's
torch. It takes the best of many short blocks, so that a clock that rises late does not count. The gpu-fryer
of huggingface, with the same product, tolerates 10 % below the best GPU. Here it is the median.
One whose memory others use is not judged.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import count_of, group

from .. import smi
from ..compare import Findings, Nodes, collected, fail_if, remote, values_of, warn
from ..host import Host, ask
from ..typed_facts import Request

ID = "gpu_matmul"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 65.0
LIMIT = 60.0
ODD = 0.9
PROGRAM = """
import json, sys, time
import torch
begun, found = time.monotonic(), []
for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    if time.monotonic() - begun > 30:
        break
    one = dict(gpu=i, name=torch.cuda.get_device_name(i))
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


class MatmulSpeed(NamedTuple):
    """A GPU's speed; `busy`: others use its memory. `error`: why it could not multiply."""

    gpu: int
    name: str = ""
    tflops: float = 0.0
    busy: bool = False
    error: str = ""
    pci: str = ""


def collect(host: Host) -> Optional[List[MatmulSpeed]]:
    """Measure each GPU; None without GPUs or a torch that can use them."""
    interpreter = host.facts.interpreter
    if not host.facts.gpu_count or not (interpreter.cuda or interpreter.hip):
        return None
    return ask(host, List[MatmulSpeed], PROGRAM, LIMIT) or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: a GPU well below the median of its model. A failure: one that can't multiply at all."""
    nodes = collected(facts_by_node, ID, List[MatmulSpeed])
    for node, gpus in nodes.items():
        for gpu in gpus:
            if gpu.error:
                yield _failed(node, gpu, facts_by_node[node].gpus.vendor)
    measured = values_of(nodes, lambda gpus: [gpu for gpu in gpus if gpu.tflops and not gpu.busy])
    models = group([gpu for gpus in measured.values() for gpu in gpus], lambda gpu: gpu.name)
    usual = values_of(models, lambda alike: sorted(gpu.tflops for gpu in alike)[len(alike) // 2])
    for node, gpus in measured.items():
        for model, alike in models.items():
            slow = [gpu for gpu in gpus if gpu.name == model and gpu.tflops < ODD * usual[model]]
            if slow:
                yield _slow(node, slow, usual[model], len(alike), facts_by_node[node].gpus.vendor)


def _failed(node: str, gpu: MatmulSpeed, vendor: Optional[str]) -> Finding:
    """Fail a GPU that can't multiply; warn where others hold its memory: they may have ended by then."""
    label = "cuda-out-of-memory" if "out of memory" in gpu.error else "cuda-device-unavailable"
    message = f"torch can't multiply matrices on GPU {gpu.gpu} of {node}: {gpu.error}"
    remedy = f"look who uses it and whether it is in error: {remote(node, smi.overview(vendor))}"
    return fail_if(not gpu.busy, label, node, message, remedy=remedy, evidence=[gpu.error], gpu=gpu.gpu)


def _slow(node: str, slow: List[MatmulSpeed], usual: float, alike: int, vendor: Optional[str]) -> Finding:
    worst = min(gpu.tflops for gpu in slow)
    message = f"{smi.gpus_of(node, slow, 'multiplies', 'multiply')} matrices at {worst:.0f} TFLOP/s"
    message += f", {100 - 100 * worst / usual:.0f} % less than the median of {count_of(alike, 'GPU')}"
    message += f" of the model ({usual:.0f})"
    indices = ",".join(str(gpu.gpu) for gpu in slow)
    show = remote(node, f"nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER -i {indices}")
    if vendor == "amd":
        show = remote(node, f"amd-smi metric --power --clock --temperature --gpu {indices.replace(',', ' ')}")
    evidence = [f"GPU {gpu.gpu}, {gpu.name}: {gpu.tflops} TFLOP/s" for gpu in slow[:8]]
    return warn(ID, node, message, f"look for heat, a power limit or low clocks: {show}", evidence, slow[0].gpu)
