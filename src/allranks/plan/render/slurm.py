"""slurm: a batch script whose first node runs the controller; Slurm's own gang, limits and cleanup around it."""

from __future__ import annotations

import math
import shlex

from allranks.cluster.slurm_allocation import MADE_BY_ALLRANKS
from allranks.errors import UsageError
from allranks.settings import RunSpec
from allranks.settings.command_line import as_options
from allranks.settings.roles import as_toml, main_role, main_spec, node_count
from allranks.settings.secrets import is_secret_name

from ..joining import unforced, unforced_variables
from ..launchers.training_command import program_name
from ..slurm_commands import WARN_BEFORE, WARNING_SIGNAL, absolute, check_sbatch
from .request import Rendered, RenderRequest
from .shell import folded

# Not for the controller inside: sbatch has them, or they belong to the terminal that submitted.
_OUTSIDE = "nodes partition sbatch slurm local hosts detach controller workdir runs_dir"
OUTSIDE = tuple(_OUTSIDE.split())


ROLES_END = "END_OF_ROLES"
NAMING_SECONDS = 60  # a run directory may take so long to be seen under its job's name on a node


def slurm(request: RenderRequest) -> Rendered:
    """{job.sh: text}"""
    return {"job.sh": batch_script(request)}


def batch_script(request: RenderRequest, run_dir: str | None = None) -> str:
    """Write the script for sbatch.

    `run_dir`: the run directory is made by who submits, who puts `-job<id>` behind this name once sbatch has said the
    number.
    """
    spec = request.spec
    workdir = spec.launch.workdir or request.workdir
    head = "# Made by allranks: the controller runs on the first node."
    lines = ["#!/bin/bash", *_directives(request), head]
    lines += [
        f"trap '' {WARNING_SIGNAL} USR1 USR2  # before allranks listens, none of them may end the script",
        "cd_failed() {",
        '  echo "allranks: $(hostname) has no $1, which must lie on a file system that all nodes share" >&2',
        "  exit 4",
        "}",
        f"cd {shlex.quote(workdir)} || cd_failed {shlex.quote(workdir)}",
        f"export {MADE_BY_ALLRANKS}=1",
    ]
    python = request.allranks[0]
    lines += [f"[ -x {shlex.quote(python)} ] || cd_failed {shlex.quote(python)}"] if "/" in python else []
    if run_dir is not None:
        runs = shlex.quote(run_dir.rsplit("/", 1)[0])
        lines += [
            f"[ -d {runs} ] || cd_failed {runs}",
            f'export ALLRANKS_RUN_DIR={shlex.quote(run_dir)}"{run_suffix("$SLURM_JOB_ID")}"',
            "waited=0  # the directory gets its name when sbatch has said the job's number",
            f'until [ -d "$ALLRANKS_RUN_DIR" ] || [ $waited -ge {NAMING_SECONDS} ]',
            "do",
            "  sleep 1",
            "  waited=$((waited + 1))",
            "done",
            '[ -d "$ALLRANKS_RUN_DIR" ] || cd_failed "$ALLRANKS_RUN_DIR"',
        ]
    lines += [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(request.forwarded.items())
        if name not in spec.launch.env and not is_secret_name(name)
    ]
    lines += [f"export {name}={value}" for name, value in unforced_variables(spec).items()]
    lines += [
        f': "${{{name}:?set {name} in the shell that calls sbatch}}"'
        for name in sorted(spec.launch.env)
        if is_secret_name(name)
    ]
    words = [
        *request.allranks,
        "run",
        "--slurm",
        "--config=/dev/null",
        f"--runs-dir={absolute(spec.places.runs_dir, request.workdir)}",
    ]
    words += as_options(of_the_command_line(spec), "run", (*OUTSIDE, *unforced(spec)))
    if not spec.launch.roles or spec.launch.ray:
        return "\n".join([*lines, "exec " + folded(words)]) + "\n"
    command = folded([*words, "--roles=/dev/stdin"])
    return "\n".join([*lines, f"exec {command} <<'{ROLES_END}'", as_toml(spec.launch.roles) + ROLES_END]) + "\n"


def of_the_command_line(spec: RunSpec) -> RunSpec:
    """Return the settings with the command of --ray back in them, which makes its roles again."""
    if not spec.launch.ray:
        return spec
    driver = main_role(spec)
    return spec.changed(command=(*shlex.split(driver.wrap), *driver.command), env={**spec.launch.env, **driver.env})


def run_suffix(job: str) -> str:
    """Give what stands behind a run directory's name in a job."""
    return f"-job{job}"


def job_name(spec: RunSpec) -> str:
    """--name, else the script's: what its owner looks for in the queue."""
    name = spec.places.name
    if name == RunSpec().places.name:
        name = program_name(main_spec(spec)) or name
    return name


def _directives(request: RenderRequest) -> list[str]:
    spec = request.spec
    words = [f"--job-name={job_name(spec)}", f"--nodes={node_count(spec) + spec.recovery.spares}"]
    if spec.launch.nproc is not None and not spec.launch.roles:
        words.append(f"--ntasks-per-node={spec.launch.nproc}")
    if spec.target.partition is not None:
        words.append(f"--partition={spec.target.partition}")
    words += ["--open-mode=append", f"--signal=B:{WARNING_SIGNAL}@{warning(spec.limits.stop_grace)}"]
    asked = check_sbatch(spec.target.sbatch)
    for word in (*words, *asked):
        if not word.isprintable():
            raise UsageError(f"{word!r}: a line of #SBATCH cannot hold it. Set --name, or another value")
    lines = [f"#SBATCH {shlex.quote(word)}" for word in words]
    if asked:
        lines.append(f"#SBATCH {shlex.join(asked)}")
    return lines


def warning(stop_grace: float) -> int:
    """Seconds before the end of the job at which its script gets a signal: time to save, and to write it all down."""
    return min(65535, math.ceil(stop_grace) + WARN_BEFORE)
