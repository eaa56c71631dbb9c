"""torchrun: a script a node, with static rendezvous (under c10d --node_rank and --master_addr are ignored)."""

from __future__ import annotations

from ..launchers.torchrun import MODULE, OURS, arguments
from .request import Rendered, RenderRequest, script_name
from .shell import script


def torchrun(request: RenderRequest) -> Rendered:
    """{script of each node: text}."""
    files: Rendered = {}
    for node in request.plan.nodes:
        files[script_name(node)] = script(request, node, MODULE, arguments(node, request.attempt), OURS)
    return files
