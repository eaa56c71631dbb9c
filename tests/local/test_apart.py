"""A script that gives each node a world of its own, or hides what failed, never ends with 0."""

import json
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.local.running import BOUND, LocalRun
from tests.ports import free_port

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


def test_a_script_whose_training_makes_the_world_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "run.sh").write_text(f"{sys.executable} train.py | tee log\n")
    done = forked.call(["run", "--local", "2", "--nproc", "1", "--json", "bash", "run.sh"], cwd=tmp_path)
    assert done.returncode == 0 and "process group" not in done.stderr, done.stderr


FAILS = PROGRAM.replace("time.sleep(3)", "d.destroy_process_group()\nraise ValueError('bad batch')")
TORCHRUN = f"{{}} -m torch.distributed.run {OF_THE_RUN} train.py | cat"


@pytest.mark.parametrize(
    ("how", "launcher", "cause", "words"),
    [
        ("{} train.py 2>&1 | tee log; echo over", "direct", "program-exception", "raised ValueError: bad batch"),
        (TORCHRUN, "command", "program-exception", "raised ValueError: bad batch"),
        (TORCHRUN, "direct", "bad-launch-arguments", "argument --nnodes: expected one argument"),
        ("no-such-python train.py | cat", "direct", "remote-path-missing", "no-such-python: "),
        ("{} -m no_such_module | cat", "direct", "missing-module", "no_such_module"),
        ("{} no_such.py | cat", "direct", "remote-path-missing", "no_such.py"),
    ],
)
def test_a_script_that_hides_what_failed(tmp_path: Path, how: str, launcher: str, cause: str, words: str) -> None:
    """A pipe ends with the code of its last command. Live and from its files the verdict is the same."""
    (tmp_path / "train.py").write_text(FAILS)
    (tmp_path / "run.sh").write_text(how.format(sys.executable) + "\n")
    options = ["--local", "2", "--nproc", "1", "--launcher", launcher, "--json"]
    done = forked.call(["run", *options, "bash", "run.sh"], cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict and verdict["cause"]) == (1, cause), done.stdout
    assert words in verdict["message"] and "`set -eo pipefail`" in verdict["message"]
    run = next((tmp_path / "runs").glob("run-*"))
    saved = json.loads(forked.call(["diagnose", str(run), "--json"], cwd=tmp_path).stdout)
    assert saved["message"] == verdict["message"]


SPAWNS = """import os, time, torch.distributed, torch.multiprocessing
def work(rank):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ["PORT" + os.environ["RANK"]])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.distributed.barrier()
    time.sleep(1)
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
"""


def test_a_program_that_starts_the_processes_of_its_node_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    ports = [f"--env=PORT{rank}={free_port()}" for rank in range(2)]
    done = forked.call(["run", "--local", "2", "--nproc", "1", *ports, "--json", "train.py"], cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["cause"]) == (1, "nodes-train-apart")
    assert "torch.multiprocessing.spawn" in verdict["remedy"]


@pytest.mark.parametrize("how", ["{} train.py &", "setsid nohup {} train.py > out 2>&1 < /dev/null &\ndisown"])
def test_a_script_that_puts_its_training_into_the_background(tmp_path: Path, how: str) -> None:
    """The training ends with the script, at once: that is no success."""
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    (tmp_path / "run.sh").write_text(how.format(sys.executable) + "\n")
    done = forked.call(["run", "--local", "1", "--launcher", "command", "--json", "bash", "run.sh"], cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["cause"]) == (1, "rank-exited-early")
    assert "in the background, which was ended with it" in verdict["message"]


LEAVES = """import os, subprocess, sys, time
if os.fork() == 0:  # as a worker of a data loader: it ends a moment later
    time.sleep(1)
    os._exit(0)
if "program" in sys.argv:
    subprocess.Popen([sys.executable, "other.py"])
"""


@pytest.mark.parametrize(("word", "code"), [("program", 1), ("workers", 0)])
def test_a_program_that_leaves_another_one_in_the_background(tmp_path: Path, word: str, code: int) -> None:
    (tmp_path / "train.py").write_text(LEAVES)
    (tmp_path / "other.py").write_text("import time; time.sleep(600)")
    done = forked.call(["run", "--local", "1", "--nproc", "1", "--json", "train.py", word], cwd=tmp_path)
    assert done.returncode == code, done.stdout


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
