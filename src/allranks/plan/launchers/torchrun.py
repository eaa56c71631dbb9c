"""torchrun: one static-rendezvous agent a node, with the arguments of the version found.

Static rendezvous keeps the order of nodes (c10d ignores --node-rank and opens a second port on rank 0).
`--max-restarts 0`: allranks restarts the whole gang, an agent alone would leave its peers behind.
`--local-addr` is taken only by c10d; `--no-python` where the program is none. The agent needs no
--rdzv-conf: its 900 s timeout is above --init-timeout's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.spec import RunSpec

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan
from ..versions import older_than
from .command import node_environment
from .words import Words, read_command


def torchrun(
    spec: RunSpec, world_size: int, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> list[Process]:
    """One agent a node; it starts the node's ranks."""
    words = read_command(spec.command)
    python = str((facts.get("interpreter") or {}).get("path") or words.python or "python3")
    arguments = {
        "nnodes": node.of,
        "nproc-per-node": node.nproc,
        "node-rank": node.rank,
        "rdzv-backend": "static",
        "master-addr": attempt.master_addr,
        "master-port": attempt.master_port,
        "max-restarts": 0,
    }
    old = older_than(str((facts.get("interpreter") or {}).get("torch") or ""), (1, 9))
    head = [f"--{k.replace('-', '_') if old else k}={v}" for k, v in arguments.items()]
    module = "torch.distributed.launch" if old else "torch.distributed.run"
    argv = (python, *words.flags, "-m", module, *head, *_program(words, place))
    return [Process(node.first_rank, 0, argv, node_environment(world_size, node, attempt), per_rank=False)]


def _program(words: Words, place: Place) -> tuple[str, ...]:
    """The script goes through the runner here too, so that initialised ranks and errors are seen."""
    if words.kind in ("python-script", "python-module"):
        return (f"{place.node_dir}/runner.py", *words.program)
    return ("--no-python", *words.program) if words.kind == "program" else words.program
