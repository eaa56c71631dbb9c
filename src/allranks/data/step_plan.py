"""Steps an epoch, times and speed-up for numbers of nodes, before anything runs (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.text import align_columns, count_of, plural

from .case import Coverage

FORMULA = (
    "t = 2 (R-1)/R x model bytes / bus bandwidth of all_reduce, for R ranks on several nodes (0 within one).\n"
    "T = step time x accumulation. Efficiency = T/(T+t) where nothing overlaps, T/max(T,t) where all does."
)


@dataclass(frozen=True)
class Training:
    """What `data plan` is asked for; times in seconds, bandwidth in bytes a second (bus bandwidth)."""

    samples: int
    batch: int = 1
    gpus_per_node: int = 8
    nodes: tuple[int, ...] = (1,)
    epochs: int = 1
    step_time: float | None = None
    grad_accum: int = 1
    rounding: Literal["pad", "drop"] = "pad"
    model_bytes: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class Steps:
    """One number of nodes.

    `exact` is samples / (ranks x batch); `down` and `up` are full batches a rank; `steps` is the one that counts,
    `updates` the optimizer's. Seconds are None without a step time; `exchange_s` and `efficiency` (without and with
    overlap) without bytes and bandwidth."""

    nodes: int
    ranks: int
    global_batch: int
    exact: float
    down: int
    up: int
    steps: int
    updates: int
    rest: str
    epoch_s: float | None
    total_s: float | None
    speedup: float
    exchange_s: float | None
    efficiency: tuple[float, float] | None


def plan(training: Training) -> list[Steps]:
    """Make a row for each number of nodes; speed-up is against the first. UsageError for figures that cannot be."""
    for name in ("samples", "batch", "gpus_per_node", "epochs", "grad_accum"):
        if getattr(training, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(training, name)}: set 1 or more")
    if not training.nodes or min(training.nodes) < 1:
        raise UsageError("--nodes: set numbers from 1 on, such as 1,2,8")
    if (training.model_bytes is None) != (training.bandwidth is None):
        raise UsageError("a prediction needs both: set --model-bytes and --bandwidth")
    if training.bandwidth is not None and (training.bandwidth <= 0 or training.step_time is None):
        raise UsageError("a prediction needs --step-time, and a --bandwidth above 0")
    first = _row(training, training.nodes[0], None)
    return [first, *(_row(training, nodes, first) for nodes in training.nodes[1:])]


def _row(training: Training, nodes: int, first: Steps | None) -> Steps:
    ranks = nodes * training.gpus_per_node
    up = _rounded_up(_rounded_up(training.samples, ranks), training.batch)
    down = training.samples // ranks // training.batch
    steps = up if training.rounding == "pad" else down
    updates = _rounded_up(steps, training.grad_accum)
    exchange = None
    efficiency = None
    epoch = None
    total = None
    if training.step_time is not None:
        epoch = steps * training.step_time
        if training.model_bytes is not None and training.bandwidth:
            exchange = 0.0  # see FORMULA
            if nodes > 1:
                exchange = 2 * (ranks - 1) / ranks * training.model_bytes / training.bandwidth
            compute = training.step_time * training.grad_accum
            efficiency = (compute / (compute + exchange), compute / max(compute, exchange))
            epoch += updates * exchange
        total = epoch * training.epochs
    speedup = 1.0
    if first is not None and epoch and first.epoch_s:
        speedup = first.epoch_s / epoch
    elif first is not None and steps:
        speedup = first.steps / steps
    return Steps(
        nodes=nodes,
        ranks=ranks,
        global_batch=training.batch * ranks * training.grad_accum,
        exact=training.samples / (ranks * training.batch),
        down=down,
        up=up,
        steps=steps,
        updates=updates,
        rest=_rest(training, ranks),
        epoch_s=epoch,
        total_s=total,
        speedup=speedup,
        exchange_s=exchange,
        efficiency=efficiency,
    )


def _rounded_up(count: int, parts: int) -> int:
    return -(-count // parts)


def _rest(training: Training, ranks: int) -> str:
    """Say who gets what does not divide, as DistributedSampler and DataLoader do it."""
    if training.rounding == "drop":
        left = training.samples - training.samples // ranks // training.batch * training.batch * ranks
        if not left:
            return "none"
        return f"{left:,} left out"
    parts = []
    first = training.samples % ranks
    if first:
        again = ranks - first
        who = f"ranks {first}-{ranks - 1}" if again > 1 else f"rank {first}"
        parts.append(f"{who} {plural(again, 'reads', 'read')} one sample again ({again:,} padded)")
    short = _rounded_up(training.samples, ranks) % training.batch
    if short:
        parts.append(f"last batch of {short:,}")
    return "; ".join(parts) or "none"


def explain_observed(training: Training, observed: int, rows: Sequence[Steps]) -> tuple[bool, str]:
    """Give (whether that is right, what a run's observed number of steps an epoch says)."""
    accumulated = training.grad_accum
    for row in rows:
        for steps, how in ((row.down, "rounded down"), (row.up, "rounded up")):
            where = f"fit {row.nodes} nodes with {row.ranks} ranks, {how}"
            if observed == steps:
                return True, f"{observed:,} steps an epoch {where}"
            if accumulated > 1 and observed in (steps // accumulated, _rounded_up(steps, accumulated)):
                return True, f"{observed:,} optimizer steps {where}"
    if _fits(training, observed, 1):
        return False, (
            f"not sharded: every rank reads everything ({observed:,} steps of {training.batch} are all samples)"
        )
    if _fits(training, observed, training.gpus_per_node):
        return False, f"sharded within a node only: every node reads everything in {observed:,} steps"
    for row in rows:
        if _fits(training, observed, row.nodes):
            return False, f"split by node only: the ranks of a node read the same, in {observed:,} steps"
        twice = training.samples // (row.ranks**2 * training.batch)
        if row.ranks > 1 and twice <= observed <= twice + 1:
            return False, f"sharded twice: {observed:,} steps are one in {row.ranks} of a rank's share"
    due = ", ".join(f"{row.steps:,} on {row.nodes}" for row in rows)
    return False, f"{observed:,} steps an epoch fit none of these numbers of nodes: due are {due}"


def _fits(training: Training, observed: int, parts: int) -> bool:
    """Tell whether these are the steps for one of so many parts of the data, rounded down or up."""
    size = parts * training.batch
    return observed in (training.samples // size, _rounded_up(training.samples, size))


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
        if row.rank is not None:
            batches = UNKNOWN if row.batches is None else f"{row.batches:,}"
            cells.append([str(row.rank), batches, *_counts(row), row.node or ""])
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


def _share_lines(row: Coverage) -> list[str]:
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
