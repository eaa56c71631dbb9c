"""scale: 200 agents on this machine, with ranks that sleep."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.census import command_of, fields_of, pids_in
from bench.launch import Ground, Launch, ground
from bench.table import Report, Sample, alternate, column

TICK = os.sysconf("SC_CLK_TCK")
SETTLE = 3.0


def _ticks(pids: list[int]) -> int:
    """User and system time of processes, in clock ticks."""
    found = [fields_of(pid) for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in found if f)


def _memory(pids: list[int]) -> float:
    """Megabytes, shared pages counted once (Pss)."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total / 1000


def _children(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = fields_of(int(entry))
            if fields and fields[1] == str(pid):
                found.append(int(entry))
    return found


def _parents(pids: list[int]) -> set[int]:
    return {int(fields[1]) for fields in map(fields_of, pids) if fields}


def _sleepers(launch: Launch) -> list[int]:
    return [pid for pid in pids_in(launch.work) if command_of(pid) == "sleep 300"]


def sample(common: Ground, number: int, window: float) -> Sample:
    """One launch: start, idle, stop."""
    launch = Launch(common.place())
    launch.start(["sleep", "300"], {"local": number, "nproc": 1, "launcher": "command", "workdir": str(launch.work)})
    family: list[int] = []
    try:
        while len(sleepers := _sleepers(launch)) < number:
            if launch.is_over() or time.time() > launch.began + 120:
                raise RuntimeError(f"{len(sleepers)} of {number} ranks: {launch.complaint}")
            time.sleep(0.05)
        started = time.time() - launch.began
        agents = _parents(sleepers)
        supervisors = _parents(list(agents))
        relays = _children(launch.pid)
        family = [*agents, *supervisors, *relays]
        time.sleep(SETTLE)
        controller, rest, begun = _ticks([launch.pid]), _ticks(family), time.monotonic()
        time.sleep(window)
        seconds = time.monotonic() - begun
        used = (_ticks([launch.pid]) - controller) / TICK / seconds * 100
        theirs = (_ticks(family) - rest) / TICK / seconds * 100
        memory = {"controller_mb": _memory([launch.pid]), "nodes_mb": _memory(family)}
        begun = time.time()
        stopping = launch.verb("stop")
        code = launch.wait()
        stopped = time.time() - begun
        time.sleep(1.0)
        return {
            "started": started,
            "agents": len(agents),
            "supervisors": len(supervisors),
            "relays": len(relays),
            "cpu": used,
            "nodes_cpu": theirs,
            **memory,
            "stopped": stopped,
            "stop_exit": stopping.returncode,
            "exit": code,
            "left": len(_living(family)) + len(_sleepers(launch)),
            "which": [command_of(pid) for pid in _living(family)],
        }
    finally:
        if not launch.is_over():
            launch.kill()


def _living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if fields_of(pid)[:1] not in ([], ["Z"])]


def run(quick: bool) -> Report:
    """The local backend, `--launcher command -- sleep 300`."""
    number, window = (50, 5.0) if quick else (200, 20.0)
    report = Report("scale", f"scale: {number} nodes with one sleeping rank each, all on this machine")
    with ground() as common:
        report.samples = alternate({"allranks": lambda: sample(common, number, window)}, 1 if quick else 5)
    found = report.samples["allranks"]
    report.add(f"until {number} ranks have started", column(found, "started"), "s", "< 30 s", lambda v: v < 30)
    report.add(
        f"controller's CPU when idle, over {window:g} s",
        column(found, "cpu"),
        "% of a core",
        "< 10 %",
        lambda v: v < 10,
    )
    report.add("CPU of agents, supervisors and relays together", column(found, "nodes_cpu"), "% of a core")
    report.add("controller's memory", column(found, "controller_mb"), "MB")
    report.add("memory of agents, supervisors and relays together", column(found, "nodes_mb"), "MB")
    report.add("`allranks stop` until the launcher is over", column(found, "stopped"))
    report.add("processes left", column(found, "left"), "", "0", lambda v: v == 0)
    report.remark()
    return report
