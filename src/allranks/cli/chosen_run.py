"""The run a verb is about, and the directory runs are in."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from allranks.engines import lives
from allranks.errors import RunIsElsewhere, RunNotFound, SeveralRuns
from allranks.runs.directory import STAMP, RunDirectory
from allranks.runs.known_directories import RunElsewhere, runs_elsewhere
from allranks.settings.layers import resolve
from allranks.text import count_of

from .config_files import read_config, read_user_config

Value = TypeVar("Value")
MOST_CHOICES = 10
KEYS = ("runs-dir", "runs_dir")  # of a settings file


def runs_directory(option: str | None) -> Path:
    """Return --runs-dir, ALLRANKS_RUNS_DIR, the setting of a settings file, else `runs`; no other setting is read."""
    project = read_config(None, os.environ)
    user = read_user_config(os.environ)
    resolved = resolve(
        {"runs_dir": option},
        _only(os.environ, ("ALLRANKS_RUNS_DIR",)),
        _only(project.values, KEYS),
        config_source=project.source,
        user_config=_only(user.values, KEYS),
        user_source=user.source,
    )
    return Path(resolved.spec.places.runs_dir)


def _only(values: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
    return {name: values[name] for name in names if name in values}


def find_run(
    wanted: str | None, runs_dir: str | None, on: str | None = None, prefers_here: bool = False
) -> RunDirectory:
    """Return the run that was named, or the newest. Raise RunIsElsewhere for one `on` another host."""
    if on is not None:
        raise RunIsElsewhere(on, wanted)
    return find_in(runs_directory(runs_dir), wanted, prefers_here)


def find_in(directory: Path, wanted: str | None, prefers_here: bool = False) -> RunDirectory:
    """Return the run of a runs directory that was named, or the newest.

    Raise RunIsElsewhere where that has its controller on another machine, and was started from here. `prefers_here`:
    unless its directory is here too.
    """
    try:
        found = RunDirectory.find(directory, wanted, lives)
    except SeveralRuns as several:
        runs = [RunDirectory(Path(path), lives) for path in several.paths]
        raise SeveralRuns(with_choices(str(several), runs), several.paths) from None
    except RunNotFound:
        elsewhere = _elsewhere(directory, wanted)
        if elsewhere is None:
            raise
    else:
        elsewhere = _elsewhere(directory, None if wanted is None else found.name)
        if elsewhere is None or _is_here(found, elsewhere, prefers_here):
            return found
    raise RunIsElsewhere(elsewhere.host, wanted, elsewhere.directory, elsewhere.ssh_options, elsewhere.hosts)


def _is_here(found: RunDirectory, elsewhere: RunElsewhere, prefers_here: bool) -> bool:
    """Whether what was found here is meant. It may be the same run, on a disk that both machines have."""
    if elsewhere.run != found.name:
        return elsewhere.started < found.started
    return prefers_here or found.has_ended or found.controller_alive()


def _elsewhere(directory: Path, wanted: str | None) -> RunElsewhere | None:
    """Return the newest run on another machine of this name, or the newest that this directory would have."""
    newest_first = reversed(runs_elsewhere(os.environ))
    if wanted is None:
        here = os.path.abspath(directory)
        return next((run for run in newest_first if run.runs_dir == here), None)
    return next((run for run in newest_first if wanted in (run.run, STAMP.sub("", run.run), run.directory)), None)


def with_choices(sentence: str, runs: Sequence[RunDirectory]) -> str:
    """Write a sentence with the runs to choose from, the newest first, and the command for the newest."""
    from allranks.report.runtable import brief_lines  # imported late: most names are those of one run
    from allranks.runs.brief import read_brief

    newest = runs[: -MOST_CHOICES - 1 : -1]
    lines = [f"{sentence}:", *brief_lines([read_brief(run) for run in newest], time.time())]
    if len(runs) > len(newest):
        lines.append(f"… and {count_of(len(runs) - len(newest), 'older run')}")
    context = click.get_current_context(silent=True)
    command = context.command_path if context is not None else "allranks status"
    return "\n".join([*lines, f"hint: {command} {shlex.quote(newest[0].name)}"])


def list_runs(directory: Path) -> list[RunDirectory]:
    """Return the runs of a runs directory, the oldest first."""
    return RunDirectory.list_runs(directory, lives)
