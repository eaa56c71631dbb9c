"""A controller that is killed: its agents hold the lease, and whoever comes later says what happened."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests import forked
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

from allranks.agent.processes import alive, read_processes

STEPS = """
import time
for step in range(1, 100000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""
LEASE = 2.0


def call(run: LocalRun, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.call(words, cwd=run.work, env=run.environment)


def test_a_run_whose_controller_was_killed_is_no_fault_of_the_network(tmp_path: Path) -> None:
    """`status` offered a take-over for ever, `attach` blamed the link and gave the steps the time of their reading."""
    run = LocalRun(tmp_path, STEPS, "--no-check", "--lease", f"{LEASE:g}s")
    ranks = read_processes([event["pid"] for event in run.until("rank-started", 2)])
    run.until("first-step")
    run.process.kill()
    run.process.wait(BOUND)
    status_t = json.loads((run.directory / "status.json").read_text())["t"]
    wait_until(lambda: not alive(ranks), BOUND, "the lease ends the ranks")
    said = wait_until(lambda: s if "fetches" in (s := call(run, "status").stdout) else "", BOUND, "the lease is over")
    assert "its controller ended at " in said and "the lease had ended the ranks by " in said
    assert json.loads(call(run, "status", "--json").stdout)["lease_end"]["controller_t"] == status_t

    attached = call(run, "attach", "--json")
    document = json.loads(attached.stdout)
    assert attached.returncode == document["exit"] == 4, attached.stderr
    verdict = document["verdict"]
    assert (verdict["cause"], verdict["where"]) == ("controller-ended", {}), verdict
    assert "the lease of 2 s ended the ranks at " in verdict["message"]
    steps = run.events("steps")[-1]
    exits = [event["t"] for event in run.events("rank-exit")]
    assert len(exits) == 2 and steps["furthest"] == document["attempts"][0]["step"] > 1
    assert steps["last_t"] <= max(exits)
