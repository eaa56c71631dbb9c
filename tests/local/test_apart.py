"""A script that gives each node a world of its own never ends with 0."""

import json
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.local.running import BOUND, LocalRun

PROGRAM = """import time
import torch.distributed as d
d.init_process_group("gloo")
d.barrier()
time.sleep(3)
"""
OWN = "--standalone --nproc_per_node 2"
OF_THE_RUN = (
    "--nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node $NPROC_PER_NODE"
    " --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
)


@pytest.mark.parametrize(("options", "code"), [(OWN, 1), (OF_THE_RUN, 0)])
def test_a_script_with_its_own_torchrun(tmp_path: Path, options: str, code: int) -> None:
    (tmp_path / "pg.py").write_text(PROGRAM)
    (tmp_path / "run.sh").write_text(f"{sys.executable} -m torch.distributed.run {options} pg.py\n")
    words = ["run", "--local", "2", "--launcher", "command", "--json", "bash", "run.sh"]
    done = forked.call(words, cwd=tmp_path)
    document = json.loads(done.stdout)
    verdict = document["verdict"]
    assert (done.returncode, verdict and verdict["cause"]) == (code, "nodes-train-apart" if code else None)
    if code:
        assert "--local=2 --nproc=2 pg.py" in verdict["remedy"]


PREPARES = """import os, pathlib, subprocess, sys, time
rank = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29501"}
subprocess.run([sys.executable, "-c", "import time; time.sleep(8)"], env=rank)
while not pathlib.Path("go").exists():
    time.sleep(0.1)
"""


def test_a_controller_that_takes_the_run_over_knows_of_them(tmp_path: Path) -> None:
    """A program may train after what it has started: a warning, until it has ended without."""
    run = LocalRun(tmp_path, PREPARES, "--launcher", "command", "--no-check", command=f"{sys.executable} train.py")
    assert "may train on its own" in run.until("finding")[0]["message"]
    run.process.kill()
    run.process.wait(BOUND)
    (run.work / "go").touch()
    document = run.ask("attach", "--take-over")
    assert (document["exit"], document["verdict"]["cause"]) == (1, "nodes-train-apart")
    assert document["verdict"]["message"].startswith("each node has trained on its own")
