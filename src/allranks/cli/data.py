"""allranks data: how many steps an epoch has (plan), and whether the data is really split (audit)."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from allranks.data.auditing import Audit, conclude, virtual_rows
from allranks.data.bandwidth import measured
from allranks.data.steps import FORMULA, Asked, explain_observed, plan
from allranks.data.tables import coverage_lines, finding_lines, plan_lines
from allranks.errors import UsageError
from allranks.settings.units import parse_duration, parse_size

from . import exits
from .options import AsJson, RunsDir

Text = str | None


def option(name: str, text: str, metavar: str | None = None) -> Any:
    """An option."""
    return typer.Option(name, help=text, metavar=metavar)


def command(
    action: Annotated[str, typer.Argument(metavar="plan|audit", help="steps and times, or who reads what")],
    samples: Annotated[int | None, option("--samples", "plan: samples in the data")] = None,
    batch: Annotated[int, option("--batch", "plan: samples a step and rank")] = 1,
    gpus_per_node: Annotated[int, option("--gpus-per-node", "ranks a node")] = 8,
    nodes: Annotated[str, option("--nodes", "plan: numbers of nodes to compare", "N,N,…")] = "1",
    epochs: Annotated[int, option("--epochs", "plan: epochs in all")] = 1,
    step_time: Annotated[Text, option("--step-time", "plan: of one batch of one rank: 2s", "TIME")] = None,
    grad_accum: Annotated[int, option("--grad-accum", "plan: batches an optimizer step")] = 1,
    drop_last: Annotated[bool, option("--drop-last", "plan: leave the rest out")] = False,
    pad: Annotated[bool, option("--pad", "plan: fill up the last batches (default)")] = False,
    model_bytes: Annotated[Text, option("--model-bytes", "plan: gradients exchanged a step: 14GB", "SIZE")] = None,
    bandwidth: Annotated[Text, option("--bandwidth", "plan: bytes a second, or a run of allranks test")] = None,
    observed_steps: Annotated[int | None, option("--observed-steps", "plan: what a run showed; says why")] = None,
    loader: Annotated[Text, option("--loader", "audit: module:function or file.py:function")] = None,
    world_size: Annotated[int, option("--world-size", "audit: virtual ranks")] = 2,
    model_parallel: Annotated[int, option("--model-parallel", "audit: ranks that shall read the same")] = 1,
    python: Annotated[Text, option("--python", "audit: training interpreter", "PATH")] = None,
    runs_dir: RunsDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="audit: print what would run")] = False,
    json_: AsJson = False,
) -> None:
    """Count the steps of an epoch, or look at every sample that each of N virtual ranks reads.

    Example: allranks data plan --samples 32217 --gpus-per-node 8 --nodes 1,2,8 --epochs 5 --step-time 2s

    Example: allranks data audit --loader train:make_loader --world-size 16
    """
    if action == "plan":
        if samples is None:
            raise UsageError("data plan: set --samples")
        if drop_last and pad:
            raise UsageError("--drop-last and --pad: set one of them")
        asked = Asked(
            samples, batch, gpus_per_node, _numbers(nodes), epochs,
            None if step_time is None else parse_duration(step_time, "--step-time"), grad_accum,
            "drop" if drop_last else "pad",
            None if model_bytes is None else parse_size(model_bytes, "--model-bytes"),
            None if bandwidth is None else measured(bandwidth, runs_dir or os.environ.get("ALLRANKS_RUNS_DIR", "runs")),
        )  # fmt: skip
        raise typer.Exit(show_plan(asked, observed_steps, json_))
    if action != "audit":
        raise UsageError(f"data {action!r}: set plan or audit")
    if not loader:
        raise UsageError("data audit: set --loader module:function; the function gives a torch DataLoader")
    if dry_run:
        typer.echo(f"{python or sys.executable}: {loader} read by {world_size} virtual ranks, {gpus_per_node} a node")
        raise typer.Exit(exits.DONE)
    raise typer.Exit(show_audit(loader, world_size, gpus_per_node, model_parallel, python or "", json_))


def _numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--nodes {text!r}: set numbers such as 1,2,8")
    return tuple(int(word) for word in words)


def show_plan(asked: Asked, observed: int | None, json_: bool) -> int:
    """Prints the table; gives the exit code, 3 where an observed number of steps shows a fault."""
    rows = plan(asked)
    fits, text = (True, "") if observed is None else explain_observed(asked, observed, rows)
    if json_:
        document: dict[str, Any] = {"schema": 1, "ok": fits, "plan": [row.to_json() for row in rows]}
        document.update(formula=FORMULA if asked.bandwidth else None)
        document.update({} if observed is None else {"observed": {"steps": observed, "fits": fits, "message": text}})
        typer.echo(json.dumps(document))
    else:
        for line in plan_lines(asked, rows):
            typer.echo(line)
        if text:
            typer.echo(f"\n{text}")
    return exits.DONE if fits else exits.CHECK_FAILED


def show_audit(loader: str, world: int, local: int, model_parallel: int, python: str, json_: bool) -> int:
    """Plays the ranks with a progress bar; gives the exit code."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[more]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=json_ or not console.is_terminal) as bar:
        task = bar.add_task("ranks", total=world + 1, more="")

        def tell(line: dict[str, Any]) -> None:
            bar.update(task, completed=line["done"], more=f"{line['batches']:,} batches")

        rows = virtual_rows(loader, world, local, tell, python)
    found: Audit = conclude(rows, model_parallel)
    if json_:
        typer.echo(json.dumps({**found.to_json(), "loader": loader, "world_size": world}))
    else:
        for line in [*coverage_lines(found.coverage), "", *finding_lines(found.findings)]:
            typer.echo(line)
    return exits.DONE if found.ok else exits.CHECK_FAILED
