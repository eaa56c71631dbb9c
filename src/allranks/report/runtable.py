"""Runs in a table, a line each (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.runs.brief import RunBrief
from allranks.runs.documents import ORPHANED
from allranks.text import align_columns, cut, first_line, format_elapsed, format_percent

HEADINGS = ("NAME", "STATE", "NODES", "STEP", "RATE", "GOODPUT", "AGE", "VERDICT")
LEFT = (0, 1, 7)  # columns that begin at the left
NO_CONTROLLER = "its controller has ended. `allranks attach` takes it over, `allranks stop` ends it"
UNLIMITED = 4000  # characters of a verdict where no terminal is narrower


def brief_lines(runs: Sequence[RunBrief], now: float, width: int = 0) -> list[str]:
    """Write a table of runs with its headings, at most `width` columns wide (0: any). `now`: unix seconds."""
    rows = [HEADINGS, *(_cells(run, now) for run in runs)]
    return [cut(line, width) if width else line for line in align_columns(rows, LEFT)]


def _cells(run: RunBrief, now: float) -> tuple[str, ...]:
    step = "" if run.step is None else str(run.step)
    if step and run.total_steps:
        step += f"/{run.total_steps}"
    return (
        run.run,
        run.state,
        ", ".join(f"{role} {count}" for role, count in run.roles.items()) or str(run.nodes or ""),
        step,
        "" if run.rate is None else f"{run.rate:.2f}/s",
        "" if run.goodput is None else format_percent(run.goodput),
        format_elapsed(max(0.0, now - run.started)) if run.started else "",
        _verdict(run),
    )


def _verdict(run: RunBrief) -> str:
    if run.state == ORPHANED:
        return NO_CONTROLLER
    if run.verdict is None or not run.verdict.message:
        return ""
    message = first_line(run.verdict.message, UNLIMITED)
    return f"{run.verdict.cause}: {message}" if run.verdict.cause else message
