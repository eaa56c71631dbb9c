"""Reads a command that starts with another launcher: `accelerate launch --mixed_precision bf16 train.py --lr 3`.

What people have today. Its options are kept, except those that say who the nodes are; the program behind them is
what ranks run. Which options take no value is read from each tool's parser: torch/distributed/run.py,
accelerate/commands/launch.py, deepspeed/launcher/runner.py, colossalai/cli/launcher/__init__.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..protocol.command_words import read_command

FRAMEWORKS = ("accelerate", "deepspeed", "colossalai")  # a process group is what these are for

# How each begins; the first word may have a directory before it.
_HEADS = {
    "accelerate launch": "accelerate",
    "accelerate-launch": "accelerate",
    "python -m accelerate.commands.launch": "accelerate",
    "torchrun": "torchrun",
    "python -m torch.distributed.run": "torchrun",
    "python -m torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed",
    "python -m deepspeed.launcher.runner": "deepspeed",
    "python -m deepspeed": "deepspeed",
    "python -m accelerate.commands.accelerate_cli launch": "accelerate",
    "colossalai run": "colossalai",
    "python -m colossalai.cli.cli run": "colossalai",
}
_FLAGS = {
    "torchrun": "h help standalone m module no_python run_path use_env",
    "accelerate": "h help q quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic "
    "dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network m "
    "module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug",
    "deepspeed": "h help elastic_training module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid "
    "bind_cores_to_rank q quiet",
    "colossalai": "help",
}
# Options that say who the nodes are, of any of them. `--node-rank $RANK train.py` with an empty variable takes the
# script for the rank.
_ABOUT_NODES = (
    "nnodes nproc_per_node node_rank rdzv_endpoint rdzv_id rdzv_backend master_addr master_port num_machines "
    "num_processes machine_rank main_process_ip main_process_port num_nodes num_gpus hostfile host include exclude"
)
ABOUT_NODES = frozenset(_ABOUT_NODES.split())
_CHOOSES = ("chooses nodes and GPUs", "--hosts names the nodes, --nproc N and CUDA_VISIBLE_DEVICES the GPUs")
_REACHES = ("says how nodes are reached", "allranks starts deepspeed on each node itself")
_CHANGES = ("changes the number of nodes", "--nodes MIN:MAX starts again with the nodes that are there")
# Options of deepspeed for what allranks decides: what they do, and what does it here.
_DECIDED_HERE = {
    "include": _CHOOSES,
    "i": _CHOOSES,
    "exclude": _CHOOSES,
    "e": _CHOOSES,
    "launcher": _REACHES,
    "launcher_args": _REACHES,
    "elastic_training": _CHANGES,
}
_MODULE = {"torchrun": ("m", "module"), "accelerate": ("m", "module"), "deepspeed": ("module",), "colossalai": ()}


@dataclass(frozen=True)
class Option:
    """An option of the tool as it was written; `name` without dashes, with `_`; a flag has no value."""

    name: str
    value: str | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class Tool:
    """`head` are the words that name the tool, `flags` Python's own, `program` a script or `-m module` …."""

    name: str
    head: tuple[str, ...]
    options: tuple[Option, ...]
    program: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def python(self) -> str | None:
        """The interpreter, where the head names one: its own word, or the neighbour of a tool with a directory."""
        if self.head[0].rpartition("/")[2].startswith("python"):
            return self.head[0]
        directory, slash, _ = self.head[0].rpartition("/")
        return f"{directory}/python" if slash else None

    def value(self, *names: str) -> str | None:
        """Return the last value of an option, under any of its names; "" for a flag, None where it is absent."""
        return next((o.value or "" for o in reversed(self.options) if o.name in names), None)

    def has(self, *names: str) -> bool:
        """Tell whether one of the options is there."""
        return any(o.name in names for o in self.options)

    def kept(self, dropped: Sequence[str]) -> tuple[str, ...]:
        """Return the words of all options but those named, and those that say who the nodes or the program are."""
        left_out = {*dropped, *ABOUT_NODES, *_MODULE[self.name], "no_python"}
        return tuple(word for o in self.options if o.name not in left_out for word in o.words)


def read_tool(command: Sequence[str]) -> Tool | None:
    """None where the command does not begin with one of the tools."""
    flags: tuple[str, ...] = ()  # what python itself takes before its `-m`: -u, -X faulthandler
    if command and _is_python(command[0].rpartition("/")[2]):
        flags = read_command(command).flags
    plain = (*command[:1], *command[1 + len(flags) :])
    for words, name in _HEADS.items():
        pattern = words.split()
        if _starts(plain, pattern):
            head = (*command[:1], *flags, *plain[1 : len(pattern)])
            return _read(name, head, flags, list(plain[len(pattern) :]))
    return None


