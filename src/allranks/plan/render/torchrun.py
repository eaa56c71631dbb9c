"""torchrun: a script a node, with static rendezvous (under c10d --node-rank and --master-addr are ignored)."""

from __future__ import annotations

from ..launchers.words import read_command
from ..ranks import NodePlan
from .request import Rendered, Request, script_name
from .shell import script


def torchrun(request: Request) -> Rendered:
    """{script of each node: text}."""
    return {script_name(node): _script(request, node) for node in request.plan.nodes}


def _script(request: Request, node: NodePlan) -> str:
    words = read_command(request.spec.command)
    python = request.spec.python or words.python or "python3"
    argv = [
        python,
        *words.flags,
        "-m",
        "torch.distributed.run",
        f"--nnodes={node.of}",
        f"--nproc-per-node={node.nproc}",
        f"--node-rank={node.rank}",
        "--rdzv-backend=static",
        f"--master-addr={request.master_addr}",
        f"--master-port={request.master_port}",
        "--max-restarts=0",
        *(("--no-python",) if words.kind == "program" else ()),
        *words.program,
    ]
    return script(request, f"{node.node.name}: start this here, and the other nodes' at any time", argv)
