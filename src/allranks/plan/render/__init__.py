"""What a person would run without allranks, as files: one renderer a file, named here.

Pure: a renderer is a function of a Request that gives {file name: text}; the same request gives the same text.
A new one is a module of this package, an entry in RENDERERS, and its options as fields of RunSpec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .accelerate import accelerate
from .deepspeed import deepspeed
from .kubernetes import kubernetes
from .request import Rendered, RenderRequest
from .skypilot import skypilot
from .slurm import slurm
from .torchrun import torchrun


@dataclass(frozen=True)
class Renderer:
    """`hosts`: it needs names, addresses and ranks of nodes, not just their number; `joins`: it ships allranks itself,
    for `allranks join`; `roles`: it knows runs of several programs."""

    render: Callable[[RenderRequest], Rendered]
    hosts: bool = True
    joins: bool = False
    roles: bool = False


RENDERERS = {
    "torchrun": Renderer(torchrun),
    "accelerate": Renderer(accelerate),
    "deepspeed": Renderer(deepspeed),
    "slurm": Renderer(slurm, hosts=False, roles=True),
    "kubernetes": Renderer(kubernetes, hosts=False, joins=True, roles=True),
    "skypilot": Renderer(skypilot, hosts=False, joins=True),
}

__all__ = ["RENDERERS", "RenderRequest", "Rendered", "Renderer"]
