"""Steps an epoch, times and speed-up for numbers of nodes, before anything runs (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from allranks.errors import UsageError

Rounding = Literal["pad", "drop"]
FORMULA = (
    "t = 2 (R-1)/R x model bytes / bandwidth, for R ranks on more than one node (bandwidth: bus bandwidth of "
    "all_reduce), 0 within one node; T = step time x accumulation; efficiency = T/(T+t) where nothing overlaps, "
    "T/max(T,t) where all does"
)


@dataclass(frozen=True)
class Asked:
    """What `data plan` is given; times in seconds, bandwidth in bytes a second (bus bandwidth)."""

    samples: int
    batch: int = 1
    gpus_per_node: int = 8
    nodes: tuple[int, ...] = (1,)
    epochs: int = 1
    step_time: float | None = None
    grad_accum: int = 1
    rounding: Rounding = "pad"
    model_bytes: int | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class Steps:
    """One number of nodes.

    `exact` is samples / (ranks x batch); `down` and `up` are whole batches a rank; `steps` is the one that counts,
    `updates` the optimizer's. Hours are None without a step time; efficiencies without bytes and bandwidth."""

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

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "efficiency": list(self.efficiency) if self.efficiency else None}


def plan(asked: Asked) -> list[Steps]:
    """A row for each number of nodes; speed-up is against the first. UsageError for figures that cannot be."""
    for name in ("samples", "batch", "gpus_per_node", "epochs", "grad_accum"):
        if getattr(asked, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(asked, name)}: set 1 or more")
    if not asked.nodes or min(asked.nodes) < 1:
        raise UsageError("--nodes: set numbers from 1 on, such as 1,2,8")
    if (asked.model_bytes is None) != (asked.bandwidth is None):
        raise UsageError("a prediction needs both: set --model-bytes and --bandwidth")
    if asked.bandwidth is not None and (asked.bandwidth <= 0 or asked.step_time is None):
        raise UsageError("a prediction needs --step-time, and a --bandwidth above 0")
    first = _row(asked, asked.nodes[0], None)
    return [_row(asked, nodes, first) for nodes in asked.nodes]


def _row(asked: Asked, nodes: int, first: Steps | None) -> Steps:
    ranks = nodes * asked.gpus_per_node
    each_up, each_down = -(-asked.samples // ranks), asked.samples // ranks
    up, down = -(-each_up // asked.batch), each_down // asked.batch
    steps = up if asked.rounding == "pad" else down
    updates = -(-steps // asked.grad_accum)
    exchange, efficiency = _predicted(asked, nodes, ranks)
    epoch = None if asked.step_time is None else steps * asked.step_time + updates * (exchange or 0.0)
    speedup = 1.0
    if first is not None and steps:
        speedup = first.steps / steps
        if epoch and first.epoch_s:
            speedup = first.epoch_s / epoch
    return Steps(
        nodes, ranks, asked.batch * ranks * asked.grad_accum, asked.samples / (ranks * asked.batch), down, up, steps,
        updates, _rest(asked, ranks), epoch, None if epoch is None else epoch * asked.epochs, speedup, exchange,
        efficiency,
    )  # fmt: skip


def _predicted(asked: Asked, nodes: int, ranks: int) -> tuple[float | None, tuple[float, float] | None]:
    """(seconds of one exchange of gradients, efficiencies without and with overlap); see FORMULA."""
    if asked.model_bytes is None or not asked.bandwidth or not asked.step_time:
        return None, None
    exchange = 2 * (ranks - 1) / ranks * asked.model_bytes / asked.bandwidth if nodes > 1 else 0.0
    compute = asked.step_time * asked.grad_accum
    return exchange, (compute / (compute + exchange), compute / max(compute, exchange))


def _rest(asked: Asked, ranks: int) -> str:
    """Who gets what does not divide, as DistributedSampler and DataLoader do it."""
    over = asked.samples % ranks
    if asked.rounding == "drop":
        left = asked.samples - asked.samples // ranks // asked.batch * asked.batch * ranks
        return f"{left:,} left out" if left else "none"
    each = -(-asked.samples // ranks)
    short = each % asked.batch
    parts = []
    if over:
        again = f"rank {ranks - 1} reads" if ranks - over == 1 else f"ranks {over}–{ranks - 1} read"
        parts.append(f"{again} one sample again ({ranks - over:,} padded)")
    if short:
        parts.append(f"last batch of {short:,}")
    return "; ".join(parts) or "none"


def explain_observed(asked: Asked, observed: int, rows: Sequence[Steps]) -> tuple[bool, str]:
    """(is that right, what a run's observed number of steps an epoch says)."""
    for row in rows:
        for number, how in ((row.down, "rounded down"), (row.up, "rounded up")):
            if observed == number:
                return True, f"{observed:,} steps an epoch fit {row.nodes} nodes with {row.ranks} ranks, {how}"
            if asked.grad_accum > 1 and observed in (number // asked.grad_accum, -(-number // asked.grad_accum)):
                return True, f"{observed:,} optimizer steps fit {row.nodes} nodes with {row.ranks} ranks, {how}"
    if observed in _either(asked, 1):
        return False, f"not sharded: every rank reads everything ({observed:,} steps of {asked.batch} are all samples)"
    if observed in _either(asked, asked.gpus_per_node):
        return False, f"sharded within a node only: every node reads everything in {observed:,} steps"
    for row in rows:
        if observed in _either(asked, row.nodes):
            return False, f"split by node only: the ranks of a node read the same, in {observed:,} steps"
        twice = asked.samples / (row.ranks**2 * asked.batch)
        if row.ranks > 1 and int(twice) <= observed <= int(twice) + 1:
            return False, f"sharded twice: {observed:,} steps are one in {row.ranks} of a rank's share"
    due = ", ".join(f"{row.steps:,} on {row.nodes}" for row in rows)
    return False, f"{observed:,} steps an epoch fit none of these numbers of nodes: due are {due}"


def _either(asked: Asked, parts: int) -> tuple[int, int]:
    """Steps for one of so many parts of the data, rounded down and up."""
    size = parts * asked.batch
    return asked.samples // size, (asked.samples + size - 1) // size
