"""From options, environment and allranks.toml to a RunSpec and a Cluster (reads files, asks the host)."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from allranks.cluster.slurm_allocation import read_allocation
from allranks.errors import UsageError
from allranks.protocol.jsontext import Json
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved, refuse_other_engines, resolve
from allranks.settings.paths import anchored
from allranks.settings.scripts import SUBMITTERS, is_shell_script, launcher_in, script_of, starter_of
from allranks.settings.table import ENGINE_FLAGS, TARGETS, engine_of, suggestion
from allranks.text import join_words

from .config_files import read_config, read_user_config, with_roles

FILE_LIMIT = 1 << 20  # bytes of a script
IN_CONTAINERS = ("k8s", "sky")  # `allranks join` inside makes relative paths absolute, against its own directory


def resolve_options(
    options: Mapping[str, Json], config: str | None, renderer: str = "", keeps_roles: bool = False
) -> Resolved:
    """Resolve the settings of all sources; without a target, for the Slurm allocation around us.

    `keeps_roles`: the command looks at the nodes of each role. One that takes no --role looks at all nodes alike.
    Raise UsageError for options that this target has no use for, and for names of nothing.
    """
    project = read_config(config, os.environ)
    if options.get("roles_file"):
        project = with_roles(project, str(options["roles_file"]))
    user = read_user_config(os.environ)
    resolved = resolve(
        options,
        os.environ,
        project.values,
        config_source=project.source,
        user_config=user.values,
        user_source=user.source,
    )
    spec = resolved.spec
    if spec.launch.roles and "role" not in options and not keeps_roles:
        spec = spec.with_roles(())
        resolved = dataclasses.replace(resolved, spec=spec)
    if spec.launch.command:
        from allranks.plan.launchers.training_command import out_of_reach  # imported late: `status` needs no launchers

        resolved = dataclasses.replace(resolved, notes=(*resolved.notes, *out_of_reach(spec)))
    if not any(spec.value(name) for name in TARGETS) and read_allocation(os.environ) is not None:
        spec = spec.changed(slurm=True)
    engine = engine_of(renderer) if renderer else next((name for name in ENGINE_FLAGS if spec.value(name)), "")
    refuse_other_engines(options, engine)
    if engine not in IN_CONTAINERS:
        spec = anchored(spec, os.getcwd(), os.path.expanduser("~"))
    refuse_unknown_allowed(spec.preflight.allow)
    notes = refuse_launching_script(spec)
    return dataclasses.replace(resolved, spec=spec, notes=(*resolved.notes, *notes))


def refuse_unknown_allowed(names: Sequence[str]) -> None:
    """UsageError where one is neither a check nor a cause."""
    if not names:
        return
    from allranks.diagnose.causes import CAUSES  # imported late, as the next: most runs allow nothing
    from allranks.gang.plugins import all_checks

    names_of_checks = (*all_checks(), *CAUSES)
    for name in names:
        if name not in names_of_checks:
            raise UsageError(unknown_name("--allow", name, "check or cause", names_of_checks))


def refuse_launching_script(spec: RunSpec) -> list[str]:
    """Raise UsageError for what starts ranks itself, where each rank would run it: srun, mpirun, scripts, job files.

    Return a note on directives of a batch script, which are not read.
    """
    starter = starter_of(spec.launch.command) if spec.launch.launcher == "direct" else ""
    if starter in SUBMITTERS:
        raise UsageError(f"{starter} submits a job, and every rank would submit one\nhint: {SUBMITTERS[starter]}")
    if starter:
        raise UsageError(
            f"{starter} starts processes on all nodes itself, and every rank would run it\n"
            f"hint: leave {starter} and its options out, and give what stands behind them: allranks run … train.py"
        )
    script = script_of(spec.launch.command)
    if not script or spec.launch.launcher not in ("direct", "command"):
        return []
    file = Path(spec.launch.workdir or ".") / script
    try:
        with file.open("rb") as stream:
            text = stream.read(FILE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return []  # a program of the nodes
    if script.endswith((".yaml", ".yml")):
        from allranks.plan.foreign_jobs import read_manifest  # imported late, as in `_batch_script`

        manifest = read_manifest(text)
        if manifest is not None:
            raise UsageError(manifest.sentence(script))
    if not is_shell_script(spec.launch.command, text):
        return []
    notes = _batch_script(spec, script, text)
    launcher = launcher_in(text) if spec.launch.launcher == "direct" and spec.launch.nproc != 1 else ""
    if launcher:
        raise UsageError(
            f"{script} starts {launcher} itself, and every rank would run the script\n"
            f"hint: add --launcher command, which runs it once on each node"
        )
    return notes


def _batch_script(spec: RunSpec, name: str, text: str) -> list[str]:
    """Raise UsageError for a batch script, which is not submitted. Where it runs once a node, return a note."""
    from allranks.plan.foreign_jobs import MARKS, read_batch_script  # imported late: most runs have no such script

    script = read_batch_script(text)
    if script is None:
        return []
    system = MARKS[script.mark]
    if spec.launch.launcher == "command" and not script.starts_on_nodes:
        return [f"{name} runs on each node, and its lines {script.mark} are not read: {script.said}"]
    hosts = spec.target.hosts or spec.target.local
    command = shlex.join(script.command) if script.command else "train.py"
    inside = read_allocation(os.environ) is not None
    line = f"allranks run {_target_option(spec)} {command}" if hosts else script.run_line(inside)
    raise UsageError(
        f"{name} is a batch script of {system}. allranks does not submit it, and reads none of its lines "
        f"{script.mark}: {script.said}\nhint: {line}"
    )


def unknown_name(option: str, name: str, what: str, candidates: Iterable[str]) -> str:
    """Word the refusal of an unknown name, with the name that was probably meant, else with all there are."""
    names = list(candidates)
    meant = suggestion(name, names)
    if meant:
        return f"{option} {name}: unknown {what}\nhint: {option} {meant}"
    return f"{option} {name}: unknown {what}. Known are {join_words(names)}"


def say_notes(resolved: Resolved) -> None:
    """Write remarks on the settings to standard error, and which of them are from variables of other tools.

    Standard output is for the answer, with `--json` too.
    """
    for note in filter(None, [", ".join(resolved.taken), *resolved.notes]):
        sys.stderr.write(f"note: {note}\n")


def require_command(resolved: Resolved, verb: str = "allranks run") -> None:
    """Refuse settings without a training command: raise UsageError."""
    if not resolved.spec.launch.command and not resolved.spec.launch.roles:
        raise UsageError(f"the training command is missing\nhint: {verb} {_target_option(resolved.spec)} train.py")


def _target_option(spec: RunSpec) -> str:
    """Write how the user named the nodes; two virtual ones where nothing does."""
    if spec.target.hosts:
        return f"--hosts {shlex.quote(spec.target.hosts)}"
    flag = next((flag for flag in ENGINE_FLAGS if spec.value(flag)), "")
    if flag:
        return f"--{flag}"
    return f"--local {spec.target.local or 2}"
