"""allranks clean: old run directories here, or what runs left on the nodes."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from allranks.engines import settle
from allranks.errors import UsageError
from allranks.exitcodes import NODE_FAILED, code_if
from allranks.protocol.codec import document_line
from allranks.runs.directory import CHECK_NAME, RunDirectory
from allranks.runs.documents import saved_limit
from allranks.settings.table import settings_of
from allranks.text import count_of

from .chosen_run import list_runs, runs_directory
from .declare import Given

# What each half of the command has for itself: an option of the other would be ignored.
OF_NODES = tuple(row for row in settings_of("clean") if row.name != "runs_dir")


def command(typed: Given, keep: int | None, orphans: bool, foreign: bool, yes: bool, dry_run: bool, json_: bool) -> int:
    """Remove old runs here, or what runs left on nodes."""
    runs_dir = typed["runs_dir"]
    if orphans or foreign:
        from .orphans import clean_orphans  # imported late: old run directories need no engine

        if keep is not None or runs_dir is not None:
            option = "--runs-dir" if keep is None else "--keep"
            raise UsageError(f"{option} is for run directories here. Leave it out, or leave out --orphans")
        return clean_orphans({**typed, "runs_dir": None}, foreign, yes, dry_run, json_)
    for row in OF_NODES:
        if typed[row.name]:
            raise UsageError(
                f"{row.option} is for nodes. Add --orphans or --foreign\nhint: allranks clean --orphans {row.option} …"
            )
    directory = runs_directory(str(runs_dir) if runs_dir is not None else None)
    return _clean_runs(directory, 5 if keep is None else keep, yes, dry_run, json_)


def _clean_runs(directory: Path, keep: int, yes: bool, dry_run: bool, json_: bool) -> int:
    """List the old runs and checks, ask, and remove them; --json never asks and needs --yes. Return the exit code."""
    runs = [r for r in list_runs(directory) if is_ours(r)]
    checks = [p for p in sorted(directory.glob("check-*")) if CHECK_NAME.fullmatch(p.name) and not p.is_symlink()]
    evidence = Path("evidence", "preflight.json")
    looks = [RunDirectory(p) for p in checks if (p / evidence).is_file() and not (p / "run.json").exists()]
    past = [*runs[:-keep], *looks[:-keep]] if keep else [*runs, *looks]
    old = [r for r in past if not may_live(r, time.time())]
    if not json_:
        for run in old:
            click.echo(str(run.path))
    if old and not (yes or dry_run or json_):
        yes = click.confirm(f"remove these {len(old)}?")
    acts = yes and not dry_run
    failed = _remove(old) if acts else {}
    names = [run.name for run in old]
    removed = [name for name in names if name not in failed] if acts or dry_run else []
    if json_:
        click.echo(document_line(CleanReport(names, removed, failed, dry_run)))
    elif acts or dry_run or not old:
        counts = [_counted(runs, set(removed), "run")]
        if looks:
            counts.append(_counted(looks, set(removed), "check"))
        click.echo(f"{'would remove' if dry_run else 'removed'} {' and '.join(counts)}")
    for name, why in failed.items():
        click.echo(f"allranks: cannot remove {name} ({why})", err=True)
    return code_if(bool(failed), NODE_FAILED)


def _counted(directories: list[RunDirectory], removed: set[str], noun: str) -> str:
    return f"{sum(one.name in removed for one in directories)} of {count_of(len(directories), noun)}"


class CleanReport(NamedTuple):
    """What `clean --json` prints: names of run directories, and by name why one could not be removed."""

    old: Sequence[str]
    removed: Sequence[str]
    failed: Mapping[str, str]
    dry_run: bool


def _remove(runs: list[RunDirectory]) -> dict[str, str]:
    """Remove run directories. Return why, by name, for those that could not be removed."""
    failed = {}
    for run in runs:
        try:
            shutil.rmtree(run.path)
        except OSError as error:
            failed[run.name] = f"{error.filename}: {error.strerror}"
    return failed


def is_ours(run: RunDirectory) -> bool:
    """Tell whether allranks has written this directory: `runs` is a name that other tools use too."""
    document = run.read_document("run.json") or {}
    kinds = {"schema": int, "uid": str, "spec": dict}
    return all(isinstance(document.get(key), kind) for key, kind in kinds.items())


def may_live(run: RunDirectory, now: float) -> bool:
    """Tell whether a run may go on: its controller lives, or it has no end and wrote within twice its lease.

    A run in pods or on cloud machines goes on without a process here, until its engine says that it is over.
    """
    if run.controller_alive():
        return True
    settle(run, now)
    if run.has_ended:
        return False
    if run.engine:
        return True
    return now - _last_word(run) < 2 * saved_limit(run.read_run(), "lease")


def _last_word(run: RunDirectory) -> float:
    """Return when a run wrote last, in unix seconds: a controller on another host is seen by nothing else."""
    times = [run.started]
    for path in (run.path, run.path / "events.jsonl", run.path / "status.json", run.path / "run.json"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)
