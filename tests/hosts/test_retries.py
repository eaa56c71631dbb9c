"""--retries: the whole gang again, attempts kept apart, and where no further attempt makes sense."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.waiting import wait_until
from tests.processes import parent_of


def outcomes(result: dict[str, Any]) -> list[tuple[int, str]]:
    return [(a["attempt"], a["outcome"]) for a in result["attempts"]]


def said(launch: Launch, attempt: int, rank: int = 1) -> re.Match[str]:
    """What a rank said at the start of an attempt."""
    found = re.match(r"attempt (\d+) of (\d+) port (\d+) resumes at (\d+) in (\S+)\n", launch.log(rank, attempt))
    assert found, launch.log(rank, attempt)
    return found


def test_two_failures_and_a_success(launch: Launch) -> None:
    result = launch.start(program("v_retry.py", "2"), "--retries", "2").done()
    assert outcomes(result) == [(0, "failed"), (1, "failed"), (2, "done")]
    for number, attempt in enumerate(result["attempts"][:2]):
        assert f"fails on attempt {number}" in attempt["verdict"]["message"]
        assert (attempt["verdict"]["attempt"], attempt["verdict"]["where"]["rank"]) == (number, 1)
    starts = [said(launch, number) for number in range(3)]
    assert [s[1] for s in starts] == ["0", "1", "2"] and {s[2] for s in starts} == {"2"}
    assert len({s[3] for s in starts}) == 3, "each attempt takes a new port"
    assert [s[4] for s in starts] == ["0", "10", "20"], "it resumes from what the last attempt left"
    assert len({s[5] for s in starts}) == 1, "in an output directory that stays the same"
    assert "fails on attempt 0" in launch.log(1, 0) and "fails on" not in launch.log(1, 2)
    assert launch.log(1, 2).endswith("done\n")
    assert [e["attempt"] for e in launch.events("attempt-start")] == [0, 1, 2]
    assert [(e["attempt"], e["outcome"]) for e in launch.events("attempt-end")] == outcomes(result)


def test_retries_are_exhausted(launch: Launch) -> None:
    """MAX_RETRIES is the name that scripts have for it."""
    result = launch.start(program("v_retry.py", "9"), env={"MAX_RETRIES": "1"}).over()
    assert result["exit"] == 1
    assert outcomes(result) == [(0, "failed"), (1, "failed")]
    assert result["verdict"]["attempt"] == 1 and "fails on attempt 1" in result["verdict"]["message"]
    assert result["verdict"] == result["attempts"][1]["verdict"]
    assert "note: retries 1 (from MAX_RETRIES)\n" in launch.stderr


def test_ctrl_c_in_a_further_attempt(launch: Launch) -> None:
    launch.start(program("v_retry.py", "9", "once"), "--retries", "5").until_running(2)
    os.kill(launch.rank_pid(1), signal.SIGKILL)
    launch.until("rank-started", 4)
    launch.signal(signal.SIGINT)
    result = launch.over()
    assert result["exit"] == 130
    assert outcomes(result) == [(0, "failed"), (1, "stopped")]


def test_a_port_that_another_program_took_first_costs_no_attempt(launch: Launch) -> None:
    result = launch.start(program("v_retry.py", "1", "port")).done()
    assert [a["outcome"] for a in result["attempts"]] == ["done"]
    first, second = said(launch, 0), said(launch, 1)
    assert first[3] != second[3]
    assert (first[1], second[1]) == ("0", "0"), "the program is not told of a restart"
    assert any("was taken" in str(e.get("message")) for e in launch.events("note"))


def test_a_run_that_was_taken_over_is_tried_again(launch: Launch) -> None:
    """Its agents have kept what the ranks were started with: of a secret nothing is in the run directory."""
    secret = "s3cret-of-the-first-controller"
    launch.start(program("v_retry.py", "9", "wait"), "--retries", "1", "--env", f"API_TOKEN={secret}").until_running(2)
    launch.kill_launcher()
    launch.begin("attach", "--json", cwd=launch.place)
    launch.until("controller-attached")
    os.kill(launch.rank_pid(1), signal.SIGKILL)
    wait_until(lambda: [e["attempt"] for e in launch.events("rank-started")].count(1) == 2, BOUND, "attempt 1")
    restarted = launch.rank_pid(1)
    assert f"API_TOKEN={secret}".encode() in Path(f"/proc/{restarted}/environ").read_bytes().split(b"\0")
    metrics = launch.run_dir / "outputs" / "rank_01_metrics.jsonl"
    wait_until(lambda: '"attempt": 1' in metrics.read_text(), BOUND, "a step of attempt 1")
    os.kill(restarted, signal.SIGKILL)
    result = launch.over()
    assert outcomes(result) == [(0, "failed"), (1, "failed")], result
    assert result["attempts"][1]["reason"].startswith("the retry is used up"), result
    assert "attempt 1 of 1" in launch.log(1, 1)
    for path in launch.run_dir.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("who", ["agent", pytest.param("supervisor", marks=pytest.mark.slow)])
def test_a_new_agent_where_agent_or_supervisor_was_killed(launch: Launch, who: str) -> None:
    """Nothing would watch over the ranks of that node, and no spare is there: it is reached again."""
    launch.start(program("v_retry.py", "1", "wait"), "--retries", "3").until_running(2)
    metrics_file = launch.run_dir / "outputs" / "rank_01_metrics.jsonl"
    wait_until(lambda: metrics_file.exists() and metrics_file.stat().st_size, BOUND, "metrics of attempt 0")
    agent = launch.agent_pid(1)
    supervisor = parent_of(agent)
    os.kill(agent if who == "agent" else supervisor, signal.SIGKILL)
    result = launch.done()
    assert outcomes(result) == [(0, "failed"), (1, "done")]
    first = result["attempts"][0]
    assert first["culprit"] == {"node": "h2"} and "(--spares 0): allranks connects to h2 again" in first["reason"]
    assert launch.log(1, 1).endswith("done\n")
    metrics = metrics_file.read_text().splitlines()
    assert [json.loads(line)["attempt"] for line in metrics] == [0, 1], "one file, whichever agent sent it"


@pytest.mark.parametrize(
    ("how", "seen", "says"),
    [
        ("bug", [(0, "failed")], "the program's own fault comes again at the same place"),
        ("stuck", [(0, "failed"), (1, "failed")], "rank-killed came again at step 10"),
        pytest.param(
            "code", [(0, "failed"), (1, "failed"), (2, "failed")], "the 2 retries are used up", marks=pytest.mark.slow
        ),
    ],
)
def test_by_cause(launch: Launch, how: str, seen: list[tuple[int, str]], says: str) -> None:
    result = launch.start(program("v_retry.py", "9", how), "--retries", "2", json_=how != "bug").end()
    assert (result["exit"], outcomes(result)) == (1, seen), result["attempts"]
    assert says in result["attempts"][-1]["reason"] and says in result["verdict"]["decision"]
    assert [a["step"] for a in result["attempts"]] == ([10, 10] if how == "stuck" else [10, 20, 30][: len(seen)])
    causes = {"bug": "program-exception", "stuck": "rank-killed", "code": "rank-exited-early"}
    assert result["verdict"]["cause"] == causes[how]
    if how == "bug":
        assert "  next    not tried again: the program's own fault" in launch.stdout
    assert launch.alive() == []


HANGS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(6):
    if step == 3 and dist.get_rank() == 1 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]):
        time.sleep(600)
    dist.all_reduce(torch.ones(10))
    print("step", step, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("times", "code", "seen"), [("1", 0, ["failed", "done"]), ("9", 5, ["failed", "failed"])])
def test_a_hang_is_restarted_where_that_was_asked_for(launch: Launch, times: str, code: int, seen: list[str]) -> None:
    (launch.work / "hangs.py").write_text(HANGS)
    options = ("--retries", "3", "--on-hang", "restart", "--hang-timeout", "6s", "--step-pattern", r"step (\d+)")
    result = launch.start(["hangs.py", times], *options).over(4 * BOUND)
    assert (result["exit"], [a["outcome"] for a in result["attempts"]]) == (code, seen), result
    assert "--on-hang restart is set" in result["attempts"][0]["reason"]
    if code:
        assert "came again at step 2" in result["attempts"][1]["reason"]


# -- a first start ---------------------------------------------------------------------------------


def test_a_host_that_answers_at_the_second_try(bed2: Bed, launch: Launch) -> None:
    """sshd is not up yet, as after a reboot."""
    bed2.host("h2").reject_port(22)
    launch.start(program("tell.py"), "--retries", "3")
    (again,) = launch.until("retry")
    assert again["reason"].endswith("(--spares 0): allranks connects to h2 again. The next attempt begins in 2 s")
    bed2.host("h2").clear_network_faults()
    result = launch.done()
    assert outcomes(result) == [(0, "failed"), (1, "done")]
    assert result["attempts"][0]["cause"] == "ssh-unreachable"
    assert launch.all_gone()


def test_ctrl_c_in_the_pause_before_another_try(bed2: Bed, launch: Launch) -> None:
    bed2.host("h2").reject_port(22)
    launch.start(program("tell.py"), "--retries", "9")
    launch.until("retry", 2)
    launch.signal(signal.SIGINT)
    result = launch.result()
    assert (result["exit"], outcomes(result)[-1]) == (130, (2, "stopped"))
    assert launch.all_gone()
