"""A controller that is killed: its agents hold the lease, and whoever comes later says what happened."""

import json
import shutil
import signal
from pathlib import Path

from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

from allranks.agent.processes import alive, read_processes
from allranks.protocol.codec import decode
from allranks.report.sentences import closing_lines
from allranks.runs.documents import ResultDocument

STEPS = """
import time
for step in range(1, 100000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""
LEASE = 2.0


def test_a_run_whose_controller_was_killed_is_no_fault_of_the_network(tmp_path: Path) -> None:
    """`status` offered a take-over for ever, `attach` blamed the link and gave the steps the time of their reading."""
    run = LocalRun(tmp_path, STEPS, "--no-check", "--lease", f"{LEASE:g}s")
    ranks = read_processes([event["pid"] for event in run.until("rank-started", 2)])
    run.until("first-step")
    run.process.kill()
    run.process.wait(BOUND)
    status_t = json.loads((run.directory / "status.json").read_text())["t"]
    wait_until(lambda: not alive(ranks), BOUND, "the lease ends the ranks")
    said = wait_until(lambda: s if "fetches" in (s := run.call("status").stdout) else "", BOUND, "the lease is over")
    assert "its controller ended at " in said and "the lease had ended the ranks by " in said
    status = run.ask("status")
    assert status["lease_end"]["controller_t"] == status_t
    nodes = status["nodes"]
    assert {rank["state"] for node in nodes for rank in node["ranks"]} == {"ended"} == {node["state"] for node in nodes}
    judged = run.ask("diagnose")
    assert judged["cause"] == "controller-ended" and "the lease had ended the ranks by " in judged["message"], judged

    attached = run.call("attach", "--json")
    document = json.loads(attached.stdout)
    assert attached.returncode == document["exit"] == 4, attached.stderr
    verdict = document["verdict"]
    assert (verdict["cause"], verdict["where"]) == ("controller-ended", {}), verdict
    assert "the lease of 2 s ended the ranks at " in verdict["message"]
    steps = run.events("steps")[-1]
    exits = [event["t"] for event in run.events("rank-exit")]
    assert len(exits) == 2 and steps["furthest"] == document["attempts"][0]["step"] > 1
    assert steps["last_t"] <= max(exits)


def test_a_controller_that_does_not_move_is_not_said_to_run_on(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, STEPS, "--no-check", "--lease", "6s")
    run.until("first-step")
    wait_until(lambda: "steps/s" in run.call("status").stdout, BOUND, "it runs")
    run.process.send_signal(signal.SIGSTOP)
    try:
        said = wait_until(lambda: s if "written" in (s := run.call("status").stdout) else "", BOUND, "three beats")
        assert f"its controller is stopped. `kill -CONT {run.process.pid}` lets it go on" in said
        assert run.ask("status")["silence"]["stopped"] == run.process.pid
    finally:
        run.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "nothing was written" not in run.call("status").stdout, BOUND, "it goes on")


def test_a_run_directory_that_is_removed_is_said_to_be_gone(tmp_path: Path) -> None:
    """The last line named the place of the logs."""
    run = LocalRun(tmp_path, STEPS.replace("100000", "100"), "--no-check")
    run.until("first-step")
    shutil.rmtree(run.directory)
    assert run.process.wait(BOUND) == 0
    events = [json.loads(line) for line in (tmp_path / "stdout").read_text().splitlines()]
    assert events[-1]["directory"] == ""
    assert any("was removed. Its logs and events are lost" in str(event) for event in events)
    shown = closing_lines(decode(ResultDocument, {"run": "r", "exit": 0}))
    assert shown[-1].endswith("(exit 0). Its run directory was removed, and the logs with it")
