"""allranks data: how many steps an epoch has (plan), and whether the data is really split (audit)."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from allranks.data.auditing import conclude, virtual_rows
from allranks.data.steps import FORMULA, Steps, Training, explain_observed, plan
from allranks.data.tables import coverage_lines, finding_lines, plan_lines
from allranks.data.virtual import Progress
from allranks.errors import UsageError
from allranks.protocol.codec import encode, omit_empty
from allranks.runs.directory import RunDirectory
from allranks.runs.tests import read_rows
from allranks.settings.units import parse_duration, parse_size, size_of

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
        places = runs_dir or os.environ.get("ALLRANKS_RUNS_DIR", "runs")
        training = Training(
            samples,
            batch,
            gpus_per_node,
            _numbers(nodes),
            epochs,
            None if step_time is None else parse_duration(step_time, "--step-time"),
            grad_accum,
            "drop" if drop_last else "pad",
            None if model_bytes is None else parse_size(model_bytes, "--model-bytes"),
            None if bandwidth is None else measured_bandwidth(bandwidth, places),
        )
        raise typer.Exit(show_plan(training, observed_steps, json_))
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


def measured_bandwidth(text: str, runs_dir: str) -> float:
    """Read bytes a second: `10GB`, or the best all_reduce bus bandwidth of a run, by its directory or name."""
    try:
        return float(size_of(text))
    except ValueError:
        pass
    run = RunDirectory.find(Path(runs_dir), text)
    rows = [row for row in read_rows(run).get("bandwidth", []) if row.get("collective") == "all_reduce"]
    rates = [float(row["busbw"]) for row in rows if isinstance(row.get("busbw"), (int, float)) and row["busbw"] > 0]
    if not rates:
        raise UsageError(f"--bandwidth {text}: no all_reduce was measured there; run allranks test --suite bandwidth")
    return max(rates)


@dataclass(frozen=True)
class Observed:
    """What a run's number of steps says of the split."""

    steps: int
    fits: bool
    message: str


@omit_empty("observed")
@dataclass(frozen=True)
class PlanDocument:
    """What `data plan --json` prints."""

    ok: bool
    plan: list[Steps]
    formula: str | None
    observed: Observed | None
    schema: int = 1


def show_plan(training: Training, observed_steps: int | None, json_: bool) -> int:
    """Print the table; give the exit code, 3 where an observed number of steps shows a fault."""
    rows = plan(training)
    observed = None
    if observed_steps is not None:
        observed = Observed(observed_steps, *explain_observed(training, observed_steps, rows))
    ok = observed is None or observed.fits
    if json_:
        formula = FORMULA if training.bandwidth else None
        typer.echo(json.dumps(encode(PlanDocument(ok, rows, formula, observed))))
    else:
        lines = plan_lines(training, rows)
        typer.echo("\n".join([*lines, "", observed.message] if observed else lines))
    return exits.DONE if ok else exits.CHECK_FAILED


def show_audit(loader: str, world: int, local: int, model_parallel: int, python: str, json_: bool) -> int:
    """Play the ranks with a progress bar; give the exit code."""
    # Late: Rich takes 60 ms, and `data plan` does without.
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[more]}"),
    )
    console = Console(stderr=True)
    disable = json_ or not console.is_terminal
    with progress.Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task("ranks", total=world + 1, more="")

        def tell(state: Progress) -> None:
            bar.update(task, completed=state.done, more=f"{state.batches:,} batches")

        rows = virtual_rows(loader, world, local, tell, python)
    answer = conclude(rows, model_parallel)
    if json_:
        typer.echo(json.dumps({**answer.to_json(), "loader": loader, "world_size": world}))
    else:
        typer.echo("\n".join([*coverage_lines(answer.coverage), "", *finding_lines(answer.findings)]))
    return exits.DONE if answer.ok else exits.CHECK_FAILED
