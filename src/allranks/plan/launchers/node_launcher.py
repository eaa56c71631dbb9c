"""What launchers that start a node's ranks themselves have in common, and the two of ours: direct and command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.protocol import node_names as names
from allranks.protocol.command_words import Words, read_command
from allranks.protocol.node_names import ANY
from allranks.protocol.plan_facts import NodeFacts
from allranks.settings.tools import read_tool

from ..environment import NodeLaunch, Place, PlannedProcess
from .training_command import behind, launcher_words, python_argv, read_training


def agent(
    launch: NodeLaunch,
    argv: tuple[str, ...],
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> PlannedProcess:
    """Plan the one process of a node, with the environment that its ranks need."""
    of_scripts = {  # people's own read it once a node
        "MASTER_ADDR": launch.attempt.master_addr,
        "MASTER_PORT": str(launch.attempt.master_port),
        "NODE_RANK": str(launch.node.rank),
        "NNODES": str(launch.node.of),
        "NPROC_PER_NODE": str(launch.node.nproc),
        "WORLD_SIZE": str(launch.world_size),
    }
    environment = {**of_scripts, **_environment_for_ranks(launch), **(env or {})}
    return PlannedProcess(launch.node.first_rank, 0, argv, environment, per_rank=False, files=files or {})


def _environment_for_ranks(launch: NodeLaunch) -> dict[str, str]:
    """Set what agent/runner_launched.py reads: how many ranks there shall be, and the files of each.

    No quotes: colossalai passes variables through a shell.
    """
    files = launch.place.files
    number = launch.attempt.number
    of_each = {
        names.ERROR_FILE: files.error(ANY, number),
        names.STACKS_FILE: files.stacks(ANY),
        names.ASK_SOCKET: files.asked(ANY),
        names.SAVE_FILE: files.save(ANY, number),
        names.NCCL_FILE: files.nccl_log(ANY, number),
    }
    return {
        names.PLANNED: str(launch.world_size),
        names.FIRST_RANK: str(launch.node.first_rank),
        names.RANK_FILES: "|".join(f"{name}={path}" for name, path in of_each.items()),
    }


def launcher_argv(launch: NodeLaunch, module: str, options: Sequence[str], left_out: Sequence[str]) -> tuple[str, ...]:
    """Give the words of a launcher, a module of Python, with `options` behind the user's own."""
    before = launcher_words(launch.spec, launch.facts.interpreter.path, module, options, left_out)
    return (*before, *through(read_training(launch.spec), launch.place))


def options_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Write options with their values, two words each."""
    return tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))


def through(words: Words, place: Place) -> tuple[str, ...]:
    """Put the runner before a Python program, so that initialised ranks and errors are seen."""
    if words.kind in ("python-script", "python-module"):
        return (f"{place.node_dir}/runner_launched.py", *words.program)
    return words.program


def has_gpu(facts: NodeFacts) -> bool:
    """Tell whether the node may have a GPU: False only where it was checked and has none."""
    return facts.gpus is None or facts.gpus.error != "" or bool(facts.gpus.count_)


def direct(launch: NodeLaunch) -> list[PlannedProcess]:
    """One process a rank."""
    argv = python_argv(read_command(launch.spec.launch.command), launch.facts, f"{launch.place.node_dir}/runner.py")
    return [PlannedProcess(launch.node.first_rank + i, i, argv) for i in range(launch.node.nproc)]


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
