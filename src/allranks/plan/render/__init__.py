"""What a person would run without allranks, as files: one renderer a file, named here.

Pure: a renderer is a function of a Request that gives {file name: text}; the same request gives the same text.
A new one is a module of this package, an entry in RENDERERS, and its options as fields of RunSpec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .kubernetes import kubernetes
from .request import Rendered, Request
from .skypilot import skypilot
from .torchrun import torchrun


@dataclass(frozen=True)
class Renderer:
    """`title` is one line for the help. `hosts`: it needs names and addresses of nodes, not just their number.

    `joins`: the nodes find each other by `allranks join`, which counts their ranks and is shipped with the files.
    """

    render: Callable[[Request], Rendered]
    title: str
    hosts: bool = True
    joins: bool = False


RENDERERS = {
    "torchrun": Renderer(torchrun, "a script for each node that starts torchrun"),
    "kubernetes": Renderer(kubernetes, "an Indexed Job, a JobSet, a TrainJob or pods", hosts=False, joins=True),
    "skypilot": Renderer(skypilot, "a SkyPilot task", hosts=False, joins=True),
}

__all__ = ["RENDERERS", "Rendered", "Renderer", "Request"]
