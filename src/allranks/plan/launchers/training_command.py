"""Reads the training command: a script, a module, a python with flags, or any program."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.protocol.command_words import Words, read_command
from allranks.protocol.plan_facts import NodeFacts
from allranks.settings import RunSpec
from allranks.settings.tools import Tool, read_tool
from allranks.text import format_duration


def read_training(spec: RunSpec) -> Words:
    """Read what ranks run: the command, or what stands behind another launcher in it."""
    tool = launched_by(spec)
    return read_command(spec.launch.command) if tool is None else behind(tool)


def program_name(spec: RunSpec) -> str:
    """Name what ranks run as its owner does: the script's file name, a module's full name, a program's."""
    program = read_training(spec).program
    name = program[1] if program[:1] == ("-m",) and len(program) > 1 else "".join(program[:1])
    return name.rstrip("/").rsplit("/", 1)[-1]


def launched_by(spec: RunSpec) -> Tool | None:
    """Read the launcher that the command begins with, where it is the one to be started."""
    tool = read_tool(spec.launch.command)
    return tool if tool is not None and tool.name == spec.launch.launcher else None


def ranks_asked_for(spec: RunSpec, nodes: int | None = None) -> int | None:
    """Read how many ranks a node the launcher in the command is asked for; None where it does not say a number.

    accelerate's num_processes are those of all machines: of the run's nodes, where their number is known.
    """
    tool = read_tool(spec.launch.command)
    if tool is None or spec.launch.launcher not in ("command", tool.name):
        return None
    if tool.name != "accelerate":
        return _count(tool.value("nproc_per_node", "num_gpus", "num_accelerators"))
    world_size = _count(tool.value("num_processes"))
    machines = nodes or _count(tool.value("num_machines"))
    if world_size is None or machines is None or world_size % machines:
        return None
    return world_size // machines


def _count(value: str | None) -> int | None:
    if value is None or not value.isdecimal():
        return None
    return int(value) or None


def kept_options(spec: RunSpec, left_out: Sequence[str]) -> tuple[str, ...]:
    """Keep the user's options of that launcher, without those that say who the nodes are."""
    tool = launched_by(spec)
    return tool.kept(tuple(left_out)) if tool is not None else ()


def python_for(words: Words, python: str | None) -> list[str]:
    """Give the interpreter that starts a launcher: the node's, else the word that the user wrote, with its flags."""
    return [python or words.python or "python3", *words.flags]


def launcher_words(
    spec: RunSpec, python: str | None, module: str, options: Sequence[str], left_out: Sequence[str]
) -> list[str]:
    """Give the words of a launcher, a module of Python, up to the program: `options` stand behind the user's own."""
    words = read_training(spec)
    before = [*python_for(words, python), "-m", module, *kept_options(spec, left_out), *options]
    if words.kind == "program":
        before.append("--no_python")
    return before


def out_of_reach(spec: RunSpec) -> list[str]:
    """Say which settings take effect in a rank's interpreter alone, where allranks does not start that.

    `--launcher command`, a shell script and `python -c` start the ranks themselves, unseen by the runner.
    """
    if not spec.launch.command or _goes_through_runner(spec):
        return []
    program = spec.launch.command[0].rstrip("/").rsplit("/", 1)[-1]
    notes = []
    if spec.limits.pg_timeout is not None:
        notes.append(
            f"--pg-timeout {format_duration(spec.limits.pg_timeout)} does not reach the ranks below {program}. Read "
            "the seconds from ALLRANKS_PG_TIMEOUT and give them to init_process_group(timeout=…)"
        )
    if spec.recovery.audit_data:
        notes.append(f"--audit-data sees no data loader below {program}. Give the Python program itself as the command")
    return notes


def _goes_through_runner(spec: RunSpec) -> bool:
    words = read_training(spec)
    if spec.launch.launcher == "command":
        tool = read_tool(spec.launch.command)
        if tool is None:
            return False
        words = behind(tool)
    return words.kind in ("python-script", "python-module")


def behind(tool: Tool) -> Words:
    """Read the program behind a launcher's options; whatever it is called, the launcher gives it to python."""
    kind = "python-module" if tool.program[:1] == ("-m",) else "python-script"
    if tool.has("no_python") or not tool.program:
        kind = "program"
    return Words(kind, tool.python, tool.flags, tool.program)


def python_argv(words: Words, facts: NodeFacts, runner: str | None) -> tuple[str, ...]:
    """argv of one rank: through the runner where it can take the program."""
    if words.kind == "program":
        return words.program
    python = facts.interpreter.path or words.python or "python3"
    through = (runner,) if runner is not None and words.kind != "python-other" else ()
    return (python, *words.flags, *through, *words.program)
