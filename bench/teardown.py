"""teardown: from a fault until no process of the run is alive on any host that can be reached."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.hosts.bed import Bed, Process
from tests.hosts.waiting import wait_until

from bench.census import on_hosts, others, seconds_until
from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import Report, Sample, alternate, column

NPROC = 2
CHILDREN = 4
GRACE = 1.0
LEASE = 5.0
CULPRIT = 5
HOST = "h3"  # the host of ranks 4 and 5
LIMIT = 40.0
Fault = Callable[[Bed, Launch], float]


def rank_process(bed: Bed, launch: Launch, rank: int) -> Process:
    """A rank's main process, from the pid that it wrote itself (its host's own)."""
    (path,) = launch.work.glob(f"up-{rank}-*")
    inner = int(path.name.rpartition("-")[2])
    host = bed.hosts[rank // NPROC]
    (found,) = [p for p in host.pids() if p.inner == inner]
    return found


def _raise(bed: Bed, launch: Launch) -> float:
    (launch.work / "go").touch()
    fault: Path = launch.work / "fault"
    wait_until(fault.exists, 10, "the rank raised")
    return float(fault.read_text())


def _kill(bed: Bed, launch: Launch) -> float:
    pid = rank_process(bed, launch, CULPRIT).pid
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return now


def _stop_agent(bed: Bed, launch: Launch) -> float:
    agent = rank_process(bed, launch, CULPRIT).ppid
    now = time.time()
    os.kill(agent, signal.SIGSTOP)
    return now


def _vanish(bed: Bed, launch: Launch) -> float:
    host = bed.host(HOST)
    now = time.time()
    host.link_down()
    host.power_off()
    return now


def sample(bed: Bed, ground: Ground, user: str, words: list[str], fault: Fault) -> Sample:
    """One run with one fault."""
    launch = Launch(ground.place(), bed, user)
    try:
        launch.start(
            [str(PROGRAMS / "nasty.py"), *words],
            {"nproc": NPROC, "workdir": str(launch.work), "lease": f"{LEASE:g}s", "grace": f"{GRACE:g}s"},
        )
        ranks = NPROC * len(bed.hosts)
        launch.until_files("up-*", ranks)
        launch.until_files("child-*", ranks * CHILDREN)
        before = len(on_hosts(launch.work))
        if before < ranks * (1 + CHILDREN):
            raise RuntimeError(f"only {before} processes before the fault")
        since = fault(bed, launch)
        gone = seconds_until(lambda: not on_hosts(launch.work), since, LIMIT)
        agents = seconds_until(lambda: not others(bed, launch.work), since, LIMIT)
        code = launch.wait()
        left = [a.command for a in on_hosts(launch.work)]
        verdict = launch.result().get("verdict") or {}
        return {
            "gone": gone,
            "agents_gone": agents,
            "processes": before,
            "left": len(left),
            "exit": code,
            "launcher_over": time.time() - since,
            "left_commands": left,
            "left_others": [a.command for a in others(bed, launch.work)],
            "verdict": {k: verdict.get(k) for k in ("cause", "where", "message")},
        }
    finally:
        if launch.process is not None and not launch.is_over():
            launch.kill()
        bed.heal()


FAULTS: dict[str, tuple[list[str], Fault, float, str]] = {
    "a rank raises": (["raise", str(CULPRIT)], _raise, GRACE + 0.5, "grace + 0.5 s"),
    "a rank is killed": (["wait"], _kill, GRACE + 0.5, "grace + 0.5 s"),
    "its agent is stopped": (["wait"], _stop_agent, 5.0, "5 s"),
    "its host vanishes": (["wait"], _vanish, LEASE + 2.0, "lease + 2 s"),
}


def run(quick: bool) -> Report:
    """Every fault as root and as an unprivileged user."""
    report = Report(
        "teardown",
        f"teardown: 4 hosts × {NPROC} ranks × {1 + CHILDREN} processes; grace {GRACE:g} s, lease {LEASE:g} s",
    )
    users = ("root", "trainer")
    with hosts(4) as (bed, ground):
        cases = {
            f"{name}, as {user}": partial(sample, bed, ground, user, words, fault)
            for name, (words, fault, _, _) in FAULTS.items()
            for user in users
        }
        report.samples = alternate(cases, 1 if quick else 5)
    for name, (_, _, bound, words) in FAULTS.items():
        for user in users:
            found = report.samples[f"{name}, as {user}"]
            row = report.add(f"{name}, as {user}", column(found, "gone"), aim=f"≤ {words} = {bound:g} s")
            row.met = len(row.values) == len(found) and row.median <= bound
            report.add("… and agents and supervisors gone too", column(found, "agents_gone"))
    left = [sum(column(found, "left")) for found in report.samples.values()]
    report.add("processes left, all runs", [sum(left)], "", "0", lambda value: value == 0)
    report.remark()
    return report
