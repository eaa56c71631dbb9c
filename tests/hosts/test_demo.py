"""The main job: the same command on real hosts gives the same losses as on virtual nodes of this machine."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import PYTHON, Launch

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parents[2] / "examples" / "train_lm.py"
RANKS = 4
JOB = [str(SCRIPT), "--steps", "4", "--batch", "2", "--context", "64", "--layers", "2", "--width", "64"]


def losses(run_dir: Path) -> list[list[tuple[int, float, float]]]:
    """Step, mean loss and own loss of every rank, as its metrics have them."""
    found = []
    for rank in range(RANKS):
        lines = (run_dir / "outputs" / f"rank_{rank:02d}_metrics.jsonl").read_text().splitlines()
        found.append([(e["step"], e["loss"], e["rank_loss"]) for e in map(json.loads, lines)])
    return found


@pytest.mark.slow
def test_ssh_hosts_and_virtual_nodes_train_alike(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path / "hosts").start(JOB, nproc=2)
    local = Launch(bed2, tmp_path / "local")
    # One after the other: both have the machine's two cores to themselves.
    result = launch.result()
    assert (result["exit"], result["verdict"]) == (0, None)
    done = local.call("run", "--local", "2", "--nproc", "2", "--python", PYTHON, "--json", "--", *JOB)
    assert isinstance(done, subprocess.CompletedProcess) and done.returncode == 0, done.stderr
    found = losses(launch.run_dir)
    assert found == losses(local.run_dir), "bit for bit"
    assert [step for step, _, _ in found[0]] == [1, 2, 3, 4]
    assert len({own for _, _, own in (rank[0] for rank in found)}) == RANKS, "every rank has data of its own"
    assert found[0][-1][1] < found[0][0][1], "the loss falls"
    for told in (result, json.loads(done.stdout)):
        assert told["timing"]["initialised"] <= told["timing"]["first_step"] <= told["timing"]["total"]
    for run in (launch, local):
        assert "step 4/4 loss" in run.log(0)
        assert len(run.events("rank-initialised")) == RANKS and run.events("first-step")
        assert run.alive() == []
    # the checkpoint never travels: it lies where rank 0 ran
    assert not list((launch.run_dir / "outputs").rglob("*.pt"))
    master = bed2.host("h1")
    place = result["outputs"]["h1"]
    assert "latest.pt" in master.run(["ls", f"{place}/checkpoints"]).stdout
    assert (local.run_dir / "outputs" / "checkpoints" / "latest.pt").exists()
    master.run(["rm", "-r", str(Path(place).parent)])
