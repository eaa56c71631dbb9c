"""colossalai: `colossalai run` once a node, on that node alone; torchrun, which it calls, gets the others as options.

Its command line knows several nodes only by ssh, so nnodes and node_rank go through --extra_launch_args: they come
last there, and torchrun takes the last. It joins the words with blanks for a shell (colossalai 0.5.0,
cli/launcher/run.py) and looks for torchrun on PATH: words are quoted, and the interpreter's directory goes first.
"""

from __future__ import annotations

import shlex

from ..environment import NodeLaunch, PlannedProcess
from .node_launcher import agent, options_of, through
from .training_command import kept_options, launched_by, python_for, read_training

# Options that allranks sets or has no use for, beside those that say who the nodes are.
OURS = ("H", "ssh_port", "extra_launch_args")
WITH_PATH = 'PATH="${0%/*}:$PATH" exec "$0" "$@"'


def colossalai(launch: NodeLaunch) -> list[PlannedProcess]:
    """One launcher a node; it starts the node's ranks."""
    words = read_training(launch.spec)
    tool = launched_by(launch.spec)
    theirs = tool.value("extra_launch_args") if tool is not None else None
    who = f"nnodes={launch.node.of},node_rank={launch.node.rank},rdzv_backend=static,max_restarts=0"
    own = {
        "nproc_per_node": launch.node.nproc,
        "master_addr": launch.attempt.master_addr,
        "master_port": launch.attempt.master_port,
        "extra_launch_args": f"{theirs},{who}" if theirs else who,
    }
    argv = (
        "/bin/sh",
        "-c",
        WITH_PATH,
        *python_for(words, launch.facts.interpreter.path),
        "-m",
        "colossalai.cli.cli",
        "run",
        *kept_options(launch.spec, OURS),
        *options_of(own),
        "--",
        *map(shlex.quote, through(words, launch.place)),
    )
    return [agent(launch, argv)]
