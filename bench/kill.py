"""kill: the launcher is killed at a random moment; what is alive when the lease is over?"""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.hosts.bed import Bed

from bench.census import alive_in, is_boot, others
from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import Report, Sample, alternate, column

LEASE = 3.0
SECONDS = 6.0
SEED = 20261121


def sample(bed: Bed, ground: Ground, moment: float) -> Sample:
    """One launcher, killed `moment` seconds after its start."""
    launch = Launch(ground.place(), bed)
    before = set(_node_directories(bed))
    try:
        launch.start(
            [str(PROGRAMS / "nasty.py"), "wait"], {"nproc": 2, "workdir": str(launch.work), "lease": f"{LEASE:g}s"}
        )
        time.sleep(max(0.0, launch.began + moment - time.time()))
        if launch.is_over():
            raise RuntimeError(f"over before it was killed: {launch.complaint}")
        ranks = len(list(launch.work.glob("up-*")))
        then = [a for a in alive_in(launch.work) if not a.on_machine]
        launch.kill()
        time.sleep(LEASE + 3.0)
        orphans = [a for a in alive_in(launch.work) if not a.on_machine]
        rest = others(bed, launch.work)
        clients = [a for a in alive_in(launch.place) + alive_in(launch.work) if a.on_machine]
        directories = sorted(set(_node_directories(bed)) - before)
        return {
            "moment": moment,
            "ranks_up": ranks,
            "alive_at_kill": len(then),
            "orphans": len(orphans),
            "agents": sum(is_boot(a.pid) for a in rest),
            "others": len(rest),
            "clients": len(clients),
            "directories": len(directories),
            "which": [a.command for a in (*orphans, *rest, *clients)] + directories,
        }
    finally:
        bed.heal()


def _node_directories(bed: Bed) -> list[str]:
    """What lies in the hosts' own /tmp, seen from outside."""
    return [str(path) for host in bed.hosts for path in Path(f"/proc/{host.init}/root/tmp").glob("allranks-*/*/node_*")]


def run(quick: bool) -> Report:
    """20 moments, start-up included."""
    dice = random.Random(SEED)
    moments = sorted(dice.uniform(0.0, SECONDS) for _ in range(20))
    dice.shuffle(moments)
    moments = moments[:4] if quick else moments
    report = Report(
        "kill",
        f"kill: launcher killed by SIGKILL at {len(moments)} moments of its first {SECONDS:g} s; "
        f"4 hosts × 2 ranks, looked at lease ({LEASE:g} s) + 3 s later",
    )
    with hosts(4) as (bed, ground):
        for moment in moments:
            found = alternate({f"at {moment:.2f} s": lambda moment=moment: sample(bed, ground, moment)}, 1)  # type: ignore[misc]
            report.samples.update(found)
    every = [s for found in report.samples.values() for s in found]
    good = [s for s in every if not s.get("error")]
    report.add("processes of ranks alive when it was killed", column(good, "alive_at_kill"), "")
    with_ranks = sum(1 for s in good if s["alive_at_kill"])
    report.add("moments at which ranks were alive (before: start-up alone)", [with_ranks], f"of {len(good)}")
    with_orphans = sum(1 for s in good if s["orphans"])
    row = report.add("runs that left orphans", [with_orphans], "", f"0 of {len(every)}", lambda value: value == 0)
    row.met = row.met and len(good) == len(every)
    report.add("orphans, all runs", [sum(column(good, "orphans"))], "", "0", lambda value: value == 0)
    left = [sum(column(good, "agents"))]
    report.add("agents and supervisors left, all runs", left, "", "0", lambda value: value == 0)
    sessions = sum(column(good, "clients")) + sum(column(good, "others")) - sum(column(good, "agents"))
    report.add("ssh clients, sshd sessions and all else left, all runs", [sessions], "", "0", lambda value: value == 0)
    report.add(
        "node directories left a run, for `attach` and `clean` (their logs are still there)",
        column(good, "directories"),
        "",
    )
    report.remark()
    return report
