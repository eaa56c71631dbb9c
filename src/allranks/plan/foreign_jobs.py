"""Job files of others, given as the program: batch scripts and manifests, with the command line that they come to.

Directives: sbatch(1), qsub of PBS Professional, bsub of LSF. Manifests: the API references of Kubeflow's training
operator and trainer, JobSet, Kubernetes' Job, and SkyPilot's task YAML.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..protocol.command_words import read_command
from ..settings.scripts import SUBMITTERS, commands_of, starter_of
from ..settings.table import RENDERERS
from ..settings.tools import ABOUT_NODES, read_tool
from .render.yamltext import Document, read_yaml

MARKS = {"#SBATCH": "Slurm", "#PBS": "PBS", "#BSUB": "LSF"}
_SUBMITTER = {"#PBS": "qsub", "#BSUB": "bsub"}
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-p": "--partition", "-J": "--job-name", "-o": "--output", "-e": "--error"}
# Of sbatch: what allranks sets in the job that it submits (plan/render/slurm.py), and what a run counts itself.
_SET_BY_ALLRANKS = ("--job-name", "--output", "--error", "--ntasks", "--open-mode", "--signal", "--ntasks-per-node")
# The number of ranks is the user's choice, who the nodes are is the run's.
_LEFT_OUT = ABOUT_NODES - {"nproc_per_node", "num_gpus", "num_processes"}


class BatchScript(NamedTuple):
    """`mark` begins its directives, which say `words`; `command` is what it starts on the nodes, empty if unknown."""

    mark: str
    words: tuple[str, ...]
    command: tuple[str, ...]
    starts_on_nodes: bool

    @property
    def said(self) -> str:
        """Name the directives as they are written, three at most."""
        more = " …" if len(self.words) > 3 else ""
        return " ".join(self.words[:3]) + more

    def run_line(self, inside: bool) -> str:
        """Write the command line of allranks. `inside`: the job has begun, and its directives with it."""
        command = shlex.join(self.command) if self.command else "train.py"
        if self.mark != "#SBATCH":
            return SUBMITTERS[_SUBMITTER[self.mark]].replace("train.py", command)
        if inside:
            return f"allranks run --slurm {command}"
        return f"allranks run --slurm {shlex.join([*_options_of_slurm(self), '_'])[:-1]}{command}"


def read_batch_script(text: str) -> BatchScript | None:
    """Return what a batch script asks for; None where no line of it is a directive."""
    for mark in MARKS:
        lines = [
            line.strip() for line in text.splitlines() if line.startswith(mark) and line[len(mark) :][:1].isspace()
        ]
        if lines:
            words = [word for line in lines for word in line[1:].split(" #")[0].split()[1:]]
            command, starts = _started(text)
            return BatchScript(mark, tuple(words), command, starts)
    return None


def _sbatch_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options by their long names with their values: `-N 4`, `-N4`, `--nodes=4`, `--nodes 4`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[0] == "-":
            name, equals, value = word[:2], "=", word[2:]
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield _SHORT.get(name, name), value


def _options_of_slurm(script: BatchScript) -> list[str]:
    words: list[str] = []
    options = dict(_sbatch_options(script.words))
    nodes = options.pop("--nodes", "").partition("-")[0]
    tasks = options.pop("--ntasks-per-node", "")
    words += ["--nodes", nodes] if nodes else []
    if tasks.isdecimal() and int(tasks) > 1 and read_tool(script.command) is None:
        words += ["--nproc", tasks]
    partition = options.pop("--partition", "")
    words += ["--partition", partition] if partition else []
    for name, value in options.items():
        if name not in _SET_BY_ALLRANKS:
            words.append(f"--sbatch={name}" + (f"={value}" if value and name.startswith("--") else value))
    return words


def _started(text: str) -> tuple[tuple[str, ...], bool]:
    starts = False
    found: tuple[str, ...] = ()
    for line in text.replace("\\\n", " ").splitlines():
        for words in commands_of(line):
            starter = starter_of(words)
            starts = starts or bool(starter)
            command = _training_command(words, behind=bool(starter))
            if command and (not found or starter):
                found = command
    return found, starts


def _training_command(words: Sequence[str], behind: bool) -> tuple[str, ...]:
    """Return a command of a launcher or of Python, `behind` the options of what starts it; empty where it is none."""
    for index in range(len(words) if behind else 1):
        rest = words[index:]
        tool = read_tool(rest)
        if tool is not None and tool.program:
            kept = [word for option in tool.options if option.name not in _LEFT_OUT for word in option.words]
            return _literal((*tool.head, *kept), tool.program)
        command = read_command(rest)
        if command.kind in ("python-script", "python-module"):
            return _literal((), command.program)
    return ()


def _literal(before: Sequence[str], program: Sequence[str]) -> tuple[str, ...]:
    """Leave out the words that only the script's own shell could fill in; nothing is left without a program."""
    if "$" in program[0] or "`" in program[0]:
        return ()
    return tuple(word for word in (*before, *program) if "$" not in word and "`" not in word)


