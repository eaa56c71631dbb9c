"""Steps an epoch, times and speed-up for numbers of nodes, before anything runs (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from allranks.errors import UsageError
from allranks.text import plural

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
    rows: list[Steps] = []
    for nodes in training.nodes:
        rows.append(_row(training, nodes, next(iter(rows), None)))
    return rows


def _row(training: Training, nodes: int, first: Steps | None) -> Steps:
    ranks = nodes * training.gpus_per_node
    up = _rounded_up(_rounded_up(training.samples, ranks), training.batch)
    down = training.samples // ranks // training.batch
    steps = {"pad": up, "drop": down}[training.rounding]
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
