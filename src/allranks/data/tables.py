"""Plan, coverage and findings as text (no IO)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allranks.findings import Finding
from allranks.text import align_columns, count_of

from .case import Coverage, LoaderCoverage, RankCoverage
from .step_plan import FORMULA, Steps, Training

MANY = 16  # ranks shown one by one
UNKNOWN = "–"
ROUNDED = {"pad": "up (--pad)", "drop": "down (--drop-last)"}
COVERAGE_COLUMNS = ("rank", "batches", "samples", "distinct", "read by others too", "node")


def plan_lines(training: Training, rows: Sequence[Steps]) -> list[str]:
    """Write the table of `data plan`."""
    head = ["nodes", "ranks", "global batch", "exact", "down", "up", "steps", "updates"]
    if training.step_time is not None:
        head += ["epoch", count_of(training.epochs, "epoch")]
    head.append("speed-up")
    kind = "ideal: communication costs nothing"
    explanation = []
    if training.bandwidth is not None:
        head += ["exchange", "efficiency"]
        kind = "predicted without overlap"
        explanation = ["", FORMULA]
    head.append("the rest")
    lines = align_columns([head, *(_plan_cells(row) for row in rows)], left=[len(head) - 1])
    rounded = ROUNDED[training.rounding]
    title = f"{training.samples:,} samples, batch {training.batch} a rank, rounded {rounded}, speed-up {kind}"
    return [title, "", *lines, *explanation]


def _plan_cells(row: Steps) -> list[str]:
    counts = (row.down, row.up, row.steps, row.updates)
    cells = [str(row.nodes), str(row.ranks), f"{row.global_batch:,}", f"{row.exact:,.3f}"]
    cells += [f"{count:,}" for count in counts]
    if row.epoch_s is not None and row.total_s is not None:
        cells += [hours(row.epoch_s), hours(row.total_s)]
    cells.append(f"{row.speedup:.2f}x")
    if row.efficiency is not None:
        shares = dict.fromkeys(f"{100 * share:.0f}" for share in row.efficiency)
        cells += [f"{row.exchange_s:.3g} s", f"{'–'.join(shares)} %"]
    return [*cells, row.rest]


def hours(seconds: float) -> str:
    """Write `11.2 h`, `12.4 min`, `8 s`."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.3g} s"


def coverage_lines(rows: Iterable[Coverage]) -> list[str]:
    """Write what each rank read; of many ranks the first and last, and the sum."""
    lines: list[str] = []
    cells: list[Sequence[str]] = []
    for row in rows:
        if isinstance(row, RankCoverage):
            batches = UNKNOWN
            if row.batches is not None:
                batches = f"{row.batches:,}"
            cells.append([str(row.rank), batches, *_counts(row), row.node])
            continue
        if len(cells) > MANY:
            cells[MANY // 2 : -MANY // 2] = [["…"] * len(COVERAGE_COLUMNS)]
        cells.append(["all", "", *_counts(row), ""])
        if lines:
            lines.append("")
        lines.append(row.loader)
        lines += align_columns([COVERAGE_COLUMNS, *cells], left=[len(COVERAGE_COLUMNS) - 1])
        lines += _share_lines(row)
        cells = []
    return lines


def _counts(row: Coverage) -> list[str]:
    return [f"{count:,}" for count in (row.samples, row.distinct, row.shared)]


def _share_lines(row: LoaderCoverage) -> list[str]:
    if row.data is None or row.missing is None:
        return []
    share = 100 * (row.data - row.missing) / (row.data or 1)
    return [f"{share:.4g} % of {row.data:,} samples are read, {row.repeated:,} reads are repeats"]


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Write a sentence each, and what to do."""
    lines = []
    for finding in findings:
        status = finding.status.replace("fail", "FAIL")
        lines.append(f"{status:<4} {finding.message}  [{finding.id}]")
        if finding.remedy and finding.status != "ok":
            lines.append(f"     -> {finding.remedy}")
    return lines
