"""torchrun: one static-rendezvous agent a node, with the arguments of the version found.

Static rendezvous keeps the order of nodes (c10d ignores --node-rank and opens a second port on rank 0).
`--max-restarts 0`: allranks restarts the whole gang, an agent alone would leave its peers behind.
`--local-addr` is taken only by c10d; `--no-python` where the program is none. The agent needs no
--rdzv-conf: its 900 s timeout is above --init-timeout's default. Options of a `torchrun … train.py` that the user
gave are kept, but those that say who the nodes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.settings import RunSpec
from allranks.settings.tools import Tool

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan
from ..versions import older_than
from .agent import agent, interpreter, through
from .words import launched_by, read_training

OURS = (
    "nnodes",
    "nproc_per_node",
    "node_rank",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "master_addr",
    "master_port",
    "max_restarts",
    "standalone",
    "local_addr",
)


def torchrun(
    spec: RunSpec, world_size: int, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> list[Process]:
    """One agent a node; it starts the node's ranks."""
    words = read_training(spec)
    old = older_than(str((facts.get("interpreter") or {}).get("torch") or ""), (1, 9))
    head = [f"--{k.replace('-', '_') if old else k}={v}" for k, v in arguments(node, attempt).items()]
    module = "torch.distributed.launch" if old else "torch.distributed.run"
    no_python = ("--no-python",) if words.kind == "program" else ()
    argv = (
        interpreter(words, facts),
        *words.flags,
        "-m",
        module,
        *kept(launched_by(spec)),
        *head,
        *no_python,
        *through(words, place),
    )
    return [agent(world_size, node, place, attempt, argv)]


def arguments(node: NodePlan, attempt: Attempt) -> dict[str, object]:
    """Who the nodes are."""
    return {
        "nnodes": node.of,
        "nproc-per-node": node.nproc,
        "node-rank": node.rank,
        "rdzv-backend": "static",
        "master-addr": attempt.master_addr,
        "master-port": attempt.master_port,
        "max-restarts": 0,
    }


def kept(tool: Tool | None) -> tuple[str, ...]:
    """The user's own options."""
    return tool.kept(OURS) if tool is not None else ()
