"""logs: every rank prints at full speed, one is killed half way; is a line lost that a write had returned for?"""

from __future__ import annotations

import shlex
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.hosts.bed import Bed

from bench.census import on_hosts
from bench.launch import BOUND, PROGRAMS, Ground, Launch, ended, hosts
from bench.table import Report, Sample, alternate, column

NPROC = 4
LENGTH = 100
KILLED = 17
ENDLESS = 100_000_000


class Peak(threading.Thread):
    """The most memory a process has had, by the kernel's own count (VmHWM)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self.megabytes = 0.0

    def run(self) -> None:
        while True:
            try:
                text = self._status.read_text()
            except OSError:
                return
            for line in text.splitlines():
                if line.startswith("VmHWM:"):
                    self.megabytes = int(line.split()[1]) / 1000
            if "VmHWM" not in text:
                return
            time.sleep(0.05)


def _counters(path: Path, ranks: int) -> list[tuple[int, int]]:
    """Writes begun and writes that returned, for each rank."""
    data = path.read_bytes()
    return [struct.unpack_from("<QQ", data, rank * 16) for rank in range(ranks)]


def judge(log: bytes, rank: int, begun: int, returned: int) -> dict[str, int]:
    """Compares a rank's log with what it had handed over."""
    lines = log.split(b"\n")
    whole = lines[:-1]
    right = sum(len(t) == LENGTH - 1 and t.startswith(b"%03d %08d " % (rank, i)) for i, t in enumerate(whole))
    return {
        "lost": max(0, returned - right),
        "wrong": len(whole) - right + (1 if lines[-1] else 0),
        "too_many": max(0, len(whole) - begun),
    }


def _compare(folder: Path, counters: list[tuple[int, int]]) -> dict[str, int]:
    total = {"lost": 0, "wrong": 0, "too_many": 0}
    for rank, (begun, returned) in enumerate(counters):
        paths = list(folder.glob(f"logs/node_*/rank_{rank:03d}.log"))
        log = paths[0].read_bytes() if paths else b""
        for key, value in judge(log, rank, begun, returned).items():
            total[key] += value
    return total


def _all_there(paths: list[Path], size: int) -> bool:
    return sum(p.stat().st_size for p in paths if p.exists()) >= size


def _ours(bed: Bed, ground: Ground, lines: int, killed_at: int | None) -> Sample:
    ranks = NPROC * len(bed.hosts)
    launch = Launch(ground.place(), bed)
    path = launch.place / "counters"
    path.write_bytes(bytes(16 * ranks))
    words = [str(path), str(lines), str(-1 if killed_at is None else KILLED), str(killed_at or 0)]
    launch.start([str(PROGRAMS / "printer.py"), *words], {"nproc": NPROC, "workdir": str(launch.work), "lease": "30s"})
    peak = Peak(launch.pid)
    peak.start()
    launch.until_files("up-*", ranks)
    began = time.time()
    (launch.work / "go").touch()
    arrived, gone = _follow(launch, None if killed_at else ranks * lines * LENGTH)
    code = launch.wait(BOUND)
    seconds = time.time() - began
    if code != (0 if killed_at is None else 1):
        raise RuntimeError(f"exit {code}: {launch.complaint}")
    counters = _counters(path, ranks)
    returned = sum(after for _, after in counters)
    sample: Sample = {
        "returned": returned,
        **_compare(launch.run_dir, counters),
        "peak_mb": peak.megabytes,
        "exit": code,
        "until_over": seconds,
        "cut": sum(after < lines for _, after in counters),
    }
    if killed_at is None:
        sample["arrived"] = (arrived or time.time()) - began
        sample["rate"] = returned * LENGTH / 1e6 / sample["arrived"]
    else:
        sample["gone"] = (gone or time.time()) - float((launch.work / "fault").read_text())
    return sample


