"""Shell scripts that start a launcher themselves: once a rank, they would start ranks times ranks (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..protocol.command_words import SHELLS
from .tools import read_tool

# Programs that start processes on nodes by themselves, and those that submit a job, with what to type instead.
_STARTER_NAMES = (
    "srun mpirun mpiexec mpiexec.hydra orterun prun prterun horovodrun jsrun lrun aprun ibrun pdsh clush pssh "
    "parallel-ssh xla_dist"
)
_STARTERS = (*_STARTER_NAMES.split(), "flux run")
SUBMITTERS = {
    "sbatch": "allranks run --slurm --nodes 2 train.py",
    "salloc": "allranks run --slurm --nodes 2 train.py",
    "qsub": "allranks run --hosts $PBS_NODEFILE train.py, inside the job",
    "bsub": "allranks run --hosts $LSB_DJOB_HOSTFILE train.py, inside the job",
    "kubectl": "allranks run --k8s --nodes 2 train.py",
    "sky launch": "allranks run --sky --nodes 2 train.py",
    "sky exec": "allranks run --sky --nodes 2 train.py",
    "flux submit": "allranks run --hosts hosts.txt train.py, inside the job",
    "ray job": "allranks run --hosts hosts.txt train.py, on hosts that ssh reaches",
    "torchx run": "allranks run --hosts hosts.txt train.py, on hosts that ssh reaches",
}
_BEFORE_A_COMMAND = ("exec", "env", "nohup", "time", "command", "then", "do", "else", "if", "while", "!", "{", "(")
_SEPARATORS = ";&|()"
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def script_of(command: Sequence[str]) -> str:
    """Return the shell script that a command runs: `./run.sh`, `bash -e run.sh`; empty where it runs none."""
    if not command:
        return ""
    if not _is_shell(command[0]):
        return command[0]
    for word in command[1:]:
        if word == "-c":
            return ""
        if not word.startswith("-"):
            return word
    return ""


def starter_of(command: Sequence[str]) -> str:
    """Return the program of a scheduler or of MPI that a command begins with, such as srun; empty where none does."""
    name = command[0].rpartition("/")[2] if command else ""
    names = (name, " ".join([name, *command[1:2]]))
    return next((name for name in names if name in SUBMITTERS or name in _STARTERS), "")


def is_shell_script(command: Sequence[str], text: str) -> bool:
    """Tell whether a shell reads the text: the command or the text's first line names one."""
    first_line = text.partition("\n")[0]
    interpreter = first_line.removeprefix("#!").split()
    named = first_line.startswith("#!") and any(_is_shell(word) for word in interpreter[:2])
    return _is_shell(command[0]) or named


def _is_shell(word: str) -> bool:
    return word.rpartition("/")[2] in SHELLS


def launcher_in(text: str) -> str:
    """Return the launcher that a script's text starts, as it is written there; empty where it starts none."""
    for line in text.replace("\\\n", " ").splitlines():
        for words in commands_of(line):
            if words[0].rpartition("/")[2] in _STARTERS:
                return words[0]
            tool = read_tool(words)
            if tool is not None:
                head = " ".join(tool.head)
                return head if tool.name in head else f"{tool.name} ({head})"
    return ""


def commands_of(line: str) -> list[list[str]]:
    """Split a line into its commands, each as its words, without what stands in front of the program."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote that ends on another line
        return []
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(_SEPARATORS):
            commands.append([])
        elif commands[-1] or not (word in _BEFORE_A_COMMAND or ASSIGNMENT.fullmatch(word)):
            commands[-1].append(word)
    return [command for command in commands if command]
