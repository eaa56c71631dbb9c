"""allranks data: how many steps an epoch has (plan), and whether the data is really split (audit)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from allranks import exitcodes
from allranks.data.auditing import conclude, virtual_layout, virtual_rows
from allranks.data.case import Coverage
from allranks.data.step_plan import (
    FORMULA,
    Steps,
    Training,
    coverage_lines,
    explain_observed,
    finding_lines,
    plan,
    plan_lines,
)
from allranks.data.virtual import ReadingProgress
from allranks.errors import UsageError
from allranks.fabric.metric_rows import BandwidthRow
from allranks.findings import Finding
from allranks.protocol.codec import decode_each, document_line, omit_empty
from allranks.runs.tests import read_rows
from allranks.text import parse_size

from .chosen_run import find_run
from .streams import ProgressLine


def plan_command(
    samples: int | None,
    batch: int,
    gpus_per_node: int,
    nodes: str,
    epochs: int,
    step_time: float | None,
    grad_accum: int,
    drop_last: bool,
    pad: bool,
    model_bytes: int | None,
    bandwidth: str | None,
    observed_steps: int | None,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Count steps and times. Return 3 where an observed number of steps shows a fault."""
    if samples is None:
        raise UsageError("data plan: set --samples")
    if drop_last and pad:
        raise UsageError("--drop-last and --pad: set one of them")
    words = [word.strip() for word in nodes.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() for word in words):
        raise UsageError(f"--nodes {nodes!r}: set numbers such as 1,2,8")
    training = Training(
        samples,
        batch,
        gpus_per_node=gpus_per_node,
        nodes=tuple(map(int, words)),
        epochs=epochs,
        step_time=step_time,
        grad_accum=grad_accum,
        rounding="drop" if drop_last else "pad",
        model_bytes=model_bytes,
        bandwidth=None if bandwidth is None else measured_bandwidth(bandwidth, runs_dir),
    )
    rows = plan(training)
    observed = None
    if observed_steps is not None:
        observed = ObservedSteps(observed_steps, *explain_observed(training, observed_steps, rows))
    ok = observed is None or observed.fits
    if json_:
        formula = FORMULA if training.bandwidth else None
        click.echo(document_line(PlanDocument(ok, rows, formula, observed)))
    else:
        lines = plan_lines(training, rows)
        click.echo("\n".join([*lines, "", observed.message] if observed else lines))
    return exitcodes.code_if(not ok, exitcodes.CHECK_FAILED)


def audit_command(loader: str | None, world_size: int, gpus_per_node: int, python: str | None, json_: bool) -> int:
    """Look at every sample that virtual ranks read."""
    if not loader:
        raise UsageError("data audit: set --loader module:function. The function gives a torch DataLoader")
    progress = ProgressLine(silent=json_ or not sys.stderr.isatty())

    def show(state: ReadingProgress) -> None:
        progress.show("ranks", state.done, state.of)

    try:
        rows = virtual_rows(loader, world_size, gpus_per_node, show, python or "")
    finally:
        progress.end()
    answer = conclude(rows, virtual_layout(world_size, gpus_per_node))
    if json_:
        click.echo(document_line(AuditDocument(answer.ok, answer.findings, answer.coverage, loader, world_size)))
    else:
        click.echo("\n".join([*coverage_lines(answer.coverage), "", *finding_lines(answer.findings)]))
    return exitcodes.code_if(not answer.ok, exitcodes.CHECK_FAILED)


def measured_bandwidth(text: str, runs_dir: str | None) -> float:
    """Read bytes a second: `10GB`, or the best all_reduce bus bandwidth of a run, by its directory or name."""
    try:
        return float(parse_size(text))
    except ValueError:
        pass
    run = find_run(text, runs_dir)
    rows = decode_each(BandwidthRow, read_rows(run).get("bandwidth"))
    rates = [row.busbw for row in rows if row.collective == "all_reduce" and row.busbw > 0]
    if not rates:
        raise UsageError(f"--bandwidth {text}: no all_reduce was measured there. Run allranks test --suite bandwidth")
    return max(rates)


@dataclass(frozen=True)
class ObservedSteps:
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
    observed: ObservedSteps | None


class AuditDocument(NamedTuple):
    """What `data audit --json` prints: what is wrong, and what each rank read of each loader."""

    ok: bool
    findings: Sequence[Finding]
    coverage: Sequence[Coverage]
    loader: str
    world_size: int
