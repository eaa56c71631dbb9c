"""Commands that start the ranks of one node themselves: what their ranks run, or that they start once a node (pure).

Left alone, each would start ranks inside of every rank, and each node would be the first of a world of its own.
Sources: composer/cli/launcher.py, axolotl/cli/utils/train.py, llamafactory/launcher.py, swift/cli/main.py (they read
NNODES, NODE_RANK, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT), lightning/fabric/cli.py, and the pages of vLLM and
SGLang on several nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import UsageError
from ..protocol.command_words import read_command
from .tools import read_tool

_SWIFT = ("pt", "sft", "rlhf", "dpo", "orpo", "simpo", "export", "infer")
_COMPOSER_VALUES = "nproc stdout stderr world_size base_rank node_rank master_addr master_port"
_FABRIC_VALUES = "accelerator strategy devices num_nodes node_rank main_address main_port precision"
_AXOLOTL_VALUES = "launcher num_processes main_process_port sweep cloud"
LIGHTNING = "LT_CLI_USED"  # tells Lightning that its command line has started the processes


# Starts the interpreter of the environment that the wrapper enters, in the place of the one found outside.
INNER_PYTHON = 'shift && exec "$(command -v python || command -v python3)" "$@"'


@dataclass(frozen=True)
class Peeled:
    """A command, and what stood before it: variables, the words around each process, remarks.

    `once`: it starts the ranks of its node itself, and so starts once a node.
    """

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    enters: bool = False
    once: bool = False

    def wrap_for(self, launcher: str | None, python: str | None) -> str:
        """Write --wrap, if any: in another environment its own python is started, unless one was asked for."""
        tool = read_tool(self.command)
        named = tool.python if tool is not None else read_command(self.command).python
        is_python = tool is not None or read_command(self.command).kind != "program"
        by_path = python is not None or "/" in (named or "")
        is_colossalai = tool is not None and tool.name == "colossalai"  # is started through a shell of its own
        if self.enters and is_python and not by_path and launcher != "command" and not is_colossalai:
            return shlex.join([*self.wrap, "/bin/sh", "-c", INNER_PYTHON, "sh"])
        return shlex.join(self.wrap)


def started_by(command: Sequence[str], env: Mapping[str, str]) -> Peeled | None:
    """Return what to start for a command of a framework; None for any other. `env` stands before the command.

    >>> started_by(["composer", "-n", "2", "t.py", "--lr", "3"], {}).command
    ('t.py', '--lr', '3')
    """
    name = command[0].rpartition("/")[2] if command else ""
    words = [name, *command[1:]]
    for head, read in _FRAMEWORKS.items():
        pattern = head.split()
        if words[: len(pattern)] == pattern:
            return read(head, words[len(pattern) :], env)
    if name in ("swift", "megatron") and words[1:2] and words[1] in _SWIFT:
        note = f"{name} {words[1]} starts torchrun on its node, so it starts once a node (--launcher command)"
        return Peeled(tuple(command), notes=(note,), once=True)
    return None


def _composer(head: str, words: list[str], env: Mapping[str, str]) -> Peeled:
    options = _take(head, words, _COMPOSER_VALUES, {"n": "nproc", "m": "module_mode", "c": "command_mode"})
    nproc = options.get("nproc", "")
    world_size = options.get("world_size", "")
    variables = {"NPROC_PER_NODE": nproc} if nproc else {}
    if nproc.isdecimal() and world_size.isdecimal() and int(world_size) > int(nproc) > 0:
        variables["NNODES"] = str(int(world_size) // int(nproc))
    return _ranks_run(head, ["-m", *words] if "module_mode" in options else words, variables)


def _fabric(head: str, words: list[str], env: Mapping[str, str]) -> Peeled:
    if words[:1] == ["model"]:
        del words[0]
    options = _take(head, words, _FABRIC_VALUES, {})
    devices = options.get("devices", "1")
    variables = {LIGHTNING: "1"}
    for name in ("accelerator", "strategy", "precision"):
        if name in options:
            variables[f"LT_{name.upper()}"] = options[name]
    if "," in devices:
        variables["LT_DEVICES"] = devices
        variables["NPROC_PER_NODE"] = str(len(devices.strip(",").split(",")))
    elif devices.isdecimal() and int(devices):
        variables["NPROC_PER_NODE"] = devices
    if options.get("num_nodes", "1") != "1":
        variables["NNODES"] = options["num_nodes"]
    return _ranks_run(head, words, variables)


def _axolotl(head: str, words: list[str], env: Mapping[str, str]) -> Peeled:
    if "--" in words:
        raise UsageError(
            f"{head} has arguments of its launcher: {shlex.join(words[words.index('--') :])}. allranks is the launcher "
            "here\nhint: leave them out. --nproc N is the number of ranks on a node"
        )
    config = [words.pop(0)] if words and not words[0].startswith("-") else []
    options = _take(head, words, _AXOLOTL_VALUES, {}, everywhere=True)
    for name in ("sweep", "cloud"):
        if name in options:
            raise UsageError(f"{head} --{name} starts trainings itself, and every rank would start them all")
    return _ranks_run(head, ["-m", "axolotl.cli.train", *config, *words], {})


def _llamafactory(head: str, words: list[str], env: Mapping[str, str]) -> Peeled:
    if env.get("USE_V1", "0").lower() in ("1", "true", "y"):
        note = f"{head} starts torchrun on its node, so it starts once a node (--launcher command)"
        return Peeled((*head.split(), *words), {"FORCE_TORCHRUN": "1"}, notes=(note,), once=True)
    return _ranks_run(head, ["-m", "llamafactory.launcher", *words], {})


def _server(rank: str) -> Callable[[str, list[str], Mapping[str, str]], Peeled]:
    def refuse(head: str, words: list[str], env: Mapping[str, str]) -> Peeled:
        names = [option.partition(" ")[0] for option in rank.split(" --")]
        _take(head, words, " ".join(name.lstrip("-").replace("-", "_") for name in names), {}, everywhere=True)
        line = f"{head} {shlex.join(words)} {rank}"
        raise UsageError(
            f"{head} starts its workers itself, and every rank would start a server of its own\n"
            f"hint: --launcher command bash -c {shlex.quote(line)}"
        )

    return refuse


_VLLM = _server("--nnodes $NNODES --node-rank $NODE_RANK --master-addr $MASTER_ADDR")
_SGLANG = _server("--nnodes $NNODES --node-rank $NODE_RANK --dist-init-addr $MASTER_ADDR:$MASTER_PORT")
_FRAMEWORKS: Mapping[str, Callable[[str, list[str], Mapping[str, str]], Peeled]] = {
    "composer": _composer,
    "fabric run": _fabric,
    "lightning run": _fabric,
    "axolotl train": _axolotl,
    "llamafactory-cli train": _llamafactory,
    "lmf train": _llamafactory,
    "vllm serve": _VLLM,
    "python -m vllm.entrypoints.openai.api_server": _VLLM,
    "python3 -m vllm.entrypoints.openai.api_server": _VLLM,
    "sglang serve": _SGLANG,
    "python -m sglang.launch_server": _SGLANG,
    "python3 -m sglang.launch_server": _SGLANG,
}


def _ranks_run(head: str, program: Sequence[str], env: Mapping[str, str]) -> Peeled:
    if not program:
        raise UsageError(f"{head} has no program. Put it behind: {head} train.py")
    shown = shlex.join(program[:2] if program[0] == "-m" else program[:1])
    note = f"{head} starts ranks itself. Under allranks each rank runs {shown}"
    return Peeled(tuple(program), dict(env), notes=(note,))


def _take(
    head: str, words: list[str], with_value: str, short: Mapping[str, str], everywhere: bool = False
) -> dict[str, str]:
    """Take options off the words and return them by name: those in front of the program, or the named ones anywhere."""
    options: dict[str, str] = {}
    names = with_value.split()
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        name = short.get(name.lstrip("-"), name.lstrip("-").replace("-", "_"))
        if not word.startswith("-") or (everywhere and name not in names):
            if not everywhere:
                break
            at += 1
            continue
        del words[at]
        if name in names and not equals:
            if at >= len(words):
                raise UsageError(f"{head} {word} has no value. A shell variable was probably empty")
            value = words.pop(at)
        options[name] = value
    return options
