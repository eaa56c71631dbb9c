"""The packages that training programs use have the same versions on every node.

Versions come from the packages' metadata (importlib.metadata). Nothing is imported. `interpreter` compares
torch, `torch_build` CUDA and NCCL. Wheels of CUDA's libraries follow torch, which asks for exact versions.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.text import join_names, list_first

from ..compare import Difference, Findings, Nodes, by_odd_nodes, collected, pip_install, warn, who
from ..host import Host, versions
from ..typed_facts import Request

ID = "packages"
GROUP = "software"
LEVEL = "full"
SECONDS = 40.0
# fmt: off
NAMES = ("numpy", "torchvision", "torchaudio", "torchdata", "accelerate", "deepspeed", "colossalai",
         "transformers", "datasets", "tokenizers", "safetensors", "triton", "pytorch-triton",
         "pytorch-triton-rocm", "flash-attn", "xformers", "apex", "bitsandbytes", "peft", "lightning",
         "pytorch-lightning", "transformer-engine", "megatron-core")
# fmt: on
SHOWN = 4


def collect(host: Host) -> Optional[Dict[str, str]]:
    """{name: version} of those that are installed; None where the command is not a Python program."""
    interpreter = host.facts.interpreter
    if interpreter.error or not interpreter.path:
        return None
    return versions(host, NAMES, SECONDS - 5)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings, one for each set of odd nodes. A launcher that is needed and absent is the affair of `interpreter`."""
    installed: Dict[str, Dict[str, str]] = {node: {} for node, facts in facts_by_node.items() if facts.has_read(ID)}
    installed.update(collected(facts_by_node, ID, Dict[str, str]))
    for every in by_odd_nodes(NAMES, installed):
        nodes = every[0].nodes
        lacks = facts_by_node[nodes[0]].interpreter.lacks
        odds = [odd for odd in every if odd.value is not None or odd.what not in lacks]
        if odds:
            remedy = _install(facts_by_node, nodes[0], odds)
            yield warn("environment-mismatch", nodes, _sentence(odds), remedy, [odd.message for odd in odds[:12]])


def _sentence(odds: List[Difference[Optional[str]]]) -> str:
    nodes = odds[0].nodes
    if len(odds) == 1:
        return odds[0].message
    if not odds[0].fine:
        return f"{join_names(nodes)} have different versions of {list_first([odd.what for odd in odds], SHOWN)}"
    shown = [f"{odd.what} {odd.value or 'none'} (most nodes: {odd.norm or 'none'})" for odd in odds]
    return f"{who(nodes, 'differs', 'differ')} in {len(odds)} packages: {list_first(shown, SHOWN)}"


def _install(facts_by_node: Nodes, node: str, odds: List[Difference[Optional[str]]]) -> str:
    """One line with pip; a local version (+cu121) is not on the index."""
    words = [f"{odd.what}=={odd.norm.partition('+')[0]}" for odd in odds if odd.norm]
    if not words:
        return "install the same environment on every node (one lock file or image), or name one with --python"
    return pip_install(node, facts_by_node[node].interpreter, *words[:8])
