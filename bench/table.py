"""Alternating runs, medians, tables, raw files."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.bed import BedError

import allranks
from bench.quiet import Others, wait_for_quiet

OUT = Path(__file__).parent / "out"
DISTURBED = 0.25  # cores: a sample in which others took more is taken again
TRIES = 3
PATIENCE = {True: 20.0, False: 2.0}  # seconds that a sample waits for quiet, `alone` or not
Sample = dict[str, Any]


@dataclass
class Row:
    """One line of a table: the samples of one figure, and the aim beside it (`met` None: no aim)."""

    label: str
    values: list[float]
    unit: str = "s"
    aim: str = ""
    met: bool | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values) if self.values else float("nan")


@dataclass
class Report:
    """One benchmark's outcome."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def add(
        self,
        label: str,
        values: list[float],
        unit: str = "s",
        aim: str = "",
        met: Callable[[float], bool] | None = None,
    ) -> Row:
        """A row; `met` judges the median. Without values an aim is not met."""
        row = Row(label, values, unit, aim)
        if met is not None:
            row.met = bool(values) and met(row.median)
        self.rows.append(row)
        return row

    def remark(self) -> None:
        """A sample with an error, or that was disturbed, is told; none is left out in silence."""
        for label, samples in self.samples.items():
            for sample in samples:
                if sample.get("error"):
                    self.notes.append(f"{label}: a run gave no figure: {sample['error']}")
        again = sum(len(s.get("disturbed", [])) for found in self.samples.values() for s in found)
        noisy = sum(
            "disturbed" in s and s["others_cores"] > DISTURBED for found in self.samples.values() for s in found
        )
        if again or noisy:
            self.notes.append(
                f"others used more than {DISTURBED:g} cores: {again} samples set aside and taken again, {noisy} kept"
            )


def alternate(cases: Mapping[str, Callable[[], Sample]], rounds: int, alone: bool = False) -> dict[str, list[Sample]]:
    """A B C A B C …: what else the machine does meets all cases alike.

    `alone`: a sample in which other processes took more than DISTURBED cores is set aside (it stays in the raw
    file, under `disturbed`) and taken again, at most TRIES times in all; the least disturbed counts.
    """
    samples: dict[str, list[Sample]] = {label: [] for label in cases}
    for turn in range(rounds):
        for label, case in cases.items():
            tries = [_take(f"{turn + 1}/{rounds} {label}", case, alone)]
            while alone and tries[-1]["others_cores"] > DISTURBED and len(tries) < TRIES:
                tries.append(_take(f"{turn + 1}/{rounds} {label}, again", case, alone))
            best = min(tries, key=lambda sample: float(sample["others_cores"]))
            rest = {"disturbed": [sample for sample in tries if sample is not best]} if alone else {}
            samples[label].append({**best, "round": turn, **rest})
    return samples


def _take(label: str, case: Callable[[], Sample], alone: bool) -> Sample:
    busy, begun = wait_for_quiet(PATIENCE[alone]), time.monotonic()
    others = Others()
    try:
        sample = case()
    except (AssertionError, OSError, RuntimeError, ValueError, BedError) as error:
        sample = {"error": f"{type(error).__name__}: {error}"}
    took, cores = time.monotonic() - begun, others.cores()
    sample.update({"busy_before": round(busy, 3), "others_cores": round(cores, 3), "took": round(took, 3)})
    shown = {k: v for k, v in sample.items() if isinstance(v, int | float)}
    text = sample.get("error") or " ".join(f"{k}={v:.4g}" for k, v in shown.items())
    print(f"  {label}: {text}", file=sys.stderr, flush=True)
    return sample


def column(samples: list[Sample], key: str) -> list[float]:
    """One figure of the samples that have it."""
    return [float(s[key]) for s in samples if s.get(key) is not None]


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    memory = Path("/proc/meminfo").read_text().split("\n", 1)[0].split()[1]
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
        "allranks": str(Path(allranks.__file__).parent),
    }


def text_of(report: Report) -> str:
    """The table as Markdown, which a terminal shows as well."""
    lines = [f"## {report.title}", "", "| | median | min–max | runs | aim | |", "|---|---:|---:|---:|---|---|"]
    for row in report.rows:
        verdict = "" if row.met is None else ("met" if row.met else "**not met**")
        spread = f"{_number(min(row.values))}–{_number(max(row.values))}" if row.values else "–"
        cells = [row.label, f"{_number(row.median)} {row.unit}", spread, str(len(row.values)), row.aim, verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in report.notes), ""])


def _number(value: float) -> str:
    if value != value:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def keep(report: Report, quick: bool) -> Path:
    """Writes table and samples to bench/out."""
    OUT.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(report.started))
    path = OUT / f"{report.name}-{stamp}{'-quick' if quick else ''}.json"
    document = {"schema": 1, "quick": quick, "machine": machine(), "ended": time.time(), **asdict(report)}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n")
    path.with_suffix(".md").write_text(text_of(report))
    return path
