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
from .node_launcher import agent, launcher_argv
from .training_command import launched_by

# Options that allranks sets or has no use for, beside those that say who the nodes are.
OURS = ("max_restarts", "standalone", "local_addr", "numa_binding")


def torchrun(launch: NodeLaunch) -> list[PlannedProcess]:
    """One agent a node; it starts the node's ranks."""
    old = older_than(launch.facts.interpreter.torch or "", (1, 9))
    settings = arguments(launch.node, launch.attempt)
    options = [f"--{name.replace('-', '_') if old else name}={value}" for name, value in settings.items()]
    module = "torch.distributed.launch" if old else "torch.distributed.run"
    left_out = (*OURS, *_of_launch_alone(launch.spec, old))
    return [agent(launch, launcher_argv(launch, module, options, left_out, "--no-python"))]


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