class ForeignManifest(NamedTuple):
    """A job of Kubernetes or a task of SkyPilot. `engine` is the option of `run` for it, and of `render` its name."""

    kind: str
    engine: str
    command: tuple[str, ...] = ()
    image: str = ""
    nodes: int | None = None
    gpus: str = ""

    def run_line(self) -> str:
        """Write the command line of allranks."""
        words = [f"--{self.engine}"]
        words += ["--nodes", str(self.nodes)] if self.nodes else []
        words += ["--gpus", self.gpus] if self.gpus else []
        words += ["--image", self.image] if self.image else []
        return f"allranks run {shlex.join([*words, *(self.command or ('train.py',))])}"

    def sentence(self, name: str) -> str:
        """Say what the file is, and what to type."""
        command = shlex.join(self.command) if self.command else "not in the file"
        image = self.image or "not in the file"
        renderer = RENDERERS[self.engine]
        article = "an" if self.kind[0] in "AEIOM" else "a"
        return (
            f"{name} is {article} {self.kind}. It is not read as a job. Its command is {command}, its image {image}\n"
            f"hint: {self.run_line()}, or `allranks render {renderer}` with the same words writes a file like it"
        )


def read_manifest(text: str) -> ForeignManifest | None:
    """Return the job that a YAML file describes; None for any other file."""
    for part in re.split(r"^---.*$", text, flags=re.MULTILINE):
        try:
            manifest = _manifest(read_yaml(part, "the file"))
        except (UsageError, RecursionError, ValueError):
            continue
        if manifest is not None:
            return manifest
    return None


def _manifest(document: Document) -> ForeignManifest | None:
    kind = document.get("kind")
    if isinstance(kind, str) and kind in _KINDS and "apiVersion" in document:
        return _of_kubernetes(kind, document)
    if isinstance(document.get("run"), str) and {"resources", "num_nodes", "setup"} & set(document):
        return _of_skypilot(document)
    return None


_PYTORCH = "spec pytorchReplicaSpecs"
_MPI = "spec mpiReplicaSpecs"
_JOBSET = "spec replicatedJobs 0 template spec"
# Paths in a manifest: pod specs or trainers, the one with the command first, and numbers that add up to nodes.
_KINDS = {
    "PyTorchJob": (
        [f"{_PYTORCH} Worker template spec", f"{_PYTORCH} Master template spec"],
        [f"{_PYTORCH} Master replicas", f"{_PYTORCH} Worker replicas"],
    ),
    "MPIJob": ([f"{_MPI} Launcher template spec", f"{_MPI} Worker template spec"], [f"{_MPI} Worker replicas"]),
    "JobSet": ([f"{_JOBSET} template spec"], [f"{_JOBSET} parallelism"]),
    "Job": (["spec template spec"], ["spec parallelism"]),
    "TrainJob": (["spec trainer"], ["spec trainer numNodes"]),
}


def _of_kubernetes(kind: str, document: object) -> ForeignManifest:
    pods, counts = _KINDS[kind]
    containers = [_container(_at(document, path)) for path in pods]
    command = next(filter(None, map(_command_of, containers)), ())
    images = [image for image in (container.get("image") for container in containers) if isinstance(image, str)]
    numbers = [number for number in (_at(document, path) for path in counts) if isinstance(number, int)]
    gpus = next(filter(None, map(_gpus_of, containers)), "")
    return ForeignManifest(kind, "k8s", command, next(iter(images), ""), sum(numbers) or None, gpus)


def _at(value: object, path: str) -> object:
    for step in path.split():
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and not isinstance(value, str) and step.isdecimal() and value:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def _container(pod: object) -> Mapping[str, object]:
    first = _at(pod, "containers 0") or pod
    return first if isinstance(first, Mapping) else {}


def _command_of(container: Mapping[str, object]) -> tuple[str, ...]:
    words = [str(word) for name in ("command", "args") for word in _list(container.get(name))]
    inner = [_started(word)[0] for word in words if " " in word]
    return next(filter(None, inner), ()) or _started(shlex.join(words))[0] or _literal((), words or [""])


def _list(value: object) -> Sequence[object]:
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, Sequence) else ()


def _gpus_of(container: Mapping[str, object]) -> str:
    for place in ("resources limits", "resourcesPerNode limits"):
        limits = _at(container, place)
        for name, number in limits.items() if isinstance(limits, Mapping) else ():
            if re.fullmatch(r"[a-z0-9.]+/gpu", str(name)):
                return str(number) if name == "nvidia.com/gpu" else f"{name}:{number}"
    return ""


def _of_skypilot(document: Mapping[str, object]) -> ForeignManifest:
    image = str(_at(document, "resources image_id") or "").removeprefix("docker:")
    nodes = document.get("num_nodes")
    accelerators = _at(document, "resources accelerators")
    if isinstance(accelerators, Mapping):
        accelerators = next((f"{name}:{number}" for name, number in accelerators.items()), "")
    gpus = accelerators if isinstance(accelerators, str) else ""
    command = _started(str(document["run"]))[0]
    return ForeignManifest("task of SkyPilot", "sky", command, image, nodes if isinstance(nodes, int) else None, gpus)
