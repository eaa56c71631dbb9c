"""`import torch` works on every node, in about the same time, and finds torch.distributed and the GPUs.

It is imported as the training program would import it, with the script's directory first on sys.path.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

from allranks.findings import Finding, Status
from allranks.text import count_of, join_names, plural

from ..compare import Facts, Nodes, by_value, gpu_count, others, part, parts, place, remote
from ..host import ANSWER, CouldNotLook, Host, Record, Request

ID = "torch_import"
GROUP = "software"
LEVEL = "full"
LIMIT = 120.0  # a first import from a network file system may well take a minute
SECONDS = LIMIT + 10
# seconds: so much slower than the median is told
TIMES = 3.0
MORE = 5.0
_LABEL = "environment-mismatch"
_ERROR = re.compile(r"Error \d+: .+")
_OLD_DRIVER = re.compile(r"driver on your system is too old|driver version is insufficient")

PROGRAM = r"""
import sys
if sys.path and not sys.path[0]:
    sys.path[:1] = FIRST
import json, time, warnings
begun = time.monotonic()
import torch
found = {"seconds": round(time.monotonic() - begun, 2), "version": str(torch.__version__)}
found["file"] = str(torch.__file__)
import torch.distributed as dist
found["distributed"] = bool(dist.is_available())
known = ("gloo", "nccl", "mpi", "ucc", "xccl")
found["backends"] = [n for n in known if getattr(dist, "is_%s_available" % n, lambda: False)()]
if torch.version.cuda or getattr(torch.version, "hip", None):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found["cuda"] = bool(torch.cuda.is_available())
        found["gpus"] = int(torch.cuda.device_count())
    found["warning"] = str(said[0].message)[:300] if said else ""
