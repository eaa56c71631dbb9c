"""allranks profile: traces of ranks that go on, fetched, and read by `overlap`."""

from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 10**6):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    SHOW
"""
SHOWS = PROGRAM.replace("SHOW", 'print("step", step, flush=True)')
SHOWS_NOTHING = PROGRAM.replace("SHOW", 'step == 5 and print("it goes on", flush=True)')


def test_a_rank_that_goes_on_is_profiled_and_goes_on(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, SHOWS, nodes=2)
    wait_until(lambda: "step 20\n" in run.log, BOUND, "steps")
    first = run.ask("profile", "--steps", "3")
    (one,) = first["ranks"]
    assert (one["rank"], one["node"]) == (0, "local0"), "the first rank, where none is named"
    assert one["last_step"] > one["first_step"]
    assert Path(one["trace"]).name == "profile_1_rank_000.json.gz" and Path(one["trace"]).parent.name == "traces"
    (measured,) = first["overlap"]["ranks"]
    assert (measured["rank"], measured["notes"]) == (0, [OF_OPTIMIZER])
    assert len(measured["steps"]) >= 3 and measured["mean"]["computing"] > 0
    assert {kind["name"] for kind in first["overlap"]["collectives"]} == {"all_reduce"}

    both = run.ask("profile", "--rank", "0,1", "--steps", "2")
    assert [Path(one["trace"]).name for one in both["ranks"]] == [f"profile_2_rank_00{rank}.json.gz" for rank in (0, 1)]
    assert [rank["rank"] for rank in both["overlap"]["ranks"]] == [0, 1]
    assert "does not run rank 7 now" in run.ask("profile", "--rank", "7")["error"]

    before = run.log.count("step ")
    wait_until(lambda: run.log.count("step ") > before + 20, BOUND, "steps after it")
    run.end()
    assert "is over: no rank of it runs" in run.ask("profile")["error"]


OF_OPTIMIZER = "no ProfilerStep annotations: a step is from the end of one Optimizer.step to that of the next"


def test_a_program_that_shows_no_step_is_profiled_for_a_time(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, SHOWS_NOTHING, nodes=1)
    wait_until(lambda: "it goes on" in run.log, BOUND, "the start")
    (one,) = run.ask("profile", "--limit", "2s")["ranks"]
    assert (one["first_step"], one["last_step"]) == (None, None)
    assert one["seconds"] >= 2


def test_a_program_without_torch_says_so(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, "import time\nprint('sleeps', flush=True)\ntime.sleep(6000)\n", nodes=1)
    wait_until(lambda: "sleeps" in run.log, BOUND, "the start")
    said = "rank 0 on local0 was not profiled: its runner could not be asked: it has no process group"
    assert run.ask("profile")["error"] == said
