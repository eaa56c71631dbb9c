"""direct: allranks starts the ranks itself, with torchrun's environment. torch is imported once a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.settings import RunSpec

from ..environment import Place, Process
from ..ranks import Attempt, NodePlan
from .words import python_argv, read_command


def direct(
    spec: RunSpec, world_size: int, node: NodePlan, place: Place, attempt: Attempt, facts: Mapping[str, Any]
) -> list[Process]:
    """One process a rank."""
    argv = python_argv(read_command(spec.command), facts, f"{place.node_dir}/runner.py")
    return [Process(node.first_rank + i, i, argv) for i in range(node.nproc)]
