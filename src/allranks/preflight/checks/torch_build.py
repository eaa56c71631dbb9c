"""torch is built for the same CUDA or ROCm on every node, with the same NCCL.

NCCL refuses a communicator whose ranks have different versions ("Mismatched NCCL version detected",
ncclInvalidUsage: NCCL src/init.cc, initTransportsRank). The version is that of the wheel nvidia-nccl-cu*,
which torch's wheels load; an NCCL that is linked into torch is not known without importing it.
"""

from __future__ import annotations

from typing import List, Mapping, Optional

from allranks.findings import Finding, Status
from allranks.text import count_of, join_names

from ..compare import Facts, Nodes, differences, gpu_count, part, parts, place, remote
from ..host import Host, Record, Request, versions

ID = "torch_build"
GROUP = "software"
LEVEL = "full"
SECONDS = 40.0
WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
CPU = "CPU only"
_LABEL = "environment-mismatch"


def collect(host: Host) -> Optional[Record]:
    """{"platform": "CUDA 12.8", "nccl": version or None}; None without torch."""
    interpreter = part(host.facts, "interpreter")
    if not interpreter.get("torch"):
        return None
    platform = _platform(interpreter)
    if not platform.startswith("CUDA"):
        return {"platform": platform, "nccl": None}
    cuda = "nvidia-nccl-cu" + platform[len("CUDA ") :].partition(".")[0]
    wheels = versions(host, WHEELS, SECONDS - 5)
    # several may be installed: torch loads the one it was built for
    return {"platform": platform, "nccl": wheels.get(cuda) or next(iter(wheels.values()), None)}


def _platform(interpreter: Facts) -> str:
    for key, name in (("hip", "ROCm"), ("cuda", "CUDA")):
        if interpreter.get(key):
            return f"{name} {interpreter[key]}"
    return CPU


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """nccl-version-mismatch, and a build that differs or can't use the node's GPUs."""
    collected = parts(facts_by_node, ID)
    platforms = {n: str(v.get("platform")) for n, v in collected.items()}
    return _platforms(facts_by_node, platforms) + _blind(facts_by_node, platforms) + _nccl(facts_by_node, collected)


def _platforms(facts_by_node: Nodes, platforms: Mapping[str, str]) -> List[Finding]:
    findings = []
    for odd in differences("torch build", platforms):
        useless = odd.value == CPU and any(_gpus(facts_by_node[n]) for n in odd.nodes)
        status: Status = "fail" if useless else "warn"
        findings.append(
            Finding(
                _LABEL,
                status,
                odd.message,
                _install(facts_by_node, odd.nodes[0], odd.norm),
                place(odd.nodes),
                _versions(facts_by_node, odd.nodes),
            )
        )
    return findings


def _blind(facts_by_node: Nodes, platforms: Mapping[str, str]) -> List[Finding]:
    """All have a build without CUDA, and GPUs."""
    if set(platforms.values()) != {CPU}:
        return []
    nodes = [n for n in platforms if _gpus(facts_by_node[n])]
    if not nodes:
        return []
    count = count_of(_gpus(facts_by_node[nodes[0]]), "GPU")
    message = f"torch on {join_names(nodes)} is built for the CPU only and can't use the {count} of {nodes[0]}"
    remedy = "install torch with CUDA or ROCm (https://pytorch.org/get-started/locally), or name it with --python"
    return [Finding(_LABEL, "warn", message, remedy, place(nodes), _versions(facts_by_node, nodes))]


def _nccl(facts_by_node: Nodes, collected: Nodes) -> List[Finding]:
    versions = {n: str(v["nccl"]) for n, v in collected.items() if v.get("nccl")}
    findings = []
    for odd in differences("NCCL", versions):
        message = f"{odd.message}; NCCL connects equal versions only"
        remedy = _install(facts_by_node, odd.nodes[0], None)
        findings.append(Finding("nccl-version-mismatch", "fail", message, remedy, place(odd.nodes)))
    return findings


def _gpus(facts: Facts) -> int:
    return gpu_count(facts)


def _versions(facts_by_node: Nodes, nodes: List[str]) -> "tuple[str, ...]":
    return tuple(f"{n}: torch {part(facts_by_node[n], 'interpreter').get('torch')}" for n in nodes[:8])


def _install(facts_by_node: Nodes, node: str, norm: Optional[str]) -> str:
    """Only the index of PyTorch has builds by platform; a plain torch brings the NCCL it was built with."""
    interpreter = part(facts_by_node[node], "interpreter")
    path = str(interpreter.get("path") or "python3")
    version = str(interpreter.get("torch")).partition("+")[0]
    index: List[str] = []
    if norm is not None and norm.startswith("CUDA"):
        tag = "".join(norm[len("CUDA ") :].split(".")[:2])
        index = ["--index-url", f"https://download.pytorch.org/whl/cu{tag}"]
    line = remote(node, path, "-m", "pip", "install", "--force-reinstall", f"torch=={version}", *index)
    return f"{line} (the same torch on every node)"
