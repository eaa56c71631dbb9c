"""restart: from a killed rank or a lost node to the first step of the next attempt; a second start; memory."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.hosts.bed import Bed
from tests.hosts.waiting import wait_until

from bench.launch import PROGRAMS, Ground, Launch, ended, free_port, hosts
from bench.table import Report, Sample, alternate, column

SCRIPT = PROGRAMS / "restart.py"
BOUND = 180.0
WITH, WITHOUT, TORCHRUN = "allranks", "--no-preload", "torchrun --max-restarts"
FIRST, SECOND, BARE = "first run", "second run", "bare ranks"
DEAD, CUT_OFF = "agent killed", "link down"
RUNS_ON = 2.0  # seconds that ranks train before one is killed
HANGS = 60.0  # seconds after which a restart by torchrun is given up
LEASE, GRACE, FENCE = 5.0, 1.0, 2.0  # gang/ending.py has the fence


def _steps(directory: Path, attempt: int) -> list[float]:
    """When each rank of an attempt had its first step."""
    return [float(path.read_text()) for path in directory.glob(f"stepped-{attempt}-*") if path.suffix != ".new"]


def _trains(directory: Path, attempt: int, number: int, bound: float = BOUND) -> float:
    """Wait until all ranks of an attempt train; when the last of them began to."""
    wait_until(lambda: len(_steps(directory, attempt)) == number, bound, f"all ranks of attempt {attempt} train")
    return max(_steps(directory, attempt))


def _events(launch: Launch, name: str = "") -> list[dict[str, Any]]:
    lines = (launch.run_dir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if not name or event["event"] == name]


def _templates(launch: Launch, state: str) -> set[str]:
    """Nodes that have said so of their templates."""
    return {event["node"] for event in _events(launch, "template") if event["state"] == state}


def _options(place: Path, nproc: int, preload: str, **more: str | int) -> dict[str, str | int]:
    """Options of a run; its records of imports stay in the ground."""
    cache = f"XDG_CACHE_HOME={place / 'cache'}"
    return {"nproc": nproc, "workdir": str(place / "work"), "preload": preload, "env": cache, **more}


def _phases(launch: Launch, since: float) -> dict[str, float]:
    """Seconds since then at which allranks says that each part was done, for the raw file."""
    names = ("node-lost", "ending", "attempt-end", "gate-proved", "rank-started", "all-initialised")
    first: dict[str, float] = {}
    for event in _events(launch):
        if event["t"] > since:
            first.setdefault(event["event"], round(event["t"] - since, 3))
    return {name: first[name] for name in names if name in first}


# -- a killed rank -----------------------------------------------------------------------------------------


def _killed(bed: Bed, ground: Ground, nproc: int, preload: str) -> Sample:
    """Seconds of a start, and of a restart."""
    place = ground.place()
    number = len(bed.hosts) * nproc
    launch = Launch(place, bed).start([str(SCRIPT), str(place / "work")], _options(place, nproc, preload, retries=1))
    first = _trains(launch.work, 0, number)
    names = {host.name for host in bed.hosts}
    if preload != "never":
        wait_until(lambda: _templates(launch, "ready") == names, BOUND, "the templates are ready")
    time.sleep(RUNS_ON)
    (launch.work / "kill").touch()
    second = _trains(launch.work, 1, number)
    killed = float((launch.work / "killed").read_text())
    code = launch.wait()
    if code != 0:
        raise RuntimeError(f"exit {code}: {launch.complaint}")
    if preload != "never" and _templates(launch, "used") != names:
        raise RuntimeError(f"not all ranks were forked: {_events(launch, 'template')}")
    start = first - launch.began
    restart = second - killed
    return {"start": start, "restart": restart, "share": restart / start, "phases": _phases(launch, killed)}


def _torchrun(bed: Bed, ground: Ground, nproc: int) -> Sample:
    """The same by torchrun on each host, with its elastic rendezvous on the first."""
    place = ground.place()
    work = place / "work"
    number = len(bed.hosts) * nproc
    options = ["--nnodes", len(bed.hosts), "--nproc-per-node", nproc, "--max-restarts", 1, "--rdzv-backend", "c10d"]
    where = ["--rdzv-endpoint", f"{bed.hosts[0].name}:{free_port()}", "--rdzv-id", place.name]
    words = [sys.executable, "-m", "torch.distributed.run", *map(str, [*options, *where]), str(SCRIPT), str(work)]
    began = time.time()
    clients = _over_ssh(bed, place, [words] * len(bed.hosts))
    try:
        first = _trains(work, 0, number)
        time.sleep(RUNS_ON)
        (work / "kill").touch()
        wait_until(lambda: (work / "killed").exists(), BOUND, "a rank is killed")
        try:
            second = _trains(work, 1, number, HANGS)
        except AssertionError:
            begun = len(_steps(work, 1))
            log = " ".join((place / "log").read_text(errors="replace")[-300:].split())
            raise RuntimeError(f"{begun} of {number} ranks train {HANGS:g} s after the kill: {log}") from None
    finally:
        (work / "end").touch()
        for client in clients:
            ended(client)
    killed = float((work / "killed").read_text())
    return {"start": first - began, "restart": second - killed, "share": (second - killed) / (first - began)}


def _over_ssh(bed: Bed, place: Path, commands: list[list[str]]) -> list[subprocess.Popen[bytes]]:
    """Start a command on each host, as shell scripts do."""
    clients = []
    with (place / "log").open("ab") as log:
        for host, words in zip(bed.hosts, commands, strict=False):
            remote = f"cd {shlex.quote(str(place / 'work'))} && exec {shlex.join(words)}"
            argv = ["ssh", "-T", "-o", "BatchMode=yes", host.name, remote]
            clients.append(
                subprocess.Popen(argv, env=bed.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            )
    return clients


# -- a second run ------------------------------------------------------------------------------------------


def _cleared(place: Path) -> Path:
    """The same place for each run: its path stands in the command."""
    for path in (place / "work").iterdir():
        path.unlink()
    return place / "work"


def _started(bed: Bed, place: Path, nproc: int, wants: str) -> Sample:
    """Seconds to the first step of all ranks on one host, and what they hold of memory."""
    work = _cleared(place)
    runs = place / f"runs-{time.time_ns()}"
    launch = Launch(place, bed)
    launch.runs = runs
    launch.start([str(SCRIPT), str(work)], {**_options(place, nproc, "auto"), "runs-dir": str(runs)})
    seconds = _trains(work, 0, nproc) - launch.began
    memory = _memory(work, nproc)
    if wants == FIRST:
        kept = place / "cache/allranks/imports"
        wait_until(lambda: list(kept.glob("*.json")), BOUND, "what the ranks import is kept")
    elif not _templates(launch, "used"):
        raise RuntimeError(f"the ranks were not forked: {_events(launch, 'template')}")
    assert launch.process is not None
    launch.process.send_signal(signal.SIGTERM)
    launch.wait()
    return {"seconds": seconds, "memory": memory, "phases": _phases(launch, launch.began)}


def _bare(bed: Bed, place: Path, nproc: int) -> Sample:
    work = _cleared(place)
    port = free_port()
    common = {"WORLD_SIZE": nproc, "MASTER_ADDR": bed.hosts[0].name, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    words = " ".join(f"{name}={value}" for name, value in common.items())
    command = shlex.join([sys.executable, str(SCRIPT), str(work)])
    loop = f"for r in $(seq 0 {nproc - 1}); do env {words} RANK=$r LOCAL_RANK=$r {command} & done; wait"
    began = time.time()
    (client,) = _over_ssh(bed, place, [["sh", "-c", loop]])
    seconds = _trains(work, 0, nproc) - began
    memory = _memory(work, nproc)
    (work / "end").touch()
    ended(client)
    return {"seconds": seconds, "memory": memory}


def _memory(work: Path, nproc: int) -> float:
    """MB that the ranks hold together, shared pages counted once."""
    wait_until(lambda: len(list(work.glob("pss-0-?"))) == nproc, BOUND, "all ranks have said what they hold")
    return sum(float(path.read_text()) for path in work.glob("pss-0-?")) / 1024


# -- a lost node -------------------------------------------------------------------------------------------


def _lost(bed: Bed, ground: Ground, how: str) -> Sample:
    """Seconds from the loss of the second of two hosts to the first step on the spare, and of them the detection."""
    place = ground.place()
    words = _options(place, 1, "auto", retries=1, spares=1, lease=f"{LEASE:g}s", grace=f"{GRACE:g}s")
    launch = Launch(place, bed).start([str(SCRIPT), str(place / "work")], words)
    names = {host.name for host in bed.hosts}
    _trains(launch.work, 0, 2)
    wait_until(lambda: _templates(launch, "ready") == names, BOUND, "the templates are ready, the spare's too")
    time.sleep(RUNS_ON)
    began = time.time()
    if how == DEAD:
        os.kill(bed.hosts[1].processes_with_env("RANK=1")[0].ppid, signal.SIGKILL)  # the agent
    else:
        bed.hosts[1].link_down()
    try:
        seconds = _trains(launch.work, 1, 2) - began
        launch.wait()
    finally:
        if how == CUT_OFF:
            bed.hosts[1].link_up()
    phases = _phases(launch, began)
    detected = phases.get("ending", 0.0)
    return {"seconds": seconds, "detected": detected, "after": seconds - detected, "phases": phases}


# -- all of it ---------------------------------------------------------------------------------------------


def run(quick: bool) -> Report:
    """One host with four ranks, four hosts with two, one with eight, and a spare."""
    report = Report("restart", "restart: from a killed rank or a lost node to the first step of the next attempt")
    rounds = 1 if quick else 3
    for n, nproc in ((1, 4), (4, 2)):
        with hosts(n) as (bed, ground):
            cases: dict[str, Callable[[], Sample]] = {
                WITHOUT: partial(_killed, bed, ground, nproc, "never"),
                WITH: partial(_killed, bed, ground, nproc, "auto"),
                TORCHRUN: partial(_torchrun, bed, ground, nproc),
            }
            _rows_of_kills(report, n, nproc, alternate(cases, rounds))
    with hosts(1) as (bed, ground):
        place = ground.place()
        _rows_of_starts(report, {
            FIRST: alternate({FIRST: partial(_started, bed, place, 8, FIRST)}, 1)[FIRST],
            **alternate(
                {BARE: partial(_bare, bed, place, 8), SECOND: partial(_started, bed, place, 8, SECOND)}, rounds
            ),
        })  # fmt: skip
    with hosts(3) as (bed, ground):
        losses = {how: partial(_lost, bed, ground, how) for how in (DEAD, CUT_OFF)}
        _rows_of_losses(report, alternate(losses, rounds))
    report.remark()
    return report


def _rows_of_kills(report: Report, n: int, nproc: int, samples: dict[str, list[Sample]]) -> None:
    for label, found in samples.items():
        where = f"{n} host{'s' if n > 1 else ''} × {nproc} ranks, {label}"
        report.samples[where] = found
        report.add(f"{where}: start", column(found, "start"))
        report.add(f"{where}: restart", column(found, "restart"))
    if n == 1:
        shares = column(samples[WITH], "share")
        report.add("restart ÷ start of the same run", shares, "", "≤ 0.15", lambda value: value <= 0.15)
        return
    turns = zip(column(samples[WITHOUT], "restart"), column(samples[WITH], "restart"), strict=False)
    report.add("restart ÷ restart without", [w / o for o, w in turns], "", "≤ 0.25", lambda value: value <= 0.25)


def _rows_of_starts(report: Report, samples: dict[str, list[Sample]]) -> None:
    for label, found in samples.items():
        where = f"1 host × 8 ranks, {label}"
        report.samples[where] = found
        report.add(f"{where}: to the first step", column(found, "seconds"))
        report.add(f"{where}: memory of the ranks", column(found, "memory"), "MB")
    turns = zip(column(samples[BARE], "seconds"), column(samples[SECOND], "seconds"), strict=False)
    report.add("second run ÷ bare ranks", [s / b for b, s in turns], "", "≤ 0.5", lambda value: value <= 0.5)


def _rows_of_losses(report: Report, samples: dict[str, list[Sample]]) -> None:
    for label, found in samples.items():
        report.samples[f"2 hosts and a spare, {label}"] = found
    dead, cut = column(samples[DEAD], "after"), column(samples[CUT_OFF], "seconds")
    report.add(f"{DEAD}: detection", column(samples[DEAD], "detected"))
    report.add(f"{DEAD}: from there to the first step on the spare", dead, "s", "≤ 2.0 s", lambda v: v <= 2.0)
    limit = LEASE + GRACE + FENCE + 1.5
    aim = f"≤ {limit:g} s (lease {LEASE:g}, grace {GRACE:g}, fence {FENCE:g}, 1.5)"
    report.add(f"{CUT_OFF}: to the first step on the spare", cut, "s", aim, lambda value: value <= limit)
