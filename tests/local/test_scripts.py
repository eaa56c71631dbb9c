"""The training below a script of the user's, which starts it or a launcher: it is looked at in the script's place."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.control_groups import small_control_group

pytestmark = pytest.mark.torch

HANGS = """import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(10**6):
    if step == 5 and dist.get_rank() + 1 == dist.get_world_size():
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
    time.sleep(0.05)
"""
PLAIN = "{} train.py | tee log"
TORCHRUN = (
    "{} -m torch.distributed.run --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node $NPROC_PER_NODE"
    " --master_addr $MASTER_ADDR --master_port $MASTER_PORT train.py"
)


LEFT = """import os, pathlib, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
pathlib.Path("joined_" + os.environ["RANK"]).touch()
time.sleep(600)
"""


def test_a_script_that_ends_before_its_training(tmp_path: Path) -> None:
    """The training ends with the script: that is no success, however late it comes."""
    (tmp_path / "train.py").write_text(LEFT)
    wait = "until [ -e joined_$RANK ]; do sleep 0.1; done; sleep 3"  # the agent looks once a second
    (tmp_path / "run.sh").write_text(f"{sys.executable} train.py &\n{wait}\n")
    done = forked.call(["run", "--local", "2", "--nproc", "1", "--json", "bash", "run.sh"], cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["cause"]) == (1, "rank-exited-early"), verdict
    assert "train.py` in the background, which was ended with it" in verdict["message"]


RAISES = """import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 3:
    raise ValueError("bad batch")
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(("nproc", "named"), [("2", 3), ("1", 1)])
def test_the_rank_of_a_torchrun_that_raises_is_named(tmp_path: Path, nproc: str, named: int) -> None:
    """By its own number, or by that of its node where other ranks were planned. `logs` finds it by that."""
    (tmp_path / "train.py").write_text(RAISES)
    (tmp_path / "run.sh").write_text(TORCHRUN.format(sys.executable).replace("$NPROC_PER_NODE", "2") + "\n")
    words = ["run", "--local", "2", "--nproc", nproc, "--launcher", "command", "--json", "bash", "run.sh"]
    done = forked.call(words, cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["cause"]) == (1, "program-exception"), verdict
    assert verdict["message"].startswith(f"rank {named} on local1 raised ValueError: bad batch (train.py:6")
    run = next((tmp_path / "runs").glob("run-*"))
    assert "bad batch" in forked.call(["logs", "--rank", str(named), str(run)], cwd=tmp_path).stdout


ENDED = """import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() + 1 == dist.get_world_size():
    if len(sys.argv) == 1:
        os.kill(os.getpid(), 9)
    open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
    held = [bytearray(1 << 20) for _ in range(10**6)]
dist.all_reduce(torch.ones(1))
"""


def behind_a_pipe(place: Path, nodes: int, argument: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the result of a script whose last rank is ended by a signal, which its pipe hides."""
    (place / "train.py").write_text(ENDED)
    (place / "run.sh").write_text(f"{sys.executable} train.py {argument} | tee log\n")
    done = forked.call(["run", "--local", str(nodes), "--nproc", "1", "--json", "bash", "run.sh"], cwd=place)
    return done.returncode, json.loads(done.stdout)


def test_a_kill_behind_a_pipe_is_told_as_what_a_pipe_hides(tmp_path: Path) -> None:
    code, result = behind_a_pipe(tmp_path, 2, "")
    verdict = result["verdict"]
    assert (code, verdict["cause"], verdict["where"]["rank"]) == (1, "rank-exited-early", 1), verdict
    assert "what a signal has ended in a pipe: see its pipes" in verdict["message"]


def test_a_lack_of_memory_behind_a_pipe_is_named(tmp_path: Path) -> None:
    """It was `ended with code 0 while rank 0 was still communicating`; on one node `done`, without a word."""
    with small_control_group() as group:
        code, result = behind_a_pipe(tmp_path, 2, str(group))
        verdict = result["verdict"]
        assert (code, verdict["cause"], verdict["where"]["rank"]) == (1, "host-out-of-memory", 1), verdict
        code, result = behind_a_pipe(tmp_path, 1, str(group))
        (finding,) = result["findings"]
        assert (code, finding["id"], finding["status"]) == (0, "host-out-of-memory", "warn"), result


TO_FILE = {
    "script": "{python} train.py > out_$RANK.log 2>&1",
    "errors-alone": "{python} train.py 2> out_$RANK.log",
    "whole-script": "exec >> out_$RANK.log 2>&1\n{python} train.py\necho done",
    "torchrun": TORCHRUN.replace("{}", "{python}") + " > out_$NODE_RANK.log 2>&1",
}


@pytest.mark.parametrize("script", TO_FILE)
def test_what_a_script_writes_to_a_file_is_read_at_its_end(tmp_path: Path, script: str) -> None:
    """Such a rank had `ended with code 1 and printed nothing`, and where the script ended with 0 the run was done."""
    is_torchrun = script == "torchrun"
    (tmp_path / "train.py").write_text(RAISES.replace("== 3", "+ 1 == dist.get_world_size()"))
    (tmp_path / "run.sh").write_text(TO_FILE[script].format(python=sys.executable) + "\n")
    options = ["--nproc", "2", "--launcher", "command"] if is_torchrun else ["--nproc", "1"]
    done = forked.call(["run", "--local", "2", *options, "--json", "bash", "run.sh"], cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["cause"]) == (1, "program-exception"), verdict
    named = 3 if is_torchrun else 1
    assert verdict["message"].startswith(f"rank {named} on local1 raised ValueError: bad batch (train.py:6"), verdict
    run = next((tmp_path / "runs").glob("run-*"))
    log = forked.call(["logs", "--rank", str(named), str(run)], cwd=tmp_path).stdout
    assert f"[allranks] the end of {tmp_path}/out_1.log, to which its command writes" in log


def test_what_was_in_that_file_before_says_nothing(tmp_path: Path) -> None:
    old = "Traceback (most recent call last):\n  File \"old.py\", line 1, in <module>\nKeyError: 'old'\n"
    (tmp_path / "out_0.log").write_text(old)
    (tmp_path / "train.py").write_text(ENDED)
    (tmp_path / "run.sh").write_text(f"{sys.executable} train.py >> out_$RANK.log 2>&1\nexit 3\n")
    done = forked.call(["run", "--local", "1", "--nproc", "1", "--json", "bash", "run.sh"], cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert done.returncode == 1 and "KeyError" not in verdict["message"], verdict
    assert "ended with code 3" in verdict["message"], verdict


@pytest.mark.parametrize(
    ("script", "options", "last"),
    [(PLAIN, ["--nproc", "1"], 1), (TORCHRUN, ["--nproc", "2", "--launcher", "command"], 3)],
)
def test_a_hang_is_named(tmp_path: Path, script: str, options: list[str], last: int) -> None:
    (tmp_path / "train.py").write_text(HANGS)
    (tmp_path / "run.sh").write_text(script.format(sys.executable) + "\n")
    words = ["run", "--local", "2", *options, "--hang-timeout", "5s", "--json", "bash", "run.sh"]
    done = forked.call(words, cwd=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["cause"]) == (5, "straggler"), verdict
    assert verdict["message"].startswith(f"rank {last} on local1 is at train.py:7 (sleeping)")
