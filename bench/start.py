"""start: from the command to all ranks initialised, against what people do without allranks."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.hosts.bed import Bed

from bench.launch import PROGRAMS, Ground, Launch, ended, free_port, hosts
from bench.table import Report, Sample, alternate, column

SCRIPT = PROGRAMS / "initialise.py"
DIRECT, TORCHRUN, BARE, OURS_TORCHRUN = "allranks", "ssh loop + torchrun", "ssh loop + bare ranks", "allranks torchrun"


def _times(directory: Path, number: int, since: float) -> Sample:
    """Seconds until the last rank's script ran, had torch, had initialised; an error where not all had."""
    found = [path.read_text().split() for path in directory.glob("initialised-*")]
    if len(found) != number or any(int(world) != number for _, world, _, _ in found):
        raise RuntimeError(f"{len(found)} of {number} ranks initialised")
    return {
        "seconds": max(float(when) for when, _, _, _ in found) - since,
        "script": max(float(begun) for _, _, begun, _ in found) - since,
        "imported": max(float(imported) for _, _, _, imported in found) - since,
    }


def _ours(bed: Bed, ground: Ground, launcher: str) -> Sample:
    place = ground.place()
    launch = Launch(place, bed).start(
        [str(SCRIPT), str(place / "work")], {"nproc": 1, "workdir": str(place / "work"), "launcher": launcher}
    )
    code = launch.wait()
    if code != 0:
        raise RuntimeError(f"exit {code}: {launch.complaint}")
    return {**_times(launch.work, len(bed.hosts), launch.began), "phases": phases(launch)}


def phases(launch: Launch) -> dict[str, float]:
    """Seconds since the command at which allranks says that each part was done, for the raw file."""
    found: dict[str, float] = {}
    for line in (launch.run_dir / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        found[event["event"]] = round(event["t"] - launch.began, 3)
    names = ("run-start", "node-ready", "facts", "gate-proved", "rank-started", "all-initialised", "run-end")
    return {name: found[name] for name in names if name in found}


def _loop(bed: Bed, ground: Ground, command: Callable[[int, int], list[str]]) -> Sample:
    """`ssh HOST … &` for each host, all at once, as shell scripts do."""
    place = ground.place()
    port = free_port()
    log = (place / "log").open("wb")
    began = time.time()
    clients = []
    for index, host in enumerate(bed.hosts):
        words = [*command(index, port), str(SCRIPT), str(place / "work")]
        remote = f"cd {shlex.quote(str(place / 'work'))} && exec {shlex.join(words)}"
        argv = ["ssh", "-T", "-o", "BatchMode=yes", host.name, remote]
        clients.append(
            subprocess.Popen(argv, env=bed.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        )
    for client in clients:
        ended(client)
    log.close()
    if any(client.returncode for client in clients):
        text = " ".join((place / "log").read_text(errors="replace")[-400:].split())
        raise RuntimeError(f"exits {[client.returncode for client in clients]}: {text}")
    return _times(place / "work", len(bed.hosts), began)


def _torchrun(bed: Bed, ground: Ground) -> Sample:
    def command(index: int, port: int) -> list[str]:
        words = {"nnodes": len(bed.hosts), "node-rank": index, "nproc-per-node": 1}
        where = {"master-addr": bed.hosts[0].name, "master-port": port}
        options = [str(word) for name, value in {**words, **where}.items() for word in (f"--{name}", value)]
        return [sys.executable, "-m", "torch.distributed.run", *options]

    return _loop(bed, ground, command)


def _bare(bed: Bed, ground: Ground) -> Sample:
    def command(index: int, port: int) -> list[str]:
        values = {
            "RANK": index,
            "WORLD_SIZE": len(bed.hosts),
            "LOCAL_RANK": 0,
            "MASTER_ADDR": bed.hosts[0].name,
            "MASTER_PORT": port,
        }
        return ["env", *(f"{name}={value}" for name, value in values.items()), sys.executable]

    return _loop(bed, ground, command)


def run(quick: bool) -> Report:
    """4 and 8 hosts, one rank each."""
    report = Report("start", "start: from the command to all ranks initialised (1 rank a host)")
    for n in (4,) if quick else (4, 8):
        with hosts(n) as (bed, ground):
            cases = {
                DIRECT: lambda: _ours(bed, ground, "direct"),
                TORCHRUN: lambda: _torchrun(bed, ground),
                BARE: lambda: _bare(bed, ground),
                OURS_TORCHRUN: lambda: _ours(bed, ground, "torchrun"),
            }
            alternate({"warm-up": cases[BARE]}, 1)
            samples = alternate(cases, 2 if quick else 5, alone=True)
        for label, found in samples.items():
            report.samples[f"{n} hosts, {label}"] = found
        _rows(report, n, {label: column(found, "seconds") for label, found in samples.items()})
    report.remark()
    return report


def _rows(report: Report, n: int, seconds: dict[str, list[float]]) -> None:
    row = {label: report.add(f"{n} hosts, {label}", values) for label, values in seconds.items()}
    ours = row[DIRECT].median
    ratio, more = ours / row[TORCHRUN].median, ours - row[BARE].median
    first = f"≤ 0.65 × ssh + torchrun (is {ratio:.2f})"
    second = f"≤ bare ranks + 1 s (is {more:+.2f} s)"
    row[DIRECT].aim, row[DIRECT].met = f"{first}; {second}", ratio <= 0.65 and more <= 1.0
