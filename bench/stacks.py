"""stacks: 64 ranks on 8 hosts: how long does `allranks stacks` take, and is a step slower for it?"""

from __future__ import annotations

import json
import statistics
import time

from tests.hosts.bed import Bed

from bench.launch import PROGRAMS, Ground, Launch, hosts
from bench.table import Report, Sample, column

HOSTS = 8
RANKS = 8  # on each
STEP = 1.0  # seconds: 64 ranks on the cores of one machine
CALM = 30.0  # seconds of steps without a look
UP = 600.0
AIM = 3.0


def _slowest(launch: Launch, began: float, ended: float) -> list[float]:
    """The longest step of each rank that began in a span of time."""
    slowest = []
    for path in launch.work.glob("steps-*"):
        rows = [
            [float(word) for word in line.split()] for line in path.read_text().splitlines() if line.count(" ") == 1
        ]
        durations = [row[1] for row in rows if began - STEP <= row[0] <= ended]
        slowest.append(max(durations, default=0.0))
    return slowest


def sample(bed: Bed, ground: Ground, ranks: int, looks: int) -> list[Sample]:
    """One run, which is looked at so often."""
    launch = Launch(ground.place(), bed)
    samples: list[Sample] = []
    try:
        options = {"nproc": ranks, "workdir": str(launch.work), "init-timeout": f"{UP:g}s"}
        launch.start([str(PROGRAMS / "stacks.py"), str(STEP)], options)
        launch.until_files("up-*", HOSTS * ranks, UP)
        began = time.time()
        time.sleep(CALM)
        calm = _slowest(launch, began, time.time())
        for _ in range(looks):
            began = time.time()
            done = launch.verb("stacks", "--json")
            ended = time.time()
            document = json.loads(done.stdout)
            if "error" in document:
                samples.append({"error": document["error"]})
                continue
            time.sleep(2 * STEP)
            looked = _slowest(launch, began, ended)
            seen = [rank for rank in document["ranks"] if rank["collective"] and rank["stack"]]
            samples.append({
                "command": ended - began, "answer": document["seconds"], "seen": len(seen),
                "calm": max(calm), "looked": max(looked), "usual": statistics.median(calm),
            })  # fmt: skip
            time.sleep(2.0)
        (launch.work / "done").touch()
        launch.wait(UP)
    finally:
        if launch.process is not None and not launch.is_over():
            launch.kill()
        bed.heal()
    return samples


def run(quick: bool) -> Report:
    """One run of 64 ranks, ten looks."""
    ranks = 1 if quick else RANKS
    report = Report("stacks", f"stacks: {HOSTS} hosts × {ranks} ranks of torch, a step a second")
    with hosts(HOSTS) as (bed, ground):
        found = sample(bed, ground, ranks, 2 if quick else 10)
    report.samples = {"looks": found}
    report.add("from the command to its end", column(found, "command"), "s", f"≤ {AIM:g} s", lambda s: s <= AIM)
    report.add("from the question to the answer", column(found, "answer"))
    report.add("ranks with stack and collective", column(found, "seen"), "", "all", lambda n: n == HOSTS * ranks)
    report.add("longest step in 30 s without a look", column(found, "calm"))
    report.add("longest step during a look", column(found, "looked"))
    report.remark()
    return report
