"""run --audit-data on real hosts: the loader that shards by local rank is named, the right one is not."""

import json

import pytest
from tests.hosts.launching import Launch, program

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_a_wrong_loader_is_named_and_a_right_one_is_not(launch: Launch) -> None:
    launch.start(program("v_loaders.py", "right", "wrong"), "--audit-data", "3", nproc=2)
    result = launch.done()
    found = [(f["id"], f["status"], f["message"]) for f in result["findings"] if f.get("check") == "data-audit"]
    text = "loader of Wrong: ranks 0-1 and 2-3 read the same samples: the loader shards by local rank"
    assert ("data-same-samples", "warn", text) in found
    right = [status for _, status, message in found if message.startswith("loader of Right")]
    assert right == ["ok"], found
    assert [e["id"] for e in launch.events("finding") if e.get("check") == "data-audit"].count("data-same-samples") == 1
    folder = launch.run_dir / "evidence" / "audit"
    rows = {path.name for path in folder.glob("rank_*.jsonl")}
    assert rows == {f"rank_00{n}.jsonl" for n in range(4)}
    coverage = json.loads((folder / "audit.json").read_text())["coverage"]
    assert {row["node"] for row in coverage if row["rank"] is not None} == {"h1", "h2"}
    assert launch.log(0) == "read\n"


@pytest.mark.slow
def test_on_audit_stop_ends_it(launch: Launch) -> None:
    launch.start(program("v_loaders.py", "wrong"), "--audit-data", "3", "--on-audit", "stop", nproc=2)
    result = launch.over()
    assert (result["exit"], result["verdict"]["cause"]) == (3, "data-not-split")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_spawned_workers_and_a_forgotten_set_epoch(launch: Launch, launcher: str) -> None:
    launch.start(program("v_loaders.py", "stuck", "1", "spawn"), "--audit-data", "3", "--launcher", launcher, nproc=2)
    result = launch.result()
    found = [(f["id"], f["status"]) for f in result["findings"] if f.get("check") == "data-audit"]
    assert result["exit"] == 0 and found == [("data-set-epoch", "warn")], result


EPOCH = """
import os
from torch.utils.data import DataLoader, DistributedSampler
data = list(range(1003))
sampler = DistributedSampler(data, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
print(sum(1 for _ in DataLoader(data, 4, sampler=sampler)), sum(1 for _ in DataLoader(data, 4)), flush=True)
"""


@pytest.mark.slow
def test_ranks_take_the_steps_that_the_plan_has(launch: Launch) -> None:
    """The steps of an epoch on one host and on two, split and not, as real ranks count them."""
    (launch.work / "epoch.py").write_text(EPOCH)
    plan = ["data", "plan", "--samples", "1003", "--batch", "4", "--gpus-per-node", "2"]
    split = {}
    for nodes in (1, 2):
        assert launch.start(["epoch.py"], "--nodes", str(nodes), nproc=2).result()["exit"] == 0
        counted = {launch.log(rank) for rank in range(2 * nodes)}
        assert len(counted) == 1, counted
        split[nodes], whole = map(int, counted.pop().split())
        seen = launch.call(*plan, "--nodes", str(nodes), "--observed-steps", str(split[nodes]), "--json")
        assert (seen.returncode, json.loads(seen.stdout)["observed"]["fits"]) == (0, True)
        seen = launch.call(*plan, "--nodes", str(nodes), "--observed-steps", str(whole))
        assert seen.returncode == 3 and "not sharded: every rank reads everything" in seen.stdout
    table = launch.call(*plan, "--nodes", "1,2", "--epochs", "5", "--step-time", "2s", "--json")
    rows = json.loads(table.stdout)["plan"]
    assert [row["steps"] for row in rows] == [split[1], split[2]] == [126, 63]
