"""Plan, coverage and findings as text (no IO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allranks.findings import Finding

from .steps import FORMULA, Asked, Steps

MANY = 16  # ranks shown one by one


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns to the right, but for the last."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    last = len(head) - 1
    return [
        "  ".join(cell if at == last else f"{cell:>{widths[at]}}" for at, cell in enumerate(row)).rstrip()
        for row in [head, *rows]
    ]


def plan_lines(asked: Asked, rows: Sequence[Steps]) -> list[str]:
    """The table of `data plan`."""
    head = ["nodes", "ranks", "global batch", "exact", "down", "up", "steps", "updates"]
    timed, predicted = asked.step_time is not None, asked.bandwidth is not None
    head += ["epoch", f"{asked.epochs} epoch{'' if asked.epochs == 1 else 's'}"] if timed else []
    head += ["speed-up"] + (["exchange", "efficiency"] if predicted else []) + ["the rest"]
    lines = []
    for row in rows:
        cells = [str(row.nodes), str(row.ranks), f"{row.global_batch:,}", f"{row.exact:,.3f}", f"{row.down:,}",
                 f"{row.up:,}", f"{row.steps:,}", f"{row.updates:,}"]  # fmt: skip
        cells += [hours(row.epoch_s), hours(row.total_s)] if timed else []
        cells.append(f"{row.speedup:.2f}x")
        if predicted and row.efficiency:
            low, high = (f"{100 * one:.0f}" for one in row.efficiency)
            share = f"{low} %" if low == high else f"{low}–{high} %"
            cells += [f"{row.exchange_s:.3g} s", share]
        lines.append([*cells, row.rest])
    kind = "predicted without overlap" if predicted else "ideal: communication costs nothing"
    found = [f"{asked.samples:,} samples, batch {asked.batch} a rank, rounded {_rounding(asked)}; speed-up {kind}"]
    return [*found, "", *grid(head, lines), *(["", FORMULA] if predicted else [])]


def _rounding(asked: Asked) -> str:
    return "up (--pad)" if asked.rounding == "pad" else "down (--drop-last)"


def hours(seconds: float | None) -> str:
    """`11.2 h`, `12.4 min`, `8 s`."""
    if seconds is None:
        return "–"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.3g} s"


def coverage_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What each rank read; of many ranks the first and last, and the sum."""
    lines: list[str] = []
    for loader in dict.fromkeys(row["loader"] for row in rows):
        ranks = [row for row in rows if row["loader"] == loader and row["rank"] is not None]
        total = next(row for row in rows if row["loader"] == loader and row["rank"] is None)
        shown = ranks if len(ranks) <= MANY else [*ranks[: MANY // 2], *ranks[-MANY // 2 :]]
        cells = [_cells(row) for row in shown]
        if len(ranks) > MANY:
            cells.insert(MANY // 2, ["…"] * 6)
        cells.append(["all", "", f"{total['samples']:,}", f"{total['distinct']:,}", f"{total['shared']:,}", ""])
        lines += [*([""] if lines else []), loader]
        lines += grid(["rank", "batches", "samples", "distinct", "read by others too", "node"], cells)
        if total["data"] is not None:
            share = 100 * (total["data"] - total["missing"]) / (total["data"] or 1)
            repeats = f"{total['repeated']:,} reads are repeats"
            lines.append(f"{share:.4g} % of {total['data']:,} samples are read, {repeats}")
    return lines


def _cells(row: dict[str, Any]) -> list[str]:
    batches = "–" if row["batches"] is None else f"{row['batches']:,}"
    figures = [f"{row[name]:,}" for name in ("samples", "distinct", "shared")]
    return [str(row["rank"]), batches, *figures, str(row["node"])]


def finding_lines(found: Sequence[Finding]) -> list[str]:
    """A sentence each, and what to do."""
    lines = []
    for one in found:
        lines.append(f"{'FAIL' if one.status == 'fail' else one.status:<4} {one.message}  [{one.id}]")
        lines += [f"     -> {one.remedy}"] if one.remedy and one.status != "ok" else []
    return lines
