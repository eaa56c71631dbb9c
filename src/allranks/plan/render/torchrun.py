"""torchrun: a script a node, with static rendezvous (under c10d --node_rank and --master_addr are ignored)."""

from __future__ import annotations

from ..launchers.torchrun import OURS, arguments
from .request import Rendered, RenderRequest, script_name
from .shell import script


def torchrun(request: RenderRequest) -> Rendered:
    """{script of each node: text}."""
    files: Rendered = {}
    for node in request.plan.nodes:
        options = [f"--{name}={value}" for name, value in arguments(node, request.attempt).items()]
        module = "torch.distributed.run"
        files[script_name(node)] = script(request, node, module, options, OURS)
    return files
