"""counters: what it costs to read 8 GPUs and 8 ports every 10 seconds, of a stand-in for NVML and files as of sysfs."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from allranks.agent import counters
from allranks.agent.counters import COUNTED, CounterWatch
from allranks.gang.pace import EVERY
from allranks.protocol.samples import NodeUsage
from bench.table import Report, Sample

STANDIN = Path(__file__).parents[1] / "tests" / "agent" / "nvml_standin.c"
GPUS = ("0000:07:00.0", "0000:0f:00.0", *(f"0000:2{number}:00.0" for number in range(6)))
PORTS = 8
SECONDS = 120.0
AIM = 0.1  # percent of a core


def _prepare(place: Path) -> None:
    """The library, and a tree of ports."""
    library = place / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(STANDIN)], check=True)
    for number in range(PORTS):
        port = place / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        for name in COUNTED:
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text("3\n")
        (port / "state").write_text("4: ACTIVE\n")
    counters.LIBRARY, counters.PORTS = str(library), str(place / "infiniband")
    os.environ.update(NVML_STATE=str(place), NVML_PAUSE=str(int(EVERY * 1000)))


def _cpu(pid: int) -> float:
    """Seconds that a process has computed (schedstat: nanoseconds)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def sample(seconds: float) -> Sample:
    """Percent of a core: of the process that reads, after its start, and of the agent that takes its lines."""
    selector = selectors.DefaultSelector()
    watch = CounterWatch(selector, GPUS, EVERY)
    pid = watch.child.pid
    try:
        _take(selector, 3.0)
        read, began = _cpu(pid), time.monotonic()
        taken = _take(selector, seconds)
        watch.added_to(NodeUsage(), {})
        took = time.monotonic() - began
        devices = len(watch.newest.gpus) + len(watch.newest.ports)
        return {"start": read, "reads": 100 * (_cpu(pid) - read) / took, "agent": 100 * taken / took,
                "devices": devices}  # fmt: skip
    finally:
        watch.close()
        os.waitpid(pid, 0)


def _take(selector: selectors.BaseSelector, seconds: float) -> float:
    """Take lines for so long; the seconds that it has computed for them."""
    end = time.monotonic() + seconds
    computed = 0.0
    while time.monotonic() < end:
        ready = selector.select(max(0.0, end - time.monotonic()))
        began = time.process_time()
        for key, _ in ready:
            key.data()
        computed += time.process_time() - began
    return computed


def run(quick: bool) -> Report:
    """One span."""
    report = Report("counters", f"counters: {len(GPUS)} GPUs and {PORTS} ports, read each {EVERY:g} s")
    place = Path(tempfile.mkdtemp(prefix="arbench-"))
    try:
        _prepare(place)
        found = sample(25.0 if quick else SECONDS)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report.samples = {"counters": [found]}
    both = [found["reads"] + found["agent"]]
    report.add("process that reads, and agent", both, "% of a core", f"≤ {AIM:g} %", lambda share: share <= AIM)
    report.add("… the process", [found["reads"]], "% of a core")
    report.add("… the agent", [found["agent"]], "% of a core")
    report.add("start of the process", [found["start"]])
    report.add("devices that answer", [found["devices"]], "", "all", lambda n: n == len(GPUS) + PORTS)
    return report
