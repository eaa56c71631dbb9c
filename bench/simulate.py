"""simulate: one real controller over N simulated agents: what grows faster than N, and what one controller can hold.

The controller is the real one, in a process of its own. The agents are connections to a few processes
(`programs/simulated_agents.py`) that speak the real protocol over real sockets: hello, facts, the rendezvous check,
ranks that start, initialise, print and end, beats, usage. No ssh runs and no rank, so nothing here is a time of a real
cluster. Processor time and memory of the controller are what is measured: real local nodes beside it say how close the
simulation comes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.launch import ALLRANKS, PROGRAMS, Ground, Launch, ground
from bench.nodes import controller_of
from bench.table import Report, Sample, alternate, column

NPROC = 8
COUNTS, QUICK = (512, 1024, 2048, 4096), (32, 64)
CALIBRATED, QUICKLY = (50, 100, 200), (8,)
PROCESSES = 2  # that play agents
STEADY = 10.0
BOUND = 600.0
AIM_START, AIM_STEADY, AIM_MEMORY, AIM_END = 15.0, 0.5, 500.0, 3.0


def one_nodes_facts(place: Path) -> Path:
    """The facts of a real node, as a run on it has kept them."""
    runs = place / "one"
    words = ["run", "--local", "1", "--runs-dir", str(runs), "--launcher", "command", "--", "true"]
    subprocess.run([*ALLRANKS, *words], check=True, capture_output=True, timeout=BOUND)
    (look,) = runs.glob("*/evidence/preflight.json")
    (facts,) = json.loads(look.read_text())["nodes"].values()
    facts.pop("clock", None)  # the controller's own word
    roomy = ("nofile", "nproc", "somaxconn", "pid_max", "conntrack")  # a node of 32,768 ranks that the checks let pass
    facts["limits"].update(dict.fromkeys(roomy, 1 << 20))
    path = place / "facts.json"
    path.write_text(json.dumps(facts))
    return path


class Simulated:
    """A run of the controller over agents that are played."""

    def __init__(self, place: Path, facts: Path, nodes: int, nproc: int, kind: str) -> None:
        """`kind` of the ranks: `trains`, or `sleeps` as those of a calibration do."""
        self.runs = place / "runs"
        sockets = [str(place / f"agents-{number}") for number in range(PROCESSES)]
        program = PROGRAMS / "simulated_agents.py"
        self._agents = [
            subprocess.Popen([sys.executable, str(program), path, str(facts), kind], stdin=subprocess.PIPE, text=True)
            for path in sockets
        ]
        _until(lambda: all(os.path.exists(path) for path in sockets), self._agents[0])
        words = [str(PROGRAMS / "simulated_run.py"), str(nodes), str(nproc), str(self.runs), *sockets]
        env = {**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1]), "XDG_STATE_HOME": str(place / "state")}
        self._used = (0.0, 0.0)
        self._out = (place / "output").open("wb")
        self.controller = subprocess.Popen(
            [sys.executable, *words], env=env, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.STDOUT
        )

    @property
    def run_dir(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def until_events(self, name: str, number: int = 1) -> None:
        """Wait until the log of the run has so many events of a kind."""
        until_events(self.runs, name, number, self.controller)

    def used(self) -> tuple[float, float]:
        """Processor seconds of the controller so far, and megabytes at its peak; the last known once it has ended."""
        self._used = controller_of(self.controller.pid) or self._used
        return self._used

    def fail(self, index: int, rank: int) -> None:
        """End a rank with code 1."""
        stdin = self._agents[index % PROCESSES].stdin
        assert stdin is not None
        stdin.write(f"fail {index} {rank}\n")
        stdin.flush()

    def close(self) -> None:
        processes: list[subprocess.Popen[Any]] = [self.controller, *self._agents]
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._out.close()


def until_events(runs: Path, name: str, number: int, controller: subprocess.Popen[Any]) -> None:
    """Wait until the log of the one run in a directory has so many events of a kind."""
    wanted = f'"event": "{name}"'.encode()
    found = 0
    rest = b""
    end = time.monotonic() + BOUND
    offset = 0
    while found < number:
        for path in runs.glob("*/events.jsonl"):
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            offset += len(data)
            *lines, rest = (rest + data).split(b"\n")
            found += sum(wanted in line for line in lines)
        if controller.poll() is not None and found < number:
            raise RuntimeError(f"the run ended with {controller.returncode}: {found} of {number} × {name}")
        if time.monotonic() > end:
            raise RuntimeError(f"{found} of {number} × {name} within {BOUND:g} s")
        time.sleep(0.05)


def _until(holds: Any, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + BOUND
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the simulated agents did not start")
        time.sleep(0.02)


@contextmanager
def simulated(common: Ground, facts: Path, nodes: int, nproc: int, kind: str) -> Iterator[Simulated]:
    """Gone at the end."""
    place = common.place()
    run = Simulated(place, facts, nodes, nproc, kind)
    try:
        yield run
    finally:
        run.close()
        shutil.rmtree(place, ignore_errors=True)


def sample(common: Ground, facts: Path, nodes: int, nproc: int, steady: float) -> Sample:
    """One run: its start, a while of it, a rank that fails, and its end."""
    with simulated(common, facts, nodes, nproc, "trains") as run:
        run.until_events("all-initialised")
        start, _ = run.used()
        steady_cores = cores_of(run.controller.pid, steady)
        shown = _shown(run)
        failed_at = time.time()
        used, _ = run.used()
        run.fail(nodes // 2, nodes // 2 * nproc)
        run.until_events("run-end")
        seconds, peak = run.used()
        code = run.controller.wait(BOUND)
        times = _times(run.run_dir)
        status = run.run_dir / "status.json"
        events = run.run_dir / "events.jsonl"
        return {
            "start": start,
            "steady": steady_cores,
            "ended": times["node-clean"] - failed_at,
            "verdict": times["attempt-end"] - failed_at,
            "over": times["run-end"] - failed_at,
            "end_cpu": seconds - used,
            "peak_mb": peak,
            "exit": code,
            "status_mb": status.stat().st_size / 1e6,
            "events_mb": events.stat().st_size / 1e6,
            **shown,
        }


def stopped(common: Ground, facts: Path, nodes: int, nproc: int) -> Sample:
    """One run that SIGTERM ends: what a stop takes, and all exits with it."""
    with simulated(common, facts, nodes, nproc, "trains") as run:
        run.until_events("all-initialised")
        before, _ = run.used()
        began = time.monotonic()
        run.controller.terminate()
        run.until_events("run-end")
        after, _ = run.used()
        code = run.controller.wait(BOUND)
        return {"over": time.monotonic() - began, "end_cpu": after - before, "exit": code}


def cores_of(pid: int, seconds: float) -> float:
    """How many cores a process takes, once what has come with its start is done."""
    time.sleep(2.0)
    before, _ = controller_of(pid) or (0.0, 0.0)
    began = time.monotonic()
    time.sleep(seconds)
    after, _ = controller_of(pid) or (0.0, 0.0)
    return (after - before) / (time.monotonic() - began)


def _times(run_dir: Path) -> dict[str, float]:
    """When each kind of event came last, by the log of the run; of `node-clean`, when the last node ended its ranks."""
    times: dict[str, float] = {}
    for line in (run_dir / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        times[event["event"]] = max(float(event["t"]), times.get(event["event"], 0.0))
    return times


def _shown(run: Simulated) -> Sample:
    """What commands that show the run take, and how many lines they print."""
    env = {**os.environ, "ALLRANKS_RUNS_DIR": str(run.runs)}
    sizes: Sample = {}
    for verb in (("ps",), ("status",), ("top", "--once")):
        began = time.monotonic()
        told = subprocess.run([*ALLRANKS, *verb], env=env, capture_output=True, text=True, timeout=BOUND, check=False)
        if told.returncode:
            raise RuntimeError(f"{verb[0]}: exit {told.returncode}: {told.stderr[-300:]}")
        sizes[f"{verb[0]}_s"] = time.monotonic() - began
        sizes[f"{verb[0]}_lines"] = len(told.stdout.splitlines())
    return sizes


def calibration(common: Ground, facts: Path, nodes: int, steady: float) -> Sample:
    """The figures of a start with ranks that sleep, as `real` takes them."""
    with simulated(common, facts, nodes, 1, "sleeps") as run:
        run.until_events("rank-started", nodes)
        start, _ = run.used()
        steady_cores = cores_of(run.controller.pid, steady)
        return {"start": start, "steady": steady_cores, "peak_mb": run.used()[1]}


def real(common: Ground, nodes: int, steady: float) -> Sample:
    """Real local nodes, each with one rank that sleeps."""
    launch = Launch(common.place())
    words: dict[str, str | int | None] = {"local": nodes, "nproc": 1, "launcher": "command"}
    launch.start(["sleep", "600"], {**words, "workdir": str(launch.work)})
    assert launch.process is not None
    try:
        until_events(launch.runs, "rank-started", nodes, launch.process)
        start, _ = controller_of(launch.pid) or (0.0, 0.0)
        steady_cores = cores_of(launch.pid, steady)
        _, peak = controller_of(launch.pid) or (0.0, 0.0)
        launch.verb("stop")
        launch.wait(BOUND)
        return {"start": start, "steady": steady_cores, "peak_mb": peak}
    finally:
        if not launch.is_over():
            launch.kill()


def run(quick: bool) -> Report:
    """A row for each number of nodes, behind those that compare with real nodes."""
    counts, calibrated, steady = (QUICK, QUICKLY, 2.0) if quick else (COUNTS, CALIBRATED, STEADY)
    report = Report("simulate", f"simulate: one controller over simulated agents, {NPROC} ranks each")
    with ground() as common:
        facts = one_nodes_facts(common.place())
        cases = {}
        for nodes in calibrated:
            cases[f"{nodes} real"] = lambda n=nodes: real(common, n, steady)
            cases[f"{nodes} simulated"] = lambda n=nodes: calibration(common, facts, n, steady)
        report.samples = alternate(cases, 1)
        report.samples |= alternate({str(n): (lambda n=n: sample(common, facts, n, NPROC, steady)) for n in counts}, 1)
        largest = counts[-1]
        report.samples |= alternate({f"{largest} stopped": lambda: stopped(common, facts, largest, NPROC)}, 1)
    for label in cases:
        found = report.samples[label]
        report.add(f"{label}, one rank that sleeps: controller's processor time of the start", column(found, "start"))
        report.add("… its cores afterwards", column(found, "steady"), "")
        report.add("… its memory at its peak", column(found, "peak_mb"), "MB")
    for nodes in counts:
        found = report.samples[str(nodes)]
        report.add(f"{nodes} nodes: start", column(found, "start"), "s", f"≤ {AIM_START:g} s", lambda v: v <= AIM_START)
        most = f"≤ {AIM_STEADY:g}"
        report.add("… cores while they train", column(found, "steady"), "", most, lambda v: v <= AIM_STEADY)
        most = f"≤ {AIM_MEMORY:g} MB"
        report.add("… memory at its peak", column(found, "peak_mb"), "MB", most, lambda v: v <= AIM_MEMORY)
        most = f"≤ {AIM_END:g} s"
        report.add("… from a failed rank to the end of all", column(found, "ended"), "s", most, lambda v: v <= AIM_END)
        report.add("… … to the verdict", column(found, "verdict"))
        report.add("… … to the end of the command", column(found, "over"))
        report.add("… processor time of the end", column(found, "end_cpu"))
        report.add("… status.json", column(found, "status_mb"), "MB")
        report.add("… events.jsonl", column(found, "events_mb"), "MB")
        for verb in ("ps", "status", "top"):
            report.add(f"… `{verb}`", column(found, f"{verb}_s"))
            report.add("… lines of it", column(found, f"{verb}_lines"), "")
    found = report.samples[f"{largest} stopped"]
    report.add(f"{largest} nodes: from SIGTERM to the end of the command", column(found, "over"))
    report.add("… processor time of it", column(found, "end_cpu"))
    report.remark()
    return report


def main() -> int:
    """`python -m bench.simulate N`: one run of N nodes, with no calibration."""
    with ground() as common:
        facts = one_nodes_facts(common.place())
        found = sample(common, facts, int(sys.argv[1]), NPROC, STEADY)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
