"""ledger: seeded faults of known length, and what the ledger of time says of each, against the ranks' own logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.hosts.bed import Bed, missing
from tests.measured_time import PROGRAM, UNACCOUNTED, deviations, ledger_faults, read_moments, true_parts

from bench.launch import Ground, Launch, ground, hosts
from bench.table import Report, Sample, alternate, column

HOSTS = 3
QUICK_ROUNDS = 1
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """A fault, by the words of the program and of `allranks run`, and the part of the ledger that it makes."""

    name: str
    part: str
    words: Sequence[str]
    options: Mapping[str, str | int] = field(default_factory=dict)
    exit: int = 0


CASES = (
    Case("no fault", "useful", ["--steps", "120"]),
    Case("start slowed by 6 s", "start", ["--slow-start", "6"]),
    Case(
        "kill at step 70, saved at 40: 31 steps lost",
        "computed_twice",
        ["--steps", "120", "--save-every", "40", "--kill-at", "70"],
        {"retries": 1},
    ),
    Case(
        "kill at step 20, rank 0 lives on for 5 s",
        "teardown",
        ["--save-every", "10", "--kill-at", "20", "--slow-end", "5"],
        {"retries": 1, "grace": "20s"},
    ),
    Case(
        "hang at step 30, tried again",
        "hang",
        ["--save-every", "10", "--hang-at", "30", "--slow-end", "1"],
        {"retries": 1, "hang-timeout": "8s", "on-hang": "restart", "grace": "5s"},
    ),
    Case(
        "standstill of 20 s, reported",
        "hang",
        ["--sleep-at", "20", "--sleep", "20"],
        {"hang-timeout": "5s", "on-hang": "report"},
    ),
)


def measure(bed: Bed | None, space: Ground, case: Case) -> Sample:
    """One run: the part of the fault, by the ledger and by the ranks, and the part that is furthest off."""
    place = space.place()
    options: dict[str, str | int] = {"nproc": 1, "workdir": str(place / "work"), **case.options}
    if bed is None:
        options["local"] = HOSTS
    launch = Launch(place, bed).start([str(PROGRAM), str(place / "work"), "--torch", *case.words], options)
    code = launch.wait()
    if code != case.exit:
        raise RuntimeError(f"exit {code}: {launch.complaint}")
    faults = ledger_faults(launch.run_dir)
    if faults:
        raise RuntimeError("; ".join(faults))
    ledger = launch.result()["time_ledger"]
    over = (launch.run_dir / "result.json").stat().st_mtime
    true = true_parts(began(launch.run_dir), read_moments(launch.work), over)
    off = deviations(ledger, true)
    worst = max(off, key=lambda part: off[part])
    return {
        "ledger": ledger[case.part],
        "true": true[case.part],
        "off": off[worst],
        "worst": worst,
        "unaccounted": 100 * ledger["unaccounted"] / ledger["wall"],
        "parts": {part: {"ledger": ledger[part], "true": round(seconds, 3)} for part, seconds in true.items()},
        "wall": ledger["wall"],
    }


def began(run_dir: Path) -> float:
    """When a run's directory was there."""
    with (run_dir / "events.jsonl").open() as events:
        return float(json.loads(events.readline())["t"])


def _add(report: Report, where: str, samples: Mapping[str, list[Sample]]) -> None:
    for name, found in samples.items():
        case = next(case for case in CASES if case.name == name)
        label = f"{where}, {name}"
        report.samples[label] = found
        report.add(f"{label}: {case.part.replace('_', ' ')}", column(found, "ledger"))
        report.add("… by the ranks' own logs", column(found, "true"))
        row = report.add("… the part that is furthest off ÷ what it may be off", column(found, "off"), "", "≤ 1")
        row.met = len(row.values) == len(found) and max(row.values) <= 1
        report.add("… unaccounted", column(found, "unaccounted"), "%", "≤ 1 %", lambda v: v <= 100 * UNACCOUNTED)


def run(quick: bool) -> Report:
    """Every case on virtual nodes of this machine, and on hosts with ssh."""
    report = Report("ledger", f"ledger: parts of the time; {HOSTS} nodes; each may be off by max(0.5 s, 5 %)")
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with ground() as space:
        _add(report, "--local", alternate({case.name: partial(measure, None, space, case) for case in CASES}, rounds))
    if not missing():
        with hosts(HOSTS) as (bed, space):
            cases = {case.name: partial(measure, bed, space, case) for case in CASES}
            _add(report, "ssh", alternate(cases, rounds))
    report.remark()
    return report
