"""The clock of the launching machine is set while a run goes on: by an hour forwards, then by two hours backwards."""

import json
import os
import signal
import time
from pathlib import Path

from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

# For the controller alone: agents are isolated from it (-I). libfaketime would do for all programs, but version 0.9.10
# makes sleeping with an absolute time fail once its offset changes.
STEPPED = """
import os, time

real = time.time

def stepped():
    with open(os.environ["CLOCK_OFFSET"]) as file:
        return real() + float(file.read())

time.time = stepped
"""
PROGRAM = """
import os, pathlib, signal, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
pathlib.Path("up-" + os.environ["RANK"]).touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def test_a_clock_that_is_set_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(STEPPED)

    def set_clock(offset: float) -> None:
        (tmp_path / "offset.new").write_text(f"{offset}\n")
        os.replace(tmp_path / "offset.new", tmp_path / "offset")

    set_clock(0)
    python_path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))
    run = LocalRun(
        tmp_path, PROGRAM, "--init-timeout", "60s", "--hang-timeout", "60s", "--lease", "30s",
        "--allow", "world-size-mismatch", PYTHONPATH=python_path, CLOCK_OFFSET=str(tmp_path / "offset"),
    )  # fmt: skip
    run.until("rank-started", 2)
    wait_until(lambda: len(list(run.work.glob("up-*"))) == 2, BOUND, "the programs are up")
    for offset in (3600.0, -3600.0):
        set_clock(offset)
        for _ in range(3):  # each time the controller writes down, by the clock that was set, that it has got a signal
            known = len(run.events("signal"))
            run.process.send_signal(signal.SIGUSR1)
            event = run.until("signal", known + 1)[-1]
            assert abs(event["t"] - time.time() - offset) < 60
            time.sleep(0.25)  # a tick of the controller, and more
    (run.work / "go").touch()
    result = run.result(has_true_clock=False)
    assert (result["exit"], result["verdict"]) == (0, None), run.stderr
    assert 0 < result["timing"]["total"] < BOUND
    names = {e["event"] for e in map(json.loads, (run.directory / "events.jsonl").read_text().splitlines())}
    assert not names & {"hang-suspected", "node-silent", "failed", "finding"}, run.events("finding")