def is_one_process(launcher: str, command: Sequence[str]) -> bool:
    """Tell whether one process of a node stands for all of its ranks: nothing is known of those that it may start."""
    return launcher == "command" and read_tool(command) is None


def is_program(command: Sequence[str]) -> bool:
    """Tell whether a command is neither Python's nor a launcher's: a shell script, which has ways to hide a failure."""
    return bool(command) and read_tool(command) is None and read_command(command).kind == "program"


def node_rank_in(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of an option that gives a node its number, such as `--node-rank 0`; empty without one."""
    for index, word in enumerate(command):
        name, equals, _ = word.partition("=")
        if name.startswith("--") and name.lstrip("-").replace("-", "_") in ("node_rank", "machine_rank"):
            words = (word,) if equals else tuple(command[index : index + 2])
            if words[-1].rpartition("=")[2].isdecimal():
                return words
    return ()


def choose_launcher(command: Sequence[str], launcher: str | None) -> tuple[str, str]:
    """Choose the launcher, with a note where the command names it; UsageError where both name one and differ."""
    tool = read_tool(command)
    if tool is None:
        return launcher or "direct", ""
    head = " ".join(tool.head)
    _refuse_holes(tool, head)
    if not tool.program:
        raise UsageError(f"{head} has no program. Put it behind: {head} train.py")
    if launcher != "command":
        _refuse_choice_of_nodes(tool)
    if launcher is None:
        return tool.name, f"{head} starts once a node and gets the nodes as its options (--launcher {tool.name})"
    if launcher not in ("direct", "command", tool.name):
        raise UsageError(
            f"--launcher {launcher}, but the command starts with {head}. Leave --launcher out, or give"
            f" the program alone: {' '.join(tool.program[:2])}"
        )
    return launcher, ""


def _refuse_choice_of_nodes(tool: Tool) -> None:
    """UsageError where deepspeed is to choose among nodes and GPUs, or to reach the nodes in a way of its own.

    `deepspeed --include h1:0,1`, `--launcher openmpi` (deepspeed/launcher/runner.py).
    """
    for option in tool.options:
        if tool.name == "deepspeed" and option.name in _DECIDED_HERE:
            does, instead = _DECIDED_HERE[option.name]
            raise UsageError(
                f"deepspeed {shlex.join(option.words)} {does}, and allranks does that\nhint: leave it out. {instead}"
            )


def _refuse_holes(tool: Tool, head: str) -> None:
    for option in tool.options:
        value = option.words[-1]
        if option.name in ABOUT_NODES and len(option.words) == 2 and (value.startswith("-") or value.endswith(".py")):
            raise UsageError(
                f"{head}: {' '.join(option.words)} is not a value. A shell variable was probably empty\n"
                f"hint: leave {option.words[0]} out, as allranks passes it"
            )


def _starts(command: Sequence[str], pattern: list[str]) -> bool:
    if len(command) < len(pattern) or list(command[1 : len(pattern)]) != pattern[1:]:
        return False
    first = command[0].rpartition("/")[2]
    return first == pattern[0] or (pattern[0] == "python" and _is_python(first))


def _is_python(word: str) -> bool:
    return word == "python" or (word.startswith("python") and word[6:].replace(".", "").isdecimal())


def _read(name: str, head: tuple[str, ...], flags: tuple[str, ...], words: list[str]) -> Tool:
    options: list[Option] = []
    module: tuple[str, ...] = ()
    while words and words[0].startswith("-") and words[0] not in ("-", "--") and not module:
        option = _option(name, words)
        del words[: len(option.words)]
        if name == "colossalai" and option.name == "m":  # its -m takes the module itself
            module = ("-m", option.value or "")
        else:
            options.append(option)
    if words and words[0] == "--":
        del words[0]
    if any(o.name in _MODULE[name] for o in options):
        module = ("-m",)
    return Tool(name, head, tuple(options), (*module, *words), flags)


def _option(tool: str, words: list[str]) -> Option:
    name, equals, value = words[0].partition("=")
    name = name.lstrip("-").replace("-", "_")
    if equals:
        return Option(name, value, (words[0],))
    is_flag = name in _FLAGS[tool].split() or len(words) == 1
    if is_flag or (name not in ABOUT_NODES and words[1].startswith("--")):  # a flag that is newer than the list
        return Option(name, None, (words[0],))
    return Option(name, words[1], (words[0], words[1]))
