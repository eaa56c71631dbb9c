"""The run a verb is about, and the directory runs are in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from allranks.engines import lives
from allranks.runs.directory import RunDirectory
from allranks.settings.layers import resolve
from allranks.settings.runspec import Limits

from .config_files import read_config, read_user_config

Value = TypeVar("Value")
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


def saved_limit(run: RunDirectory, name: str) -> float:
    """Return a time limit that a run was started with, in seconds; the default where run.json does not say."""
    seconds = run.read_run().spec.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        seconds = getattr(Limits(), name)
    return float(seconds)


def find_run(wanted: str | None, runs_dir: str | None) -> RunDirectory:
    """Return the run that was named, or the newest."""
    return find_in(runs_directory(runs_dir), wanted)


def find_in(directory: Path, wanted: str | None) -> RunDirectory:
    """Return the run of a runs directory that was named, or the newest."""
    return RunDirectory.find(directory, wanted, lives)


def list_runs(directory: Path) -> list[RunDirectory]:
    """Return the runs of a runs directory, the oldest first."""
    return RunDirectory.list_runs(directory, lives)
