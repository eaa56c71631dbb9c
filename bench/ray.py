"""ray: from the command to the driver beside a hand-written loop over ssh, and rounds of kills.

ALLRANKS_RAY_PYTHON names an interpreter that has Ray (`make test-ray` makes one).
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import time

from tests.hosts import raying
from tests.hosts.bed import Bed
from tests.hosts.waiting import wait_until

from bench.launch import Ground, Launch, free_port, hosts
from bench.table import Report, Sample, alternate, column

RAY = f"{raying.PYTHON} -m ray.scripts.scripts start --disable-usage-stats {' '.join(raying.SMALL)}"
BOUND = 300.0
ROUNDS = 20
SEED = 20261128
STARTED = "import ray, time; ray.init(log_to_driver=False); open('driver', 'w').write(str(time.time()))"
OURS, LOOP = "allranks run --ray", "ray start on each host over ssh"
NAMED = {"head": "ray-head:", "worker": "ray-worker:", "raylet": "ray-worker:", "driver": "driver:"}


def _launch(bed: Bed, ground: Ground, *command: str) -> Launch:
    launch = Launch(ground.place(), bed)
    options = {"ray": None, "ray-start": " ".join(raying.SMALL), "workdir": str(launch.work), "python": raying.PYTHON}
    return launch.start(list(command), options)


def _ours(bed: Bed, ground: Ground) -> Sample:
    launch = _launch(bed, ground, "python", "-c", STARTED)
    if launch.wait(BOUND) != 0:
        raise RuntimeError(launch.complaint)
    return {"seconds": float((launch.work / "driver").read_text()) - launch.began}


def _loop(bed: Bed, ground: Ground) -> Sample:
    """The head, then the others all at once, then the driver: as people's scripts do."""
    work = ground.place() / "work"
    port = free_port()
    head = bed.hosts[0]
    began = time.time()
    try:
        _ssh(bed, head.name, f"{RAY} --head --node-ip-address {head.address} --port {port} --include-dashboard=false")
        others = [
            _client(bed, host.name, f"{RAY} --address {head.address}:{port} --node-ip-address {host.address}")
            for host in bed.hosts[1:]
        ]
        if any(client.wait(BOUND) for client in others):
            raise RuntimeError("a worker did not start")
        words = shlex.join([raying.PYTHON, "-c", STARTED])
        _ssh(bed, head.name, f"cd {work} && RAY_ADDRESS={head.address}:{port} {words}")
        return {"seconds": float((work / "driver").read_text()) - began}
    finally:
        for host in bed.hosts:
            host.kill_all()


def _client(bed: Bed, host: str, command: str) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["ssh", "-T", host, command], env=bed.env(), stdin=quiet, stdout=quiet, stderr=quiet)


def _ssh(bed: Bed, host: str, command: str) -> None:
    if _client(bed, host, command).wait(BOUND):
        raise RuntimeError(f"{command} ended badly on {host}")


def _kill(bed: Bed, ground: Ground, kind: str, seconds: float) -> Sample:
    """One run, a process of which is killed some seconds after its driver has begun to work."""
    launch = _launch(bed, ground, "python", str(raying.DRIVER), "600")
    wait_until(lambda: (launch.work / "actors").exists() or launch.is_over(), BOUND, "actors")
    if launch.is_over():
        raise RuntimeError(f"Ray did not start: {launch.complaint}")
    time.sleep(seconds)
    os.kill(raying.pid_of(bed, kind), signal.SIGKILL)
    killed = time.time()
    launch.wait(BOUND)
    message = str(launch.result()["verdict"]["message"])
    left = [*raying.left(bed), *raying.links_left(bed)]
    return {
        "seconds": time.time() - killed,
        "named": int(message.startswith(NAMED[kind])),
        "left": len(left),
        "message": message,
        "which": left,
    }


def run(quick: bool) -> Report:
    """2 and 4 hosts; kills on 2."""
    report = Report("ray", "ray: from the command to the driver, and 20 kills at random moments")
    for n in (2,) if quick else (2, 4):
        with hosts(n) as (bed, ground), raying.share_of_its_processes(bed):
            cases = {OURS: lambda: _ours(bed, ground), LOOP: lambda: _loop(bed, ground)}
            samples = alternate(cases, 1 if quick else 3)
        report.samples.update({f"{n} hosts, {label}": found for label, found in samples.items()})
        rows = {label: report.add(f"{n} hosts, {label}", column(found, "seconds")) for label, found in samples.items()}
        ratio = rows[OURS].median / rows[LOOP].median
        rows[OURS].aim, rows[OURS].met = f"≤ 1.2 × the loop (is {ratio:.2f})", ratio <= 1.2
    _rounds(report, 4 if quick else ROUNDS)
    return report


def _rounds(report: Report, rounds: int) -> None:
    dice = random.Random(SEED)
    kinds = [list(NAMED)[number % len(NAMED)] for number in range(rounds)]
    with hosts(2) as (bed, ground), raying.share_of_its_processes(bed):
        for number, kind in enumerate(kinds):
            seconds = dice.uniform(0.0, 5.0)
            label = f"{number:02d} {kind}"
            found = alternate({label: lambda kind=kind, seconds=seconds: _kill(bed, ground, kind, seconds)}, 1)  # type: ignore[misc]
            report.samples.update(found)
    every = [sample for label, found in report.samples.items() if label[:2].isdigit() for sample in found]
    good = [sample for sample in every if not sample.get("error")]
    report.add("from the kill to the verdict", column(good, "seconds"))
    for what, key, wanted in (("right role named", "named", len(every)), ("processes and names left", "left", 0)):
        total = sum(column(good, key))
        row = report.add(f"{what}, {len(every)} kills", [total], "", f"{wanted}")
        row.met = total == wanted and len(good) == len(every)
