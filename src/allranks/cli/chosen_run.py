"""The run a verb is about, and the directory runs are in."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.engines import lives
from allranks.runs.directory import RunDirectory
from allranks.settings.layers import resolve

from .target import read_config


def runs_directory(option: str | None) -> Path:
    """--runs-dir, ALLRANKS_RUNS_DIR, allranks.toml, else `runs`."""
    config, source = read_config(None, os.environ)
    only = {k: v for k, v in config.items() if k in ("runs-dir", "runs_dir")}
    environ = {k: v for k, v in os.environ.items() if k == "ALLRANKS_RUNS_DIR"}
    return Path(resolve({"runs_dir": option}, environ, only, config_source=source).spec.places.runs_dir)


def find_run(wanted: str | None, runs_dir: str | None) -> RunDirectory:
    """Return the run that was named, or the newest."""
    return find_in(runs_directory(runs_dir), wanted)


def find_in(directory: Path, wanted: str | None) -> RunDirectory:
    """Return the run of a runs directory that was named, or the newest."""
    return RunDirectory.find(directory, wanted, lives)


def list_runs(directory: Path) -> list[RunDirectory]:
    """Return the runs of a runs directory, the oldest first."""
    return RunDirectory.list_runs(directory, lives)
