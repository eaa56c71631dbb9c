"""command: any command once a node, with the environment set; its process stands for the node's ranks."""

from __future__ import annotations

from allranks.protocol.command_words import read_command
from allranks.settings.tools import read_tool

from ..environment import NodeLaunch, PlannedProcess
from .node_launcher import agent, through
from .training_command import behind, python_argv


def command(launch: NodeLaunch) -> list[PlannedProcess]:
    """One process a node. It gets what a node's script reads: NODE_RANK, NNODES, NPROC_PER_NODE, …

    Where the command is a launcher that we know, its program goes through the runner: it is seen who trains alone.
    """
    tool = read_tool(launch.spec.launch.command)
    if tool is None:
        argv = python_argv(read_command(launch.spec.launch.command), launch.facts, None)
    else:
        argv = (
            *tool.head,
            *(w for o in tool.options for w in o.words if o.name not in ("m", "module")),
            *through(behind(tool), launch.place),
        )
    return [agent(launch, argv)]
