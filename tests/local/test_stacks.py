"""allranks stacks: what the ranks of a run that goes on do, which they do not notice."""

from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def wait():
    print("slept", time.sleep(600))
for step in range(1, 10**6):
    if os.path.exists("halt") and step > 20 and dist.get_rank() == 1:
        wait()
    time.sleep(0.02)
    dist.all_reduce(torch.ones(1024))
    print("step", step, flush=True)
"""


def test_a_run_that_goes_on_is_seen_and_goes_on(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, PROGRAM, "--hang-timeout", "0", nodes=3)
    wait_until(lambda: "step 5" in run.log, BOUND, "steps")
    moving = run.ask("stacks")
    assert [rank["rank"] for rank in moving["ranks"]] == [0, 1, 2] and "errors" not in moving
    assert all("all_reduce #" in rank["collective"] and rank["stack"] for rank in moving["ranks"]), moving
    assert not list(run.directory.glob("evidence/stacks/*")), "a look keeps nothing"

    (run.work / "halt").touch()
    settled = [([1], "sleeping"), ([0, 2], "in all_reduce")]  # before, ranks sleep in turn after each step
    wait_until(lambda: [(g["ranks"], g["does"]) for g in run.ask("stacks")["groups"]] == settled, BOUND, "who sleeps")
    wait_until(lambda: run.ask("stacks")["groups"][0]["at"] == "train.py:7 in wait", BOUND, "where it sleeps")
    seen = run.ask("stacks", "--dump")
    odd, others = seen["groups"]
    assert (odd["ranks"], odd["at"]) == ([1], "train.py:7 in wait"), "the odd rank comes first"
    assert (others["ranks"], others["at"]) == ([0, 2], "train.py:12")
    first, second, _ = seen["ranks"]
    number = second["step"] + 1
    assert (first["collective"], first["is_done"]) == (f"all_reduce #{number} of 4 KB", False)
    assert (second["collective"], second["is_done"]) == (f"all_reduce #{second['step']} of 4 KB", True)
    for kind, suffix in (("stacks", "txt"), ("flight", "jsonl")):
        kept = sorted(path.name for path in Path(seen["evidence"], kind).iterdir())
        assert kept == [f"rank_00{rank}.{suffix}" for rank in range(3)]
    one = run.ask("stacks", "--rank", "1")
    assert [rank["rank"] for rank in one["ranks"]] == [1]
    assert run.ask("stacks", "--rank", "7")["error"].startswith("rank 7 of ")
    assert "slept" not in run.log, "a look ends no sleep"
    assert run.events("hang-suspected") == []

    run.end()
    assert "is over: no rank of it runs" in run.ask("stacks")["error"]


def test_a_rank_that_torchrun_has_started_is_found_by_its_number(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, PROGRAM, "--launcher", "torchrun", "--nproc", "2", "--hang-timeout", "0")
    wait_until(lambda: "step 5" in run.log, BOUND, "steps")
    everyone = run.ask("stacks")
    assert [(rank["rank"], rank["node"]) for rank in everyone["ranks"]] == [
        (0, "local0"), (1, "local0"), (2, "local1"), (3, "local1")]  # fmt: skip
    for number in (0, 3):
        assert [rank["rank"] for rank in run.ask("stacks", "--rank", str(number))["ranks"]] == [number]
    assert run.ask("stacks", "--rank", "7")["error"].startswith("rank 7 of ")
    assert [rank["rank"] for rank in run.ask("profile", "--rank", "3", "--steps", "1")["ranks"]] == [3]
