"""nodes: what one more node costs: processor time of all processes and of the controller, and bytes by ssh.

A run of N local nodes, each with one rank that sleeps a second, is counted whole, from its first process to its last,
by a control group of its own. What one node costs is the difference to a run of one node, divided by N - 1. Local
nodes are one machine, which the first looks at for all: what that takes is the difference of two runs of one node.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from allranks.gang.agent_archive import MARKER
from allranks.protocol.frames import Decoder
from bench.census import fields_of
from bench.launch import PROGRAMS, Ground, Launch, ground, hosts
from bench.table import Report, Sample, alternate, column

COUNTS, QUICK = (25, 50, 100, 200), (10, 20)
HOSTS = 4
ROUNDS = 3
AIM_NODE = 0.20  # seconds
AIM_CONTROLLER = 13.0  # milliseconds
AIM_MEMORY = 60.0  # megabytes
GROUPS = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup"))
TICK = os.sysconf("SC_CLK_TCK")
LENGTH = 4  # bytes of a part's length


@contextmanager
def counted() -> Iterator[Path]:
    """A control group for all processes of one run; they leave it by ending."""
    root = next(path for path in GROUPS if (path / "cgroup.procs").exists())
    place = root / f"allranks-bench-nodes-{os.getpid()}"
    place.mkdir()
    try:
        yield place
    finally:
        end = time.monotonic() + 30.0
        while (place / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.05)
        with suppress(OSError):
            place.rmdir()


def processor_seconds(group: Path) -> float:
    """What the group's processes have used, also those that have ended (control groups v1 and v2)."""
    with suppress(OSError):
        return int((group / "cpuacct.usage").read_text()) / 1e9
    words = (group / "cpu.stat").read_text().split()
    return int(words[words.index("usage_usec") + 1]) / 1e6


def controller_of(pid: int) -> tuple[float, float] | None:
    """Its own processor seconds, and megabytes at its peak; None once it has ended."""
    fields = fields_of(pid)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    if not fields or "VmHWM:" not in status:
        return None
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1000
    return (int(fields[11]) + int(fields[12])) / TICK, peak


def local(common: Ground, number: int, checks: bool) -> Sample:
    """One run of so many local nodes."""
    launch = Launch(common.place())
    words: dict[str, str | int | None] = {"local": number, "nproc": 1, "launcher": "command"}
    words["workdir"] = str(launch.work)
    if not checks:
        words["no-check"] = None
    with counted() as group:
        own = Path("/proc/self/cgroup").read_text()
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            launch.start(["sleep", "1"], words)
        finally:
            _back(own, group.parent)
        seconds, peak = 0.0, 0.0
        while not launch.is_over():
            seconds, peak = controller_of(launch.pid) or (seconds, peak)
            time.sleep(0.01)
        code = launch.wait()
        end = time.monotonic() + 60.0
        while (group / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.05)
        total = processor_seconds(group)
    if code != 0:
        raise RuntimeError(f"exit {code}: {launch.complaint}")
    return {"nodes": number, "total": total, "controller": seconds, "peak_mb": peak}


def _back(memberships: str, root: Path) -> None:
    """This process goes back to the group that it was in."""
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(",") or (not controllers and root == GROUPS[1]):
            (root / path.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))


@dataclass(frozen=True)
class Traffic:
    """One ssh client's: bytes of the archive and all that starts the agent, and the frames each way."""

    start_bytes: int
    frames_down: int
    bytes_down: int
    frames_up: int
    bytes_up: int


def read_traffic(to_node: bytes, from_node: bytes) -> Traffic:
    """Read what a client has carried. A frame that was cut by the end counts for nothing."""
    at = to_node.index(b"PK\x03\x04") - LENGTH
    parts = _part(to_node, at)  # the archive
    header_end = _part(to_node, parts)
    header = json.loads(to_node[parts + LENGTH : header_end])
    end = header_end
    for _ in header["files"]:
        end = _part(to_node, end)
    start = from_node.index(MARKER) + len(MARKER)
    return Traffic(
        end,
        len(Decoder().feed(to_node[end:])),
        len(to_node) - end,
        len(Decoder().feed(from_node[start:])),
        len(from_node) - start,
    )


def _part(data: bytes, at: int) -> int:
    """The end of the part that begins with its length at `at`."""
    return at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")


