"""torchrun: one static-rendezvous agent a node.

Static rendezvous keeps the order of nodes (c10d ignores --node_rank and opens a second port on rank 0).
`--max_restarts 0`: allranks restarts the whole gang, an agent alone would leave its peers behind.
`--local_addr` is taken only by c10d; `--no_python` where the program is none. The agent needs no
--rdzv_conf: its 900 s timeout is above --init-timeout's default. Options of a `torchrun … train.py` that the user
gave are kept, but those that say who the nodes are. Names have underscores: torch takes dashes from 2.0 on
(torch/distributed/run.py).
"""

from __future__ import annotations

from ..environment import NodeLaunch, PlannedProcess
from ..ranks import Attempt, NodePlan
from .node_launcher import agent, launcher_argv

MODULE = "torch.distributed.run"
# Options that allranks sets or has no use for, beside those that say who the nodes are. use_env is one of
# torch.distributed.launch alone: its successor does what it asks for.
OURS = ("max_restarts", "standalone", "local_addr", "numa_binding", "use_env")


def torchrun(launch: NodeLaunch) -> list[PlannedProcess]:
    """One agent a node; it starts the node's ranks."""
    return [agent(launch, launcher_argv(launch, MODULE, arguments(launch.node, launch.attempt), OURS))]


def arguments(node: NodePlan, attempt: Attempt) -> list[str]:
    """Who the nodes are."""
    own = {
        "nnodes": node.of,
        "nproc_per_node": node.nproc,
        "node_rank": node.rank,
        "rdzv_backend": "static",
        "master_addr": attempt.master_addr,
        "master_port": attempt.master_port,
        "max_restarts": 0,
    }
    return [f"--{name}={value}" for name, value in own.items()]
