"""The packages that training programs use have the same versions on every node.

Versions come from the packages' metadata (importlib.metadata); nothing is imported. `interpreter` compares
torch, `torch_build` NCCL.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Difference, Nodes, differences, part, place, remote, some
from ..host import Host, Request, versions

ID = "packages"
GROUP = "software"
LEVEL = "full"
SECONDS = 40.0
NAMES = (
    "numpy",
    "torchvision",
    "torchaudio",
    "torchdata",
    "accelerate",
    "deepspeed",
    "colossalai",
    "transformers",
    "datasets",
    "tokenizers",
    "safetensors",
    "triton",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "flash-attn",
    "xformers",
    "apex",
    "bitsandbytes",
    "peft",
    "lightning",
    "pytorch-lightning",
    "transformer-engine",
    "megatron-core",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu11",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cudnn-cu11",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
SHOWN = 4
_LABEL = "environment-mismatch"
_CUDA = re.compile(r"^(nvidia-.+)-cu(\d+)\Z")


def collect(host: Host) -> Optional[Dict[str, str]]:
    """{name: version} of those that are installed; None where the command is no Python program."""
    if "path" not in part(host.facts, "interpreter"):
        return None
    installed: Dict[str, str] = {}
    for name, version in versions(host, NAMES, SECONDS - 5).items():
        family = _CUDA.match(name)
        installed[family.group(1) if family else name] = f"{version} (cu{family.group(2)})" if family else str(version)
    return installed


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings, one for each set of odd nodes. A launcher that is needed and absent is the affair of `interpreter`."""
    collected = {n: f[ID] for n, f in facts_by_node.items() if isinstance(f.get(ID), Mapping)}
    findings: List[Finding] = []
    parted: Dict[Tuple[Tuple[str, ...], bool], List[Tuple[str, Difference]]] = {}
    for package in NAMES_SHOWN:
        for odd in differences(package, {n: v.get(package) for n, v in collected.items()}):
            if odd.value is None and package in part(facts_by_node[odd.nodes[0]], "interpreter").get("lacks", ()):
                continue
            alone = odd.value is None and odd.norm is None  # no majority
            parted.setdefault((tuple(odd.nodes), alone), []).append((package, odd))
    for (nodes, alone), odds in parted.items():
        findings.append(_finding(facts_by_node, list(nodes), alone, odds))
    return findings


NAMES_SHOWN = tuple(dict.fromkeys(_CUDA.sub(r"\1", name) for name in NAMES))


def _finding(facts_by_node: Nodes, nodes: List[str], alone: bool, odds: Sequence[Tuple[str, Difference]]) -> Finding:
    evidence = tuple(odd.message for _, odd in odds)
    wanted = {p: str(odd.norm) for p, odd in odds if odd.norm is not None and "(cu" not in str(odd.norm)}
    remedy = _install(facts_by_node, nodes[0], wanted) if wanted else ""
    message = evidence[0]
    if len(odds) > 1 and alone:
        message = f"{join_names(nodes)} have different versions of {some([p for p, _ in odds], SHOWN)}"
    elif len(odds) > 1:
        shown = [f"{p} {odd.value or 'none'} (most nodes: {odd.norm or 'none'})" for p, odd in odds]
        differ = plural(len(nodes), "differs", "differ")
        message = f"{join_names(nodes)} {differ} in {len(odds)} packages: {some(shown, SHOWN)}"
    remedy = remedy or "install the same environment on every node (one lock file or image), or name one with --python"
    return Finding(_LABEL, "warn", message, remedy, place(nodes), evidence[:12])


def _install(facts_by_node: Nodes, node: str, wanted: Mapping[str, str]) -> str:
    """One line with pip; a local version (+cu121) is not on the index."""
    path = str(part(facts_by_node[node], "interpreter").get("path") or "python3")
    words = [f"{name}=={version.partition('+')[0]}" for name, version in wanted.items()]
    return remote(node, path, "-m", "pip", "install", *words[:8])
