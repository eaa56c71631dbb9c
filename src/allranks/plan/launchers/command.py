"""command: any command once a node, with the environment set; its process stands for the node's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.spec import RunSpec

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan
from .words import python_argv, read_command


def command(
    spec: RunSpec, world_size: int, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> list[Process]:
    """One process a node. It gets what a node's script reads: NODE_RANK, NNODES, NPROC_PER_NODE, …"""
    argv = python_argv(read_command(spec.command), facts, None)
    return [Process(node.first_rank, 0, argv, node_environment(world_size, node, attempt), per_rank=False)]


def node_environment(world_size: int, node: NodePlan, attempt: Attempt) -> dict[str, str]:
    """The names that people's own scripts read once a node."""
    return {
        "MASTER_ADDR": attempt.master_addr,
        "MASTER_PORT": str(attempt.master_port),
        "NODE_RANK": str(node.rank),
        "NNODES": str(node.of),
        "NPROC_PER_NODE": str(node.nproc),
        "WORLD_SIZE": str(world_size),
    }
