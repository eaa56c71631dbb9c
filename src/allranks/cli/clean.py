"""allranks clean: old run directories here, or what runs left on the nodes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from allranks.errors import UsageError
from allranks.runs.directory import RunDirectory
from allranks.text import count_of

from .exits import DONE, NODE_FAILED
from .options import AsJson, RunsDir
from .places import runs_directory

Text = str | None
LOOK = re.compile(r"check-\d{8}-\d{6}(-\d+)?")


def command(
    keep: Annotated[int | None, typer.Option("--keep", help="all but the newest K runs and K looks (5)")] = None,
    leftovers: Annotated[bool, typer.Option("--leftovers", help="processes and directories on the nodes")] = False,
    foreign: Annotated[bool, typer.Option("--foreign", help="your other processes on GPUs or the master port")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list, do nothing")] = False,
    local: Annotated[int | None, typer.Option("--local", help="with --leftovers: this machine")] = None,
    hosts: Annotated[Text, typer.Option("--hosts", help="with --leftovers: hostfile or list")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="the first N hosts")] = None,
    master_port: Annotated[int | None, typer.Option("--master-port", help="with --foreign: whose holder")] = None,
    node_dir: Annotated[Text, typer.Option("--node-dir", help="scratch directory on the nodes")] = None,
    guard_python: Annotated[Text, typer.Option("--guard-python", help="Python >= 3.8 on the nodes")] = None,
    ssh_options: Annotated[list[str] | None, typer.Option("--ssh-option", help="as ssh's -o")] = None,
    runs_dir: RunsDir = None,
    json_: AsJson = False,
) -> None:
    """Remove old run directories, or end and remove what earlier runs left on the nodes.

    Example: allranks clean --keep 5, or: allranks clean --leftovers --hosts hosts.txt
    """
    if leftovers or foreign:
        from .leftovers import clean_leftovers

        options: dict[str, Any] = {
            "local": local, "hosts": hosts, "nodes": nodes, "master_port": master_port, "node_dir": node_dir,
            "guard_python": guard_python, "ssh_options": ssh_options,
        }  # fmt: skip
        raise typer.Exit(clean_leftovers(options, foreign, yes, dry_run, json_))
    raise typer.Exit(_clean_runs(runs_dir, 5 if keep is None else keep, yes, dry_run, json_))


def _clean_runs(runs_dir: Text, keep: int, yes: bool, dry_run: bool, json_: bool) -> int:
    """Lists the old runs and looks, asks, removes them; with --json it never asks: --yes is needed. The exit code."""
    if keep < 0:
        raise UsageError(f"--keep {keep}: set 0 or more")
    directory = runs_directory(runs_dir)
    runs, looks = [r for r in RunDirectory.list_runs(directory) if is_ours(r)], list_looks(directory)
    past = [*runs[:-keep], *looks[:-keep]] if keep else [*runs, *looks]
    old = [r for r in past if not may_live(r, time.time())]
    if not json_:
        for run in old:
            typer.echo(str(run.path))
    if old and not (yes or dry_run or json_):
        yes = typer.confirm(f"remove these {len(old)}?")
    acts = yes and not dry_run
    failed = _remove(old) if acts else {}
    if json_:
        removed = [r.name for r in old if r.name not in failed] if acts or dry_run else []
        names = [r.name for r in old]
        typer.echo(json.dumps({"schema": 1, "old": names, "removed": removed, "failed": failed, "dry_run": dry_run}))
    elif acts or dry_run or not old:
        count = f"{len(old) - len(failed)} of {len(runs)} runs"
        count += f" and {count_of(len(looks), 'look')} (check-…)" if looks else ""
        typer.echo(f"{'would remove' if dry_run else 'removed'} {count}")
    for name, why in failed.items():
        typer.echo(f"allranks: {name}: could not be removed: {why}", err=True)
    return NODE_FAILED if failed else DONE


def list_looks(directory: Path) -> list[RunDirectory]:
    """What `check` has saved, the oldest first."""
    found = [p for p in sorted(directory.glob("check-*")) if LOOK.fullmatch(p.name) and not p.is_symlink()]
    return [RunDirectory(p) for p in found if (p / "evidence" / "preflight.json").is_file()
            and not (p / "run.json").exists()]  # fmt: skip


def _remove(runs: list[RunDirectory]) -> dict[str, str]:
    """What could not be removed, and why."""
    failed = {}
    for run in runs:
        try:
            shutil.rmtree(run.path)
        except OSError as error:
            failed[run.name] = f"{error.filename}: {error.strerror}"
    return failed


def is_ours(run: RunDirectory) -> bool:
    """`runs` is a name other tools use too: only what allranks has written is removed."""
    document = run.read_document("run.json") or {}
    kinds = {"schema": int, "uid": str, "spec": dict}
    return all(isinstance(document.get(key), kind) for key, kind in kinds.items())


def may_live(run: RunDirectory, now: float) -> bool:
    """A run with a living controller, or without an end and within twice its lease of its last word."""
    if run.controller_alive():
        return True
    if run.read_document("result.json") is not None:
        return False
    spec = (run.read_document("run.json") or {}).get("spec") or {}
    return now - _last_word(run) < 2 * float(spec.get("lease") or 60.0)


def _last_word(run: RunDirectory) -> float:
    """A controller on another host that shares this directory is seen by what it writes."""
    times = [run.started]
    for path in (run.path, run.path / "events.jsonl", run.path / "status.json", run.path / "run.json"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)
