"""restart: from a killed rank to the first step of the next attempt, against a start of the same run."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

from tests.hosts.bed import Bed
from tests.hosts.waiting import wait_until

from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import Report, Sample, alternate, column

SCRIPT = PROGRAMS / "restart.py"
BOUND = 180.0
WITH, WITHOUT = "--preload retries", "--preload never"
RUNS_ON = 2.0  # seconds that ranks train before one is killed


def _steps(directory: Path, attempt: int) -> list[float]:
    """When each rank of an attempt had its first step."""
    return [float(path.read_text()) for path in directory.glob(f"stepped-{attempt}-?")]


def _events(launch: Launch, name: str) -> list[dict[str, str]]:
    lines = (launch.run_dir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def _run(bed: Bed, ground: Ground, nproc: int, preload: str) -> Sample:
    """Seconds of a start, and of a restart; what allranks says of the time between is in the raw file."""
    place = ground.place()
    number = len(bed.hosts) * nproc
    options: dict[str, str | int] = {"nproc": nproc, "workdir": str(place / "work"), "retries": 1, "preload": preload}
    launch = Launch(place, bed).start([str(SCRIPT), str(place / "work")], options)
    wait_until(lambda: len(_steps(launch.work, 0)) == number, BOUND, "all ranks train")
    if preload != "never":
        wait_until(lambda: len(_events(launch, "template")) == len(bed.hosts), BOUND, "the templates are ready")
    time.sleep(RUNS_ON)
    first = max(_steps(launch.work, 0))
    (launch.work / "kill").touch()
    wait_until(lambda: len(_steps(launch.work, 1)) == number, BOUND, "all ranks train again")
    second = max(_steps(launch.work, 1))
    killed = float((launch.work / "killed").read_text())
    code = launch.wait()
    if code != 0:
        raise RuntimeError(f"exit {code}: {launch.complaint}")
    forked = [event for event in _events(launch, "template") if event["state"] == "used"]
    if preload != "never" and len(forked) != len(bed.hosts):
        raise RuntimeError(f"not all ranks were forked: {_events(launch, 'template')}")
    start = first - launch.began
    restart = second - killed
    names = ("ending", "attempt-end", "gate-proved", "rank-started", "all-initialised")
    lines = (launch.run_dir / "events.jsonl").read_text().splitlines()
    later = {e["event"]: round(e["t"] - killed, 3) for e in map(json.loads, lines) if e["t"] > killed}
    phases = {name: later[name] for name in names if name in later}
    return {"start": start, "restart": restart, "share": restart / start, "phases": phases}


def run(quick: bool) -> Report:
    """One host with four ranks, and four hosts with two."""
    report = Report("restart", "restart: from a killed rank to the first step of the next attempt")
    for n, nproc in ((1, 4), (4, 2)):
        with hosts(n) as (bed, ground):
            cases = {
                WITHOUT: partial(_run, bed, ground, nproc, "never"),
                WITH: partial(_run, bed, ground, nproc, "retries"),
            }
            samples = alternate(cases, 1 if quick else 3)
        for label, found in samples.items():
            where = f"{n} host{'s' if n > 1 else ''} × {nproc} ranks, {label}"
            report.samples[where] = found
            report.add(f"{where}: start", column(found, "start"))
            report.add(f"{where}: restart", column(found, "restart"))
        without = report.rows[-3].median
        shares = [value / without for value in column(samples[WITH], "restart")]
        if n == 1:
            shares = column(samples[WITH], "share")
            report.add("restart ÷ start of the same run", shares, "", "≤ 0.15", lambda value: value <= 0.15)
        else:
            report.add("restart ÷ restart without", shares, "", "≤ 0.25", lambda value: value <= 0.25)
    report.remark()
    return report
