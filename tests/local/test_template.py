"""A run whose further attempts are forked from a process that has imported torch once, and what ends that."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

from allranks.agent.processes import descendants, read_process

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import json, os, pathlib, sys, time
import torch
import torch.distributed as dist
fresh = "torch.nn.parallel.distributed" not in sys.modules or "torch._dynamo" not in sys.modules
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
attempt, rank = (int(os.environ[name]) for name in ("ALLRANKS_ATTEMPT", "RANK"))
facts = {
    "fresh": fresh, "pid": os.getpid(), "parent": os.getppid(), "random": torch.rand(1).item(),
    "attempt": attempt, "error": os.environ["TORCHELASTIC_ERROR_FILE"],
    "words": pathlib.Path("/proc/self/cmdline").read_text().split(chr(0)), "limit": os.environ["OMP_NUM_THREADS"],
}
pathlib.Path(f"facts-{attempt}-{rank}").write_text(json.dumps(facts))
step = 0
while True:
    model(torch.ones(1, 4)).sum().backward()
    print("step", 100 * attempt + step, flush=True)
    step += 1
    time.sleep(0.05)
    stop = torch.tensor([pathlib.Path(f"end-{attempt}").exists() * 1])
    dist.all_reduce(stop)
    if stop:
        break
dist.destroy_process_group()
"""


def facts(run: LocalRun, attempt: int) -> list[dict[str, Any]]:
    """What the two ranks of an attempt have written, once both train."""
    paths = [run.work / f"facts-{attempt}-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("}") for path in paths), BOUND, "ranks train")
    return [json.loads(path.read_text()) for path in paths]


def test_further_attempts_come_from_the_template_until_it_dies(tmp_path: Path) -> None:
    run = LocalRun(
        tmp_path, PROGRAM, "--retries", "3", "--preload", "retries", "--step-pattern", "step (\\d+)", "--nproc", "2",
        nodes=1,
    )  # fmt: skip
    first = facts(run, 0)
    assert all(rank["fresh"] for rank in first)
    ready = run.until("template")[0]
    assert ready["state"] == "ready" and ready["node"] == "local0" and ready["modules"] > 500
    agent = first[0]["parent"]
    (template,) = [p.pid for p in descendants([agent]) if p.pid not in {r["pid"] for r in first}]

    os.kill(first[1]["pid"], signal.SIGKILL)
    second = facts(run, 1)
    assert not any(rank["fresh"] for rank in second)
    assert {rank["parent"] for rank in second} == {agent}
    assert len({rank["random"] for rank in first + second}) == 4
    assert [rank["words"] for rank in second] == [rank["words"] for rank in first]
    assert {rank["attempt"] for rank in second} == {1} and {rank["limit"] for rank in second} == {"1"}
    assert all("error_a1_rank_00" in rank["error"] for rank in second)
    assert [(e["attempt"], e["state"], e["ranks"]) for e in run.until("template", 2)[1:]] == [(1, "used", 2)]
    assert read_process(template) is not None, "it serves further attempts"

    os.kill(template, signal.SIGKILL)
    lost = run.until("template", 3)[2]
    assert (lost["state"], lost["why"]) == ("off", "the process that imports ended: it printed nothing")
    os.kill(second[0]["pid"], signal.SIGKILL)
    third = facts(run, 2)
    assert all(rank["fresh"] for rank in third)
    run.until("template", 4)
    (template,) = [p.pid for p in descendants([agent]) if p.pid not in {r["pid"] for r in third}]
    (run.work / "end-2").touch()
    assert run.result()["exit"] == 0
    wait_until(lambda: read_process(template) is None and read_process(agent) is None, BOUND, "nothing is left")


def finished(run: LocalRun, attempt: int = 0) -> list[dict[str, Any]]:
    """Let an attempt end, and give the events of its templates."""
    (run.work / f"end-{attempt}").touch()
    assert run.result()["exit"] == 0
    events = run.events("template")
    shutil.rmtree(run.runs)
    for path in (*run.work.glob("facts-*"), *run.work.glob("end-*")):
        path.unlink()
    return events


def test_a_second_run_is_forked_until_its_script_changes(tmp_path: Path) -> None:
    def start(*options: str, program: str = PROGRAM) -> LocalRun:
        words = ("--nproc", "2", "--no-check", *options)
        return LocalRun(tmp_path, program, *words, nodes=1, XDG_CACHE_HOME=str(tmp_path / "cache"))

    run = start()
    assert all(rank["fresh"] for rank in facts(run, 0))
    records = tmp_path / "cache/allranks/imports"
    wait_until(lambda: list(records.glob("*.json")), BOUND, "what it imports is kept")
    assert finished(run) == []
    run = start()
    ranks = facts(run, 0)
    assert not any(rank["fresh"] for rank in ranks) and ranks[0]["random"] != ranks[1]["random"]
    assert [(e["state"], e["attempt"]) for e in finished(run)] == [("ready", 0), ("used", 0)]

    run = start("--no-preload")
    assert all(rank["fresh"] for rank in facts(run, 0))
    assert finished(run) == []

    run = start(program=PROGRAM + "# edited\n")
    assert all(rank["fresh"] for rank in facts(run, 0))
    (off,) = finished(run)
    assert (off["state"], off["why"]) == ("off", f"{run.work}/train.py has changed since the run that is on record")


def test_torch_alone_is_imported_where_that_is_asked_for(tmp_path: Path) -> None:
    program = "import sys\nbefore = 'torch' in sys.modules\n" + PROGRAM.replace('"fresh": fresh', '"fresh": not before')
    run = LocalRun(
        tmp_path, program, "--nproc", "2", "--no-check", "--preload", "torch", nodes=1, XDG_CACHE_HOME=str(tmp_path)
    )
    assert not any(rank["fresh"] for rank in facts(run, 0))
    assert [(e["state"], e["attempt"]) for e in finished(run)] == [("ready", 0), ("used", 0)]