def by_ssh() -> Sample:
    """One run on hosts, with what each ssh client has carried."""
    with hosts(HOSTS) as (bed, common):
        launch = Launch(common.place(), bed)
        wire = launch.place / "wire"
        programs = launch.place / "programs"
        wire.mkdir()
        programs.mkdir()
        ssh = programs / "ssh"
        real = bed.bin_dir() / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {sys.executable} -I {PROGRAMS / "wire_ssh.py"} {real} {wire} "$@"\n')
        ssh.chmod(0o755)
        launch.env["PATH"] = f"{programs}:{launch.env['PATH']}"
        words: dict[str, str | int | None] = {"nproc": 1, "launcher": "command", "workdir": str(launch.work)}
        code = launch.start(["sleep", "1"], words).wait()
        if code != 0:
            raise RuntimeError(f"exit {code}: {launch.complaint}")
        told = []
        seconds = []
        for up in wire.glob("*.up"):
            sent, heard = up.read_bytes(), up.with_suffix(".down").read_bytes()
            if MARKER in heard:
                told.append(read_traffic(sent, heard))
                seconds.append(float(up.with_suffix(".cpu").read_text()))
        if len(told) != HOSTS:
            raise RuntimeError(f"{len(told)} of {HOSTS} ssh clients carried an agent")
    return {
        "client": sum(seconds) / HOSTS,
        "start_kb": sum(one.start_bytes for one in told) / HOSTS / 1000,
        "frames_down": sum(one.frames_down for one in told) / HOSTS,
        "kb_down": sum(one.bytes_down for one in told) / HOSTS / 1000,
        "frames_up": sum(one.frames_up for one in told) / HOSTS,
        "kb_up": sum(one.bytes_up for one in told) / HOSTS / 1000,
    }


def run(quick: bool) -> Report:
    """Local nodes with and without checks, then four ssh hosts."""
    counts = QUICK if quick else COUNTS
    report = Report("nodes", "nodes: what one more node costs, local nodes with one rank that sleeps for a second")
    with ground() as common:
        cases = {
            f"{number}{' checked' if checks else ''}": (lambda n=number, c=checks: local(common, n, c))
            for checks in (False, True)
            for number in (1, *counts)
        }
        report.samples = alternate(cases, 1 if quick else ROUNDS)
    report.samples |= alternate({"ssh": by_ssh}, 1 if quick else ROUNDS)
    for kind, words in (("", "with --no-check"), (" checked", "with the checks before a run")):
        first = report.samples[f"1{kind}"]
        for number in counts:
            samples = report.samples[f"{number}{kind}"]
            every = each(samples, first, "total", number)
            aim = f"≤ {AIM_NODE:g} s"
            report.add(f"processor time a node, {number} nodes {words}", every, "s", aim, lambda v: v <= AIM_NODE)
            controller = [seconds * 1000 for seconds in each(samples, first, "controller", number)]
            aim = f"≤ {AIM_CONTROLLER:g} ms"
            report.add("… the controller's part of it", controller, "ms", aim, lambda v: v <= AIM_CONTROLLER)
        peak = column(report.samples[f"{counts[-1]}{kind}"], "peak_mb")
        label = f"controller's memory at its peak, {counts[-1]} nodes {words}"
        report.add(label, peak, "MB", f"≤ {AIM_MEMORY:g} MB", lambda v: v <= AIM_MEMORY)
    looks = zip(column(report.samples["1 checked"], "total"), column(report.samples["1"], "total"), strict=False)
    report.add("the checks before a run, once a machine", [checked - plain for checked, plain in looks], "s")
    for key, label, unit in (
        ("client", "an ssh host: processor time of the client process", "s"),
        ("start_kb", "… sent to start the agent (script, archive, runner)", "kB"),
        ("frames_down", "… frames to the node", ""),
        ("kb_down", "… bytes of these", "kB"),
        ("frames_up", "… frames from the node", ""),
        ("kb_up", "… bytes of these", "kB"),
    ):
        report.add(label, column(report.samples["ssh"], key), unit)
    report.remark()
    return report


def each(samples: list[Sample], first: list[Sample], key: str, number: int) -> list[float]:
    """What each node but the first has cost, by round."""
    whole = zip(column(samples, key), column(first, key), strict=False)
    return [(many - one) / (number - 1) for many, one in whole]
