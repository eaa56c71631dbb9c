"""torch is built for the same CUDA or ROCm on every node, with the same NCCL.

NCCL refuses a communicator whose ranks have different versions ("Mismatched NCCL version detected",
ncclInvalidUsage: NCCL src/init.cc, initTransportsRank). The version is that of the wheel nvidia-nccl-cu*,
which torch's wheels load. An NCCL that is linked into torch is not known without importing it.
"""

from __future__ import annotations

from typing import List, Mapping, Optional

from allranks.protocol.facts import Interpreter
from allranks.protocol.records import NamedTuple
from allranks.text import count_of, join_names

from ..compare import Findings, Nodes, collected, differences, evidence_of, fail, fail_if, having, pip_install, warn
from ..host import Host, versions
from ..typed_facts import Request

ID = "torch_build"
GROUP = "software"
LEVEL = "full"
SECONDS = 40.0
WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
CPU = "CPU only"
_LABEL = "environment-mismatch"


class Build(NamedTuple):
    """`CUDA 12.8`, and NCCL's version where it is known."""

    platform: str
    nccl: Optional[str] = None


def collect(host: Host) -> Optional[Build]:
    """None without torch."""
    interpreter = host.facts.interpreter
    if not interpreter.torch:
        return None
    if interpreter.hip:
        return Build(f"ROCm {interpreter.hip}")
    if not interpreter.cuda:
        return Build(CPU)
    wheels = versions(host, WHEELS, SECONDS - 5)
    # several may be installed: torch loads the one it was built for
    fitting = wheels.get("nvidia-nccl-cu" + interpreter.cuda.partition(".")[0])
    return Build(f"CUDA {interpreter.cuda}", fitting or next(iter(wheels.values()), None))


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """nccl-version-mismatch, and a build that differs or can't use the node's GPUs."""
    builds = collected(facts_by_node, ID, Build)
    platforms = {node: build.platform for node, build in builds.items()}
    for odd in differences("torch build", platforms):
        is_useless = odd.value == CPU and any(facts_by_node[node].gpu_count for node in odd.nodes)
        remedy = _install(odd.nodes[0], facts_by_node[odd.nodes[0]].interpreter, odd.norm or "")
        yield fail_if(is_useless, _LABEL, odd.nodes, odd.message, remedy, _versions(facts_by_node, odd.nodes))
    yield from _blind(facts_by_node, platforms)
    for odd in differences("NCCL", having(builds, lambda build: build.nccl)):
        message = f"{odd.message}, and NCCL connects equal versions only"
        remedy = _install(odd.nodes[0], facts_by_node[odd.nodes[0]].interpreter)
        yield fail("nccl-version-mismatch", odd.nodes, message, remedy)


def _blind(facts_by_node: Nodes, platforms: Mapping[str, str]) -> Findings:
    """All have a build without CUDA, and GPUs."""
    nodes = [node for node in platforms if facts_by_node[node].gpu_count]
    if nodes and set(platforms.values()) == {CPU}:
        count = count_of(facts_by_node[nodes[0]].gpu_count, "GPU")
        message = f"torch on {join_names(nodes)} is built for the CPU only and can't use the {count} of {nodes[0]}"
        remedy = "install torch with CUDA or ROCm (https://pytorch.org/get-started/locally), or name it with --python"
        yield warn(_LABEL, nodes, message, remedy, _versions(facts_by_node, nodes))


def _versions(facts_by_node: Nodes, nodes: List[str]) -> List[str]:
    return evidence_of(nodes, lambda node: f"torch {facts_by_node[node].interpreter.torch or ''}")


def _install(node: str, interpreter: Interpreter, platform: str = "") -> str:
    """Only the index of PyTorch has builds by platform; a plain torch brings the NCCL it was built with."""
    version = (interpreter.torch or "").partition("+")[0]
    words = ["--force-reinstall", f"torch=={version}"]
    if platform.startswith("CUDA"):
        tag = "".join(platform[len("CUDA ") :].split(".")[:2])
        words += ["--index-url", f"https://download.pytorch.org/whl/cu{tag}"]
    return f"{pip_install(node, interpreter, *words)} (the same torch on every node)"
