"""The batch script, whole; and that Slurm's own sbatch takes it where one is here (tests/slurm)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allranks.cluster import Cluster, Node
from allranks.plan.plan import make_plan
from allranks.plan.render import RENDERERS, Request
from allranks.plan.render.slurm import batch_script
from allranks.settings import RunSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"
SPECS = {
    "plain": RunSpec(command=("train.py",), nodes=4),
    "full": RunSpec(
        command=("train.py", "--epochs", "3", "--note", "it's"), name="demo", nodes=16, nproc=8, partition="gpu,long",
        sbatch=("--gres=gpu:8 --time=1-00:00:00", "--comment='two words'"), python="/opt/env/bin/python",
        workdir="/shared/my project", runs_dir="/shared/runs", env={"OMP_NUM_THREADS": "8", "MY_TOKEN": "sesame"},
        forward=("WANDB_API_KEY",), prelude="module load cuda\nsource env.sh", stop_grace=120.0, retries=3,
        pg_timeout=1800.0, network="10.0.0.0/16",
    ),
}  # fmt: skip


def request(name: str) -> Request:
    spec = SPECS[name]
    nodes = tuple(Node(i, f"node{i}", f"node{i}") for i in range(spec.nodes or 1))
    plan = make_plan(spec, Cluster(nodes, "--nodes"), {})
    return Request(spec, plan, "/home/me/work", allranks=("/opt/allranks/bin/python", "-m", "allranks"))


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("ALLRANKS_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"ALLRANKS_GOLDEN=1 writes {path} anew"


@pytest.mark.parametrize("name", SPECS)
def test_golden(name: str) -> None:
    files = RENDERERS["slurm"].render(request(name))
    assert files == RENDERERS["slurm"].render(request(name))
    golden(f"{name}.sh", files["job.sh"])
    assert "sesame" not in files["job.sh"]


def test_golden_of_a_submitted_run() -> None:
    golden("submitted.sh", batch_script(request("plain"), "/home/me/work/runs/run-20261121-120000"))
