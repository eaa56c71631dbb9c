"""torchrun: a script a node, with static rendezvous (under c10d --node-rank and --master-addr are ignored)."""

from __future__ import annotations

from ..launchers.torchrun import OURS, arguments
from ..launchers.training_command import kept_options, no_python, read_training
from ..ranks import NodePlan
from .request import Rendered, RenderRequest, script_name
from .shell import TITLE, python_words, script


def torchrun(request: RenderRequest) -> Rendered:
    """{script of each node: text}."""
    return {script_name(node): _script(request, node) for node in request.plan.nodes}


def _script(request: RenderRequest, node: NodePlan) -> str:
    words = read_training(request.spec)
    argv = [
        *python_words(request, words),
        "-m",
        "torch.distributed.run",
        *kept_options(request.spec, OURS),
        *(f"--{name}={value}" for name, value in arguments(node, request.attempt).items()),
        *no_python(words, "--no-python"),
    ]
    return script(request, TITLE.format(node.node.name), argv, words.program)
