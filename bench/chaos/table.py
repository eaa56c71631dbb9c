"""Rounds as lines of JSON, and the table of them by fault. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from bench.chaos.faults import BY_NAME, FAULTS, Fault


class Line(NamedTuple):
    """A round that was played, as its line has it. `error`: it could not be played, and counts as none."""

    seed: int
    number: int
    fault: str
    moment: str
    hosts: int
    world_size: int
    commit: str
    t: float  # unix seconds
    code: int | None = None
    seconds: float = 0.0
    load: float = 0.0
    is_hit: bool = True
    attempts: int = 0
    causes: tuple[str, ...] = ()
    unknown: bool = False
    lines: int = 0
    unreached_lines: int = 0
    dropped_lines: int = 0
    breaches: tuple[str, ...] = ()
    error: str = ""


def last_lines(lines: Sequence[Line]) -> list[Line]:
    """The last line of each round, in the order of the rounds."""
    newest = {(line.seed, line.number): line for line in sorted(lines, key=lambda line: line.t)}
    return [newest[key] for key in sorted(newest)]


def summary(lines: Sequence[Line]) -> str:
    """The rounds by fault, as Markdown."""
    played = [line for line in lines if not line.error]
    rows = [
        "| fault | bound | rounds | as they must | unknown | breaches | median, max |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows += [_row(fault.what, f"{fault.bound:.0f} s", _of(played, fault)) for fault in FAULTS if _of(played, fault)]
    rows.append(_row("all", "", played))
    unknown = sum(line.unknown for line in played)
    printed = sum(line.lines for line in played)
    unfetched = sum(line.unreached_lines for line in played)
    dropped = sum(line.dropped_lines for line in played)
    without_cause = sum("unknown" in line.causes and not line.unknown for line in played)
    rows += [
        "",
        f"- {len(played)} rounds, {unknown} unknown ({unknown / max(1, len(played)):.1%}), "
        f"{sum(not line.is_hit for line in played)} faults struck after the end",
        f"- {printed:,} lines printed. The run says of {unfetched:,} that it could not fetch them, and of {dropped:,} "
        "that a disk had no room for them",
        f"- {without_cause} rounds have a verdict with the cause `unknown` that names the node which was struck",
    ]
    slow = sum(line.seconds > BY_NAME[line.fault].bound for line in played)
    rows.append(f"- {slow} rounds took longer than their bound on a quiet machine")
    if played:
        loads = [line.load for line in played]
        rows.append(f"- load {min(loads):.0f} to {max(loads):.0f}, median {statistics.median(loads):.0f}")
    for commit in dict.fromkeys(line.commit for line in played):
        numbers = [line.number for line in played if line.commit == commit]
        rows.append(f"- commit {commit}: {len(numbers)} rounds, {min(numbers)} to {max(numbers)}")
    return "\n".join(rows) + "\n"


def _of(lines: Sequence[Line], fault: Fault) -> list[Line]:
    return [line for line in lines if line.fault == fault.name]


def _row(what: str, bound: str, lines: Sequence[Line]) -> str:
    right = sum(not line.breaches and not line.unknown for line in lines)
    unknown = sum(line.unknown for line in lines)
    broken = sum(bool(line.breaches) for line in lines)
    seconds = [line.seconds for line in lines]
    times = f"{statistics.median(seconds):.0f} s, {max(seconds):.0f} s" if seconds else "–"
    return f"| {what} | {bound} | {len(lines)} | {right} | {unknown} | {broken} | {times} |"
