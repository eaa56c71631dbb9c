"""torchrun: one static-rendezvous agent a node, with the arguments of the version found.

Static rendezvous keeps the order of nodes (c10d ignores --node-rank and opens a second port on rank 0).
`--max-restarts 0`: allranks restarts the whole gang, an agent alone would leave its peers behind.
`--local-addr` is taken only by c10d; `--no-python` where the program is none. The agent needs no
--rdzv-conf: its 900 s timeout is above --init-timeout's default. Options of a `torchrun … train.py` that the user
gave are kept, but those that say who the nodes are.
"""

from __future__ import annotations

from allranks.settings import RunSpec

from ..environment import NodeLaunch, PlannedProcess, older_than
from ..ranks import Attempt, NodePlan
from .node_launcher import agent, interpreter, through
from .training_command import kept_options, launched_by, no_python, read_training

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
    "numa_binding",
)


def torchrun(launch: NodeLaunch) -> list[PlannedProcess]:
    """One agent a node; it starts the node's ranks."""
    words = read_training(launch.spec)
    old = older_than(launch.facts.interpreter.torch or "", (1, 9))
    head = [f"--{k.replace('-', '_') if old else k}={v}" for k, v in arguments(launch.node, launch.attempt).items()]
    module = "torch.distributed.launch" if old else "torch.distributed.run"
    argv = (
        interpreter(words, launch.facts),
        *words.flags,
        "-m",
        module,
        *kept_options(launch.spec, (*OURS, *_of_launch_alone(launch.spec, old))),
        *head,
        *no_python(words, "--no-python"),
        *through(words, launch.place),
    )
    return [agent(launch, argv)]


def _of_launch_alone(spec: RunSpec, old: bool) -> tuple[str, ...]:
    """Name what `python -m torch.distributed.launch` takes and its successor does, without being asked."""
    tool = launched_by(spec)
    return ("use_env",) if tool is not None and tool.head[-1] == "torch.distributed.launch" and not old else ()


def arguments(node: NodePlan, attempt: Attempt) -> dict[str, int | str]:
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
