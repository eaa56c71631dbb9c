"""The commands that allranks gives to Slurm: the step of the agents, the batch script's options (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from allranks.cluster.hostlist import fold
from allranks.errors import UsageError
from allranks.settings import RunSpec

WARN_BEFORE = 15  # seconds from the end of the grace to the job's own end: for logs and a word
# What the batch script asks Slurm for before the job's end. SIGUSR1 and SIGUSR2 are the program's own: they go to the
# ranks, whoever sends them. SIGXCPU is by custom a batch system's soft limit of time.
WARNING_SIGNAL = "XCPU"
OVERLAP = (20, 11)  # the version that has srun --overlap, and without it lets a step wait for another

# How variables begin that srun would take for the user's wish for this step. It has one task a node, and all that the
# job has.
_STEP_VARIABLES = """
    SLURM_NTASKS SLURM_NPROCS SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_GPUS_PER_TASK
    SLURM_CPU_BIND SLURM_MEM_ SLURM_GPU_BIND SLURM_DISTRIBUTION SLURM_EXACT SLURM_EXCLUSIVE SLURM_THREADS_PER_CORE
    SLURM_HINT SLURM_KILL_BAD_EXIT SLURM_WAIT SLURM_LABELIO SLURM_UNBUFFEREDIO SLURM_STD SLURM_EXPORT_ENV
    SLURM_MPI_TYPE SLURM_OPEN_MODE SLURM_WORKING_DIR SLURM_MULTI_PROG SLURM_NNODES
"""
STEP_VARIABLES = tuple(_STEP_VARIABLES.split())

# They would make of one run several, or of the script another program.
_REFUSED = re.compile(
    r"(?:(--array|--wrap|--wait|--test-only|--parsable|--output|--error|--chdir|--nodes|--job-name|--open-mode|--signal|"
    r"--input|--version|--help|--usage)(?:=.*)?|(-[aWoeDNJiVh]).*)",
    re.DOTALL,
)
_INSTEAD = {
    "-N": "set --nodes of allranks",
    "--nodes": "set --nodes of allranks",
    "-J": "set --name of allranks",
    "--job-name": "set --name of allranks",
    "-D": "set --workdir of allranks",
    "--chdir": "set --workdir of allranks",
    "--signal": "set --stop-grace: Slurm is asked for a signal in time for it",
    "-a": "start one run for each",
    "--array": "start one run for each",
}


def read_version(text: str) -> tuple[int, int]:
    """Of `srun --version`: "slurm 22.05.8", "slurm-wlm 23.11.4"; (0, 0) where it is not understood."""
    match = re.search(r"(?<!\d)(\d{1,6})\.(\d{1,6})", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun: the caller's, without what asks for another kind of step."""
    return {name: value for name, value in environ.items() if not name.startswith(STEP_VARIABLES)}


def knows_containers(help_text: str) -> bool:
    """Tell by `srun --help` whether pyxis is installed, which adds the option (github.com/NVIDIA/pyxis/wiki/Usage)."""
    return re.search(r"--container-image\b", help_text) is not None


def pyxis_options(spec: RunSpec, workdir: str) -> list[str]:
    """Return the options of a step whose tasks are in the container of --container-image.

    What lies outside of the image is mounted at its own path: the working directory, and directories that were named.
    """
    mounts = [f"{path}:{path}" for path in _mounted(spec, workdir)]
    return [f"--container-image={spec.launch.container_image}", f"--container-mounts={','.join(mounts)}"]


def apptainer_command(spec: RunSpec, workdir: str) -> str:
    """Return the command around a rank that starts it in the container of --container-image, with --wrap inside.

    Apptainer passes the environment on, and mounts /tmp and the home directory (its User Guide, "Bind Paths and Mounts"
    and "Environment and Metadata"). A name without a path or a scheme is one of a registry.
    """
    image = spec.launch.container_image or ""
    is_file = image.startswith(("/", ".")) or image.endswith((".sif", ".sqsh", ".img"))
    if not is_file and "://" not in image:
        image = "docker://" + image.replace("#", "/")
    binds = [f"--bind={path}" for path in _mounted(spec, workdir)]
    command = shlex.join(["apptainer", "exec", "--nv", *binds, image])
    return " ".join(filter(None, (command, spec.launch.wrap)))


def _mounted(spec: RunSpec, workdir: str) -> list[str]:
    """Return the directories that a container must have; raise UsageError for one that no option can name."""
    data = (spec.launch.workdir or workdir, spec.places.node_dir, spec.places.output_dir, *spec.preflight.data_paths)
    paths = list(dict.fromkeys(absolute(path, workdir) for path in data if path))
    for path in paths:
        if "," in path or ":" in path:
            raise UsageError(f"--container-image: {path} cannot be mounted, as its name has ',' or ':'. Rename it")
    return paths


def absolute(path: str, base: str) -> str:
    """Return a path below `base`, unless it is absolute."""
    if path.startswith("/"):
        return path
    return f"{base.rstrip('/')}/{path}"


def step_command(
    job: str, nodes: Sequence[str], version: tuple[int, int], script: str, container: Sequence[str] = ()
) -> list[str]:
    """One srun for all nodes: a task a node that runs `script`, fed by standard input, with `container` of pyxis."""
    return [
        "srun",
        f"--jobid={job}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={fold(nodes)}",
        "--job-name=allranks",
        "--input=all",
        "--label",
        "--unbuffered",
        "--export=ALL",
        "--mpi=none",
        "--cpu-bind=none",
        "--mem=0",
        "--wait=0",
        "--kill-on-bad-exit=1",
        *(["--overlap"] if version >= OVERLAP else []),
        *container,
        "/bin/sh",
        "-c",
        script,
    ]


def check_sbatch(texts: Sequence[str]) -> list[str]:
    """Check the words of --sbatch, each option as it was written; UsageError for those that allranks sets itself."""
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--sbatch {text!r}: {error}. Write it as on sbatch's command line") from None
    for word in words:
        refused = _REFUSED.fullmatch(word)
        if refused:
            instead = _INSTEAD.get(refused[1] or refused[2], "allranks sets it, or needs it unset")
            raise UsageError(f"--sbatch {word}: not possible here, {instead}")
    if words and not words[0].startswith("-"):
        raise UsageError(f"--sbatch {words[0]!r}: options of sbatch only, such as --sbatch '--time=1:00:00 --qos=long'")
    return words
