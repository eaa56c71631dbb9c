"""Words before a command: `NNODES=2 env X=1 numactl -N 0 torchrun … train.py` (pure).

One table says of each word which of its options take a value and how many words follow before the command begins.
Variables become the ranks', other words are `--wrap`. What is not in the table is refused before a launcher.
Sources: the manual page of each, `uv run --help`, `conda run --help`, Apptainer's and Nsight's user guides.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import UsageError
from ..protocol.command_words import read_command
from .frameworks import Peeled, started_by
from .scripts import ASSIGNMENT, starter_of
from .tools import read_tool


class Wrapper(NamedTuple):
    """`values` are options with a value of their own, `words` what stands before the command. `enters` another
    environment, with a python of its own; `dropped`: why the word has no use under allranks."""

    head: str
    values: str = ""
    words: int = 0
    enters: bool = False
    dropped: str = ""


_BIND = (
    "-B --bind --pwd -H --home --env --env-file -o --overlay -W --workdir -S --scratch --mount --security --network "
    "--hostname --app --fusemount"
)
_NSYS = (
    "-o --output -t --trace -s --sample -d --duration -y --delay -c --capture-range -f --force-overwrite -x --stats "
    "--export -w --show-output -e --env-var --gpu-metrics-device --gpu-metrics-devices --cuda-memory-usage --kill "
    "--capture-range-end --backtrace --cudabacktrace --cpuctxsw --python-sampling --python-backtrace --pytorch "
    "--nic-metrics"
)
_NCU = (
    "-o --export --set --section --metrics --target-processes -k --kernel-name -c --launch-count -s --launch-skip "
    "--mode --replay-mode --page --log-file --nvtx-include --nvtx-exclude --devices"
)
WRAPPERS = (
    Wrapper("nohup", dropped="a run with --detach needs no terminal"),
    Wrapper("setsid", dropped="a run with --detach needs no terminal"),
    Wrapper("time", "-f -o --format --output", dropped="the last line of a run says how long it took"),
    Wrapper("exec", dropped="it is a word of the shell"),
    Wrapper("command", dropped="it is a word of the shell"),
    Wrapper("nice", "-n --adjustment"),
    Wrapper("ionice", "-c -n --class --classdata"),
    Wrapper("taskset", words=1),
    Wrapper("chrt", "-T -P -D", words=1),
    Wrapper("numactl", "-i --interleave -w -p --preferred -C --physcpubind -N --cpunodebind -m --membind"),
    Wrapper("stdbuf", "-i --input -o --output -e --error"),
    Wrapper("timeout", "-k --kill-after -s --signal", words=1),
    Wrapper("sudo", "-u --user -g --group -h --host -p --prompt -C -T -D"),
    Wrapper("nsys profile", _NSYS),
    Wrapper("nsys launch", _NSYS),
    Wrapper("ncu", _NCU),
    Wrapper("rocprofv3", "-d -o -i --output-format"),
    Wrapper("py-spy record", "-o --output -f --format -d --duration -r --rate"),
    Wrapper("uv run", "--with --with-requirements --with-editable --extra --group --project --directory -p --python "
            "--env-file --index --index-url --package --config-file", enters=True),
    Wrapper("conda run", "-n --name -p --prefix --cwd", enters=True),
    Wrapper("mamba run", "-n --name -p --prefix --cwd", enters=True),
    Wrapper("micromamba run", "-n --name -p --prefix --cwd -r --root-prefix", enters=True),
    Wrapper("poetry run", enters=True),
    Wrapper("pipenv run", enters=True),
    Wrapper("pdm run", "-p --project", enters=True),
    Wrapper("pixi run", "-e --environment --manifest-path", enters=True),
    Wrapper("apptainer exec", _BIND, words=1, enters=True),
    Wrapper("singularity exec", _BIND, words=1, enters=True),
    Wrapper("enroot start", "-c --conf -e --env -m --mount", words=1, enters=True),
)  # fmt: skip


def peel(command: Sequence[str], by_itself: bool = False) -> Peeled:
    """Take off what stands before a command, and a framework that would start the ranks of its node.

    `by_itself`: the framework stays, as a launcher was asked for.

    >>> peel(["X=1", "nice", "-n", "5", "torchrun", "t.py"]).command
    ('torchrun', 't.py')
    """
    words = list(command)
    env: dict[str, str] = {}
    wrap: list[str] = []
    notes: list[str] = []
    enters = False
    while words:
        name = words[0].rpartition("/")[2]
        heads = (name, " ".join([name, *words[1:2]]))
        row = next((row for row in WRAPPERS if row.head in heads), None)
        if ASSIGNMENT.fullmatch(words[0]):
            variable, _, value = words.pop(0).partition("=")
            env[variable] = value
        elif name == "env":
            del words[0]
            if words and words[0].startswith("-"):
                raise UsageError(
                    f"env {words[0]} before the command is not understood: ranks need the environment of the run"
                    f"\nhint: leave {words[0]} out. --env NAME=VALUE sets a variable in the ranks"
                )
        elif row is not None and not (row.enters and _begins_no_launcher(words, row)):
            taken = _options(words, row)
            if row.dropped:
                notes.append(f"{row.head} is left out: {row.dropped}")
            else:
                wrap += taken
            enters = enters or row.enters
        else:
            break
    if command and not words:
        raise UsageError(f"{shlex.join(command)} has no program behind it\nhint: {shlex.join(command)} train.py")
    started = (None if by_itself else started_by(words, env)) or Peeled(tuple(words))
    notes += started.notes
    return replace(started, env={**started.env, **env}, wrap=tuple(wrap), notes=tuple(notes), enters=enters)


def _begins_no_launcher(words: Sequence[str], row: Wrapper) -> bool:
    """Tell whether the command behind a row's words is none of a launcher's: then it starts a rank, as any program."""
    rest = list(words)
    _options(rest, row)
    if not rest:
        return True
    behind = peel(rest, by_itself=True)
    return read_tool(behind.command) is None and started_by(behind.command, behind.env) is None


def _options(words: list[str], row: Wrapper) -> list[str]:
    taken = [words.pop(0) for _ in row.head.split()]
    values = row.values.split()
    while words and words[0].startswith("-") and words[0] != "-":
        if row.head == "uv run" and words[0] in ("-m", "--module"):
            words[:1] = ["python", "-m"]
            break
        option = words.pop(0)
        if option == "--":
            break
        taken.append(option)
        if option in values and words:
            taken.append(words.pop(0))
    return [*taken, *(words.pop(0) for _ in range(min(row.words, len(words))))]


def refuse_unknown_words(command: Sequence[str]) -> None:
    """Raise UsageError where a launcher stands behind words that are not understood: every rank would start it."""
    if read_tool(command) is not None or read_command(command).kind != "program" or starter_of(command):
        return
    for index in range(1, len(command)):
        tool = read_tool(command[index:])
        first = tool.program[0] if tool is not None and tool.program else ""
        if tool is not None and (first == "-m" or first.endswith((".py", ".pyw", ".sh"))):
            before = shlex.join(command[:index])
            raise UsageError(
                f"{before} stands before {' '.join(tool.head)}, and every rank would start both\n"
                f"hint: --wrap {shlex.quote(before)} {shlex.join(command[index:])}, or --launcher command, which runs "
                "the whole once on each node"
            )
