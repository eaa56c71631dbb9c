"""What a renderer gets, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.settings import RunSpec

from ..ranks import Attempt, NodePlan, Plan

Rendered = dict[str, str | bytes]  # file name (no directories): text; bytes are not for reading
DEFAULT_PORT = 29500  # torch's own; nothing is proved here, so that a fixed one is as good as any


@dataclass(frozen=True)
class RenderRequest:
    """The spec, the ranks of each node, the directory that the command was given in.

    `texts`: files of the user's that the command names, by the name used there. `allranks`: how to call allranks
    itself with the interpreter that runs it now. `archive`: allranks as one file. `forwarded`: what `run` would hand
    on to other hosts of the environment that the command was given in (plan/environment.py).
    """

    spec: RunSpec
    plan: Plan
    workdir: str
    texts: Mapping[str, str] = field(default_factory=dict)
    allranks: tuple[str, ...] = ("allranks",)
    archive: bytes = b""
    forwarded: Mapping[str, str] = field(default_factory=dict)

    @property
    def master_addr(self) -> str:
        """--master-addr, else the first node as the list has it."""
        return self.spec.rendezvous.master_addr or self.plan.nodes[0].node.host

    @property
    def master_port(self) -> int:
        """--master-port, else torch's default."""
        return self.spec.rendezvous.master_port or DEFAULT_PORT

    @property
    def attempt(self) -> Attempt:
        """The only one, as launchers take it."""
        return Attempt(0, self.master_addr, self.master_port)


def script_name(node: NodePlan) -> str:
    """Name a node's script: the order of nodes, then the name."""
    width = max(2, len(str(node.of - 1)))
    return f"node_{node.rank:0{width}}_{node.node.name}.sh"