def _follow(launch: Launch, size: int | None) -> tuple[float | None, float | None]:
    """When the logs had `size` bytes, or (without one) when no rank was alive any more; until the run is over."""
    end = time.time() + BOUND
    while not launch.is_over() and time.time() < end:
        if size is None:
            if (launch.work / "fault").exists() and not on_hosts(launch.work):
                return None, time.time()
        elif _all_there(list(launch.runs.glob("*/logs/node_*/rank_*.log")), size):
            return time.time(), None
        time.sleep(0.02)
    return None, None


def _loop(bed: Bed, ground: Ground, lines: int) -> Sample:
    """ssh in a loop, one client and one file a host: what a shell script does."""
    place = ground.place()
    work, ranks = place / "work", NPROC * len(bed.hosts)
    path = place / "counters"
    path.write_bytes(bytes(16 * ranks))
    program = shlex.join([sys.executable, str(PROGRAMS / "printer.py"), str(path), str(lines), "-1", "0"])
    clients = []
    for index, host in enumerate(bed.hosts):
        each = " ".join(f"RANK={index * NPROC + local} {program} &" for local in range(NPROC))
        with (place / f"log-{host.name}").open("wb") as log:
            argv = ["ssh", "-T", "-o", "BatchMode=yes", host.name, f"cd {shlex.quote(str(work))} && {{ {each} wait; }}"]
            clients.append(subprocess.Popen(argv, env=bed.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    end = time.monotonic() + BOUND
    while len(list(work.glob("up-*"))) < ranks:
        if time.monotonic() > end:
            raise RuntimeError("the printers did not start")
        time.sleep(0.02)
    began = time.time()
    (work / "go").touch()
    for client in clients:
        ended(client)
    seconds = time.time() - began
    returned = sum(after for _, after in _counters(path, ranks))
    arrived = sum(p.stat().st_size for p in place.glob("log-*"))
    return {
        "returned": returned,
        "lost": returned - arrived // LENGTH,
        "arrived": seconds,
        "rate": returned * LENGTH / 1e6 / seconds,
    }


def run(quick: bool) -> Report:
    """8 hosts × 4 ranks."""
    lines = 4000 if quick else 20_000
    report = Report("logs", f"logs: 8 hosts × {NPROC} ranks, {lines:,} lines of {LENGTH} bytes each at full speed")
    killed, cut = "one rank killed half way", "one killed, the others print for ever"
    whole, loop = "nothing killed", "ssh loop"
    with hosts(8) as (bed, ground):
        cases = {
            killed: lambda: _ours(bed, ground, lines, lines // 2),
            cut: lambda: _ours(bed, ground, ENDLESS, lines // 2),
            whole: lambda: _ours(bed, ground, lines, None),
            loop: lambda: _loop(bed, ground, lines),
        }
        report.samples = alternate(cases, 1 if quick else 5, alone=True)
    for label in (killed, cut, whole):
        _add(report, label)
    for label in (killed, cut):
        found = report.samples[label]
        report.add(f"{label}: ranks that were cut short", column(found, "cut"), "of 32 ranks")
        gone = column(found, "gone")
        report.add(f"{label}: from its death until no rank is alive", gone, "s", "≤ 2 s (promise 2)", lambda v: v <= 2)
    for label in (whole, loop):
        report.add(f"{label}: until all is in the log files", column(report.samples[label], "arrived"))
        report.add(f"{label}: rate", column(report.samples[label], "rate"), "MB/s")
    report.remark()
    return report


def _add(report: Report, label: str) -> None:
    """What must hold in every run, not in the median alone."""
    found = report.samples[label]
    report.add(f"{label}: writes that returned", column(found, "returned"), "lines")
    wrong = [float(s["wrong"] + s["too_many"]) for s in found if "wrong" in s]
    for what, values in (("lines lost", column(found, "lost")), ("lines wrong, twice or out of order", wrong)):
        row = report.add(f"{label}: {what}", values, "lines", "0")
        row.met = len(values) == len(found) and not any(values)
    row = report.add(f"{label}: controller's peak memory", column(found, "peak_mb"), "MB", "< 200 MB")
    row.met = len(row.values) == len(found) and max(row.values) < 200