print("\nALLRANKS-ANSWER " + json.dumps(found))
"""


def collect(host: Host) -> Optional[Record]:
    """What torch says of itself, or {"failed": the last line, "lines": the last few}, {"late": seconds}."""
    if not part(host.facts, "interpreter").get("torch"):
        return None
    ran = host.python(f"FIRST = {_first(host.facts)!r}\n{PROGRAM}", LIMIT)
    for line in ran.out.splitlines():
        if line.startswith(ANSWER):
            answer: Dict[str, Any] = json.loads(line[len(ANSWER) :])
            return answer
    if ran.code is None and "no answer" in ran.err:
        return {"late": LIMIT}
    if ran.code is None:
        raise CouldNotLook(ran.err)
    lines = [line for line in ran.err.splitlines() if line.strip()][-4:] or ["it printed nothing"]
    failed = f"ended by signal {-ran.code}" if ran.code < 0 else lines[-1].strip()[:300]
    return {"failed": failed, "lines": [line[:200] for line in lines]}


def _first(facts: Facts) -> List[str]:
    """What the program has first on sys.path: the script's directory; python -m has the working directory."""
    script = part(facts, "script")
    if script.get("kind") == "python-module":
        return [""]
    path = str(script.get("path") or "") if script.get("kind") == "python-script" else ""
    return [path.rpartition("/")[0] or "/"] if path else []


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Failures: no import, no torch.distributed, no CUDA where there is a GPU. A warning: slow."""
    collected = parts(facts_by_node, ID)
    works = {n: v for n, v in collected.items() if "seconds" in v}
    findings = _failed(facts_by_node, collected, list(works)) + _late(facts_by_node, collected)
    return findings + _distributed(works) + _backends(works) + _gpus(facts_by_node, works) + _slow(works)


def _failed(facts_by_node: Nodes, collected: Nodes, fine: List[str]) -> List[Finding]:
    failed = {n: str(v["failed"]) for n, v in collected.items() if "failed" in v}
    findings = []
    for error, nodes in by_value(failed).items():
        message = f"import torch fails on {join_names(nodes)}: {error}"
        if fine:
            message += f"; it works on {join_names(fine)}" if len(fine) < 3 else f"; it works on the other {len(fine)}"
        label = "missing-module" if error.startswith("ModuleNotFoundError") else _LABEL
        lines = tuple(str(line) for line in collected[nodes[0]].get("lines") or ())
        findings.append(Finding(label, "fail", message, _import(facts_by_node, nodes[0]), place(nodes), lines))
    return findings


def _late(facts_by_node: Nodes, collected: Nodes) -> List[Finding]:
    late = [n for n, v in collected.items() if "late" in v]
    if not late:
        return []
    limit = collected[late[0]]["late"]
    message = f"import torch on {join_names(late)} did not end within {limit:g} s: a file system may hang"
    return [Finding(ID, "warn", message, _import(facts_by_node, late[0]), place(late))]


def _distributed(works: Nodes) -> List[Finding]:
    without = [n for n, v in works.items() if v.get("distributed") is False]
    if not without:
        return []
    message = f"torch on {join_names(without)} was built without torch.distributed"
    remedy = "install torch from PyTorch's own wheels there, or name another interpreter with --python"
    return [Finding(_LABEL, "fail", message, remedy, place(without), _where(works, without))]


def _backends(works: Nodes) -> List[Finding]:
    """Only gloo and nccl: MPI and UCC are asked for by name, and rarely."""
    findings = []
    for backend in ("gloo", "nccl"):
        has_it = {n: backend in (v.get("backends") or ()) for n, v in works.items() if v.get("distributed")}
        without = [n for n, there in has_it.items() if not there]
        fine = [n for n in has_it if n not in without]
        if without and fine:
            status: Status = "fail" if len(fine) > len(without) else "warn"
            message = f"torch on {join_names(without)} has no {backend}{others(fine, 'have it', 'has it')}"
            remedy = "install the same torch on every node, or name another interpreter with --python"
            findings.append(Finding(_LABEL, status, message, remedy, place(without), _where(works, without)))
    return findings


def _gpus(facts_by_node: Nodes, works: Nodes) -> List[Finding]:
    findings = []
    counts = {n: gpu_count(facts_by_node[n]) for n in works}
    blind = {n: str(v.get("warning") or "") for n, v in works.items() if v.get("cuda") is False and counts[n]}
    for warning, nodes in by_value(blind).items():
        label = "driver-version-mismatch" if _OLD_DRIVER.search(warning) else "cuda-device-unavailable"
        message = f"torch can't use the {count_of(counts[nodes[0]], 'GPU')} of {join_names(nodes)}"
        message += f": {_short(warning)}" if warning else ""
        remedy = f"look: {remote(nodes[0], 'nvidia-smi')}"
        findings.append(Finding(label, "fail", message, remedy, place(nodes), (warning,) if warning else ()))
    fewer = {n: int(v["gpus"]) for n, v in works.items() if v.get("cuda") and int(v["gpus"]) < counts[n]}
    for count, nodes in by_value(fewer).items():
        message = f"torch on {join_names(nodes)} finds {count_of(count, 'GPU')} of {counts[nodes[0]]}"
        remedy = f"look: {remote(nodes[0], 'nvidia-smi', '-L')}"
        findings.append(Finding("cuda-device-unavailable", "warn", message, remedy, place(nodes)))
    return findings


def _short(warning: str) -> str:
    """CUDA's own error where torch names it, else the first sentence."""
    text = warning.partition(" (Triggered")[0]
    error = _ERROR.search(text)
    return error.group(0) if error else text.partition(". ")[0]


def _slow(works: Nodes) -> List[Finding]:
    seconds = {n: float(v["seconds"]) for n, v in works.items()}
    median = sorted(seconds.values())[(len(seconds) - 1) // 2] if seconds else 0.0
    slow = [n for n, s in seconds.items() if s > TIMES * median and s > median + MORE]
    if not slow:
        return []
    worst = max(slow, key=seconds.__getitem__)
    message = f"import torch takes {seconds[worst]:.1f} s on {join_names(slow)}; the median is {median:.1f} s"
    message += f": {plural(len(slow), 'its', 'their')} file system is slow, or reads torch for the first time"
    remedy = f"check again; if it stays: {remote(worst, 'findmnt', '-T', str(works[worst].get('file')))}"
    return [Finding(ID, "warn", message, remedy, place(slow), tuple(f"{n}: {seconds[n]:.1f} s" for n in slow[:8]))]


def _where(works: Nodes, nodes: List[str]) -> "tuple[str, ...]":
    return tuple(f"{n}: torch {works[n].get('version')} in {works[n].get('file')}" for n in nodes[:4])


def _import(facts_by_node: Nodes, node: str) -> str:
    path = str(part(facts_by_node[node], "interpreter").get("path") or "python3")
    return remote(node, path, "-c", "import torch")
