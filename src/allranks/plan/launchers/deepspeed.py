"""deepspeed: its runner once a node with --no_ssh; who the nodes are stands in a hostfile that allranks writes there.

`--local_rank` goes to the program as with deepspeed alone (`--no_local_rank` among the options leaves it out).
"""

from __future__ import annotations

from ..environment import NodeLaunch, PlannedProcess
from ..ranks import Attempt, NodePlan
from .node_launcher import agent, launcher_argv, options_of

# Options that allranks sets or has no use for, beside those that say who the nodes are.
_OURS = "H i e num_accelerators launcher launcher_args no_ssh no_ssh_check force_multi ssh_port"
OURS = tuple(_OURS.split())


def deepspeed(launch: NodeLaunch) -> list[PlannedProcess]:
    """One launcher a node; it starts the node's ranks."""
    path = f"{launch.place.node_dir}/deepspeed_hostfile"
    argv = launcher_argv(launch, "deepspeed.launcher.runner", arguments(launch.node, launch.attempt, path), OURS)
    return [agent(launch, argv, files={path: hostfile(launch.world_size, launch.node)})]


def arguments(node: NodePlan, attempt: Attempt, path: str) -> tuple[str, ...]:
    """Who the nodes are."""
    own = {"node_rank": node.rank, "master_addr": attempt.master_addr, "master_port": attempt.master_port}
    return ("--hostfile", path, "--no_ssh", *options_of(own))


def hostfile(world_size: int, node: NodePlan) -> str:
    """Write a line a node.

    With --no_ssh names say nothing, and of the other nodes only the ranks before and after count: a node that joined
    by itself knows no more.
    """
    before = _shared(node.first_rank, node.rank)
    after = _shared(world_size - node.first_rank - node.nproc, node.of - node.rank - 1)
    return "".join(f"node{i} slots={slots}\n" for i, slots in enumerate([*before, node.nproc, *after]))


def _shared(ranks: int, nodes: int) -> list[int]:
    return [ranks // nodes + (i < ranks % nodes) for i in range(nodes)]
