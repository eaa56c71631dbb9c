"""`import torch` works on every node, and finds torch.distributed and the GPUs.

It is imported as the training program would import it, with the script's directory first on sys.path.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Sequence

from allranks.protocol.facts import TargetFacts
from allranks.protocol.records import NamedTuple
from allranks.text import count_of, join_names, with_reason

from .. import smi
from ..compare import Findings, Nodes, alike, by_value, collected, fail, fail_if, nodes_with, others, remote, warn
from ..host import CouldNotLook, Host, answer_of, search_in
from ..typed_facts import Request

ID = "torch_import"
GROUP = "software"
LEVEL = "full"
LIMIT = 120.0  # a first import from a network file system may well take a minute
SECONDS = LIMIT + 10
_LABEL = "environment-mismatch"
_ERROR = re.compile(r"(Error \d+: .+)")
_OLD_DRIVER = re.compile(r"driver on your system is too old|driver version is insufficient")

PROGRAM = r"""
import sys
before = set(sys.modules)
import json, time, warnings
for name in set(sys.modules) - before:  # the program may have files of these names
    del sys.modules[name]
sys.path[:0] = FIRST
begun = time.monotonic()
import torch
found = dict(seconds=round(time.monotonic() - begun, 2), version=str(torch.__version__))
found["file"] = str(torch.__file__)
import torch.distributed as dist
found["distributed"] = bool(dist.is_available())
known = ("gloo", "nccl", "mpi", "ucc", "xccl")
found["backends"] = [n for n in known if getattr(dist, "is_%s_available" % n, lambda: False)()]
if torch.version.cuda or getattr(torch.version, "hip", None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["cuda"] = bool(torch.cuda.is_available())
        found["gpus"] = int(torch.cuda.device_count())
    found["warning"] = str(caught[0].message)[:300] if caught else ""
print("\nALLRANKS-ANSWER " + json.dumps(found))
"""


class Torch(NamedTuple):
    """What torch says of itself, or `failed`: the last line and the last few, or `late`: seconds."""

    seconds: Optional[float] = None
    version: str = ""
    file: str = ""
    distributed: bool = False
    backends: Sequence[str] = ()
    cuda: Optional[bool] = None
    gpus: int = 0
    warning: str = ""
    failed: str = ""
    lines: Sequence[str] = ()
    late: Optional[float] = None


def collect(host: Host) -> Optional[Torch]:
    """Import torch and read what it says of itself; None without torch."""
    if not host.facts.interpreter.torch:
        return None
    ran = host.python(f"FIRST = {_first(host.facts.script)!r}\n{PROGRAM}", LIMIT)
    answer = answer_of(ran, Torch)
    if answer is not None:
        return answer
    if ran.code is None:
        if "no answer" in ran.err:
            return Torch(late=LIMIT)
        raise CouldNotLook(ran.err)
    lines = [line for line in ran.err.splitlines() if line.strip()][-4:] or ["it printed nothing"]
    failed = f"ended by signal {-ran.code}" if ran.code < 0 else lines[-1].strip()[:300]
    return Torch(failed=failed, lines=[line[:200] for line in lines])


def _first(script: TargetFacts) -> List[str]:
    """Tell what the program has first on sys.path: the script's directory, or for python -m the working directory."""
    if script.kind == "python-module":
        return [""]
    is_file = script.kind == "python-script" and script.path
    if not is_file:
        return []
    return [script.path.rpartition("/")[0] or "/"]


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Failures: no import, no torch.distributed, no CUDA where there is a GPU. A warning: no answer in time."""
    nodes = collected(facts_by_node, ID, Torch)
    works = {node: torch for node, torch in nodes.items() if torch.seconds is not None}
    fine = list(works)
    for error, names in alike(nodes, lambda torch: torch.failed).items():
        message = f"import torch fails on {join_names(names)}: {error}"
        if fine:
            rest = join_names(fine) if len(fine) < 3 else f"the other {len(fine)}"
            message += f" (it works on {rest})"
        label = "missing-module" if error.startswith("ModuleNotFoundError") else _LABEL
        yield fail(label, names, message, _import(facts_by_node, names[0]), nodes[names[0]].lines)
    for limit, names in alike(nodes, lambda torch: torch.late).items():
        message = f"import torch on {join_names(names)} did not end within {limit:g} s: a file system may hang"
        yield warn(ID, names, message, _import(facts_by_node, names[0]))
    without = nodes_with(works, lambda torch: not torch.distributed)
    if without:
        message = f"torch on {join_names(without)} was built without torch.distributed"
        remedy = "install torch from PyTorch's own wheels there, or name another interpreter with --python"
        yield fail(_LABEL, without, message, remedy, _where(works, without))
    yield from _backends(works)
    yield from _gpus(facts_by_node, works)


def _backends(works: Mapping[str, Torch]) -> Findings:
    """Only gloo and nccl: MPI and UCC are asked for by name, and rarely."""
    for backend in ("gloo", "nccl"):
        has_it = {node: backend in torch.backends for node, torch in works.items() if torch.distributed}
        groups = by_value(has_it)
        if len(groups) > 1:
            fine = groups[True]
            without = groups[False]
            message = f"torch on {join_names(without)} has no {backend}{others(fine)}"
            remedy = "install the same torch on every node, or name another interpreter with --python"
            is_odd = len(fine) > len(without)
            yield fail_if(is_odd, _LABEL, without, message, remedy, _where(works, without))


def _gpus(facts_by_node: Nodes, works: Mapping[str, Torch]) -> Findings:
    counts = {node: facts_by_node[node].gpu_count for node in works}
    blind = {n: (torch.warning, counts[n]) for n, torch in works.items() if torch.cuda is False and counts[n]}
    for (warning, gpus), nodes in by_value(blind).items():
        label = "driver-version-mismatch" if _OLD_DRIVER.search(warning) else "cuda-device-unavailable"
        message = f"torch can't use the {count_of(gpus, 'GPU')} of {join_names(nodes)}"
        plain = warning.partition(" (Triggered")[0]  # CUDA's own error where torch names it, else the first sentence
        message = with_reason(message, search_in(_ERROR, plain) or plain.partition(". ")[0])
        look = remote(nodes[0], smi.overview(facts_by_node[nodes[0]].gpus.vendor))
        yield fail(label, nodes, message, f"look: {look}", [warning] if warning else ())
    fewer = {n: (torch.gpus, counts[n]) for n, torch in works.items() if torch.cuda and torch.gpus < counts[n]}
    for (count, gpus), nodes in by_value(fewer).items():
        message = f"torch on {join_names(nodes)} finds {count_of(count, 'GPU')} of {gpus}"
        look = remote(nodes[0], smi.listing(facts_by_node[nodes[0]].gpus.vendor))
        yield warn("cuda-device-unavailable", nodes, message, f"look: {look}")


def _where(works: Mapping[str, Torch], nodes: List[str]) -> List[str]:
    return [f"{node}: torch {works[node].version} in {works[node].file}" for node in nodes[:4]]


def _import(facts_by_node: Nodes, node: str) -> str:
    return remote(node, facts_by_node[node].interpreter.path or "python3", "-c", "import torch")
