"""allranks clean: old run directories here, or what runs left on the nodes."""

from __future__ import annotations

import json
import shutil
import time
from typing import Annotated, Any

import typer

from allranks.errors import UsageError
from allranks.runs.directory import RunDirectory

from .places import runs_directory

Text = str | None


def command(
    keep: Annotated[int | None, typer.Option("--keep", help="remove all but the newest K runs (5)")] = None,
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
    runs_dir: Annotated[Text, typer.Option(help="where run directories are (runs)")] = None,
    json_: Annotated[bool, typer.Option("--json", help="JSON on stdout")] = False,
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
    _clean_runs(runs_dir, 5 if keep is None else keep, yes, dry_run, json_)


def _clean_runs(runs_dir: Text, keep: int, yes: bool, dry_run: bool, json_: bool) -> None:
    if keep < 0:
        raise UsageError(f"--keep {keep}: set 0 or more")
    runs = RunDirectory.list_runs(runs_directory(runs_dir))
    old = [r for r in (runs[:-keep] if keep else runs) if not may_live(r, time.time())]
    if old and not (yes or dry_run or json_):
        for run in old:
            typer.echo(run.name)
        yes = typer.confirm(f"remove these {len(old)} runs?")
    if not dry_run and (yes or json_):
        for run in old:
            shutil.rmtree(run.path)
    if json_:
        typer.echo(json.dumps({"schema": 1, "removed": [r.name for r in old], "dry_run": dry_run}))
    else:
        typer.echo(
            f"{'would remove' if dry_run else 'removed'} {len(old) if yes or dry_run else 0} of {len(runs)} runs"
        )
        for run in old if dry_run else []:
            typer.echo(f"  {run.name}")


def may_live(run: RunDirectory, now: float) -> bool:
    """A run with a living controller, or without an end and within twice its lease of its last word."""
    if run.controller_alive():
        return True
    if run.read_document("result.json") is not None:
        return False
    spec = (run.read_document("run.json") or {}).get("spec") or {}
    events = run.path / "events.jsonl"
    last = events.stat().st_mtime if events.exists() else run.started
    return now - last < 2 * float(spec.get("lease") or 60.0)
