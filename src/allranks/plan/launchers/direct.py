"""direct: allranks starts the ranks itself, with torchrun's environment. torch is imported once a rank."""

from __future__ import annotations

from allranks.protocol.command_words import read_command

from ..environment import NodeLaunch, PlannedProcess
from .training_command import python_argv


def direct(launch: NodeLaunch) -> list[PlannedProcess]:
    """One process a rank."""
    argv = python_argv(read_command(launch.spec.launch.command), launch.facts, f"{launch.place.node_dir}/runner.py")
    return [PlannedProcess(launch.node.first_rank + i, i, argv) for i in range(launch.node.nproc)]
