"""accelerate, deepspeed and ColossalAI for real, over Gloo, on two hosts: where they are installed.

`make test-launchers` installs them beside torch, in an environment of their own, and runs this file; elsewhere
ALLRANKS_LAUNCHERS_PYTHON names an interpreter that has them.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.launching import PYTHON, Launch, program
from tests.hosts.test_launchers import all_logs, initialised

INTERPRETER = os.environ.get("ALLRANKS_LAUNCHERS_PYTHON") or sys.executable
EXAMPLES = Path(__file__).parents[2] / "examples"
BOUND = 900.0  # seconds: deepspeed builds an extension the first time, minutes on a busy machine
BUILT = ["--env", f"TORCH_EXTENSIONS_DIR={Path(INTERPRETER).parent.parent / 'torch_extensions'}"]
ASK = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


@cache
def has(package: str) -> bool:
    return subprocess.run([INTERPRETER, "-c", ASK, package], timeout=60).returncode == 0


def need(package: str) -> None:
    if not (has(package) and has("torch")):
        pytest.skip(f"{package} is not installed for {INTERPRETER}; make test-launchers installs it")


def run(launch: Launch, launcher: str | None, command: list[str], *options: str, nproc: int = 2) -> dict[str, Any]:
    words = ["--launcher", launcher] if launcher is not None else []
    words += BUILT if launcher == "deepspeed" else []
    launch.start(command, *words, *options, nproc=nproc, python=INTERPRETER)
    assert launch.process is not None
    launch.process.wait(BOUND)
    result = launch.result()
    assert launch.alive() == []
    return result


def place_of(result: dict[str, Any]) -> tuple[str, int]:
    return result["verdict"]["where"]["node"], result["verdict"]["where"]["rank"]


def check_end(launch: Launch, result: dict[str, Any], expected: dict[str, Any]) -> None:
    """How the rank ended, where the agent looked before its launcher had reaped it: on a busy machine it may not."""
    seen = [e for e in launch.events("rank-exit") if e["rank"] == expected["rank"] and not e["expected"]]
    assert not seen or result["program_exit"] == expected


# -- accelerate --------------------------------------------------------------------------------------

TRAP = ["accelerate", "launch", "--cpu", "--num_machines", "2", "--num_processes", "4", "--machine_rank", "0"]


def trap(launch: Launch, *options: str) -> list[str]:
    """What looks right: each machine starts one process that knows of no other, and all end with 0."""
    master = launch.bed.hosts[0].address
    head = [str(Path(INTERPRETER).parent / "accelerate"), *TRAP[1:], "--main_process_ip", master]
    return [*head, "--main_process_port", "29511", *options, *program("v_accelerate.py", "train")]


def test_accelerate(launch: Launch) -> None:
    """The command as people have it: its figures are replaced by those of the run."""
    need("accelerate")
    result = run(launch, None, trap(launch), "--master-port", "29511")
    assert (result["exit"], result["verdict"]) == (0, None)
    said = all_logs(launch)
    assert all(f"rank {rank} of 4: sum 10" in said for rank in range(4))
    assert initialised(launch) == [0, 1, 2, 3]
    assert [e["ranks"] for e in launch.events("all-initialised")] == [4]


def test_processes_that_train_alone_are_seen(launch: Launch) -> None:
    need("accelerate")
    result = run(launch, "command", trap(launch), "--allow", "accelerate_config")
    assert result["exit"] == 3
    assert result["verdict"]["cause"] == "world-size-mismatch"
    assert "each process trains alone under accelerate" in result["verdict"]["message"]
    assert "4 ranks were planned" in result["verdict"]["message"]
    assert "sum" not in all_logs(launch), "it is seen before a step is trained"


def test_no_process_group_at_all(launch: Launch) -> None:
    need("accelerate")
    result = run(launch, "accelerate", program("v_accelerate.py", "lonely"), nproc=1)
    assert result["exit"] == 3
    assert "each process trained alone under accelerate: all 2 ended with 0" in result["verdict"]["message"]


@pytest.mark.parametrize(("what", "code", "signal"), [("raise", 1, None), ("exit", 3, None), ("kill", None, 9)])
def test_a_failure_under_accelerate(what: str, code: int | None, signal: int | None, launch: Launch) -> None:
    need("accelerate")
    result = run(launch, "accelerate", program("v_accelerate.py", what, "3"))
    assert result["exit"] == 1
    assert place_of(result) == ("h2", 3)
    check_end(launch, result, {"rank": 3, "code": code, "signal": signal})
    if what == "raise":
        assert "RuntimeError: rank 3 has a bad batch" in result["verdict"]["message"]


def test_a_configuration_for_other_nodes_is_refused(launch: Launch) -> None:
    need("accelerate")
    (launch.work / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_machines: 8\nnum_processes: 64\n")
    result = run(
        launch, None, ["accelerate", "launch", "--config_file", "a.yaml", *program("v_accelerate.py", "train")]
    )
    assert result["exit"] == 3
    assert result["verdict"]["cause"] == "accelerate-config"
    assert "it must be 2" in json.dumps(result["findings"]) and "it must be 4" in json.dumps(result["findings"])
    assert launch.events("rank-started") == []


@pytest.mark.parametrize("what", ["accelerate", "deepspeed"])
def test_what_is_rendered_runs_by_hand(what: str, launch: Launch) -> None:
    need(what)
    script = program("v_accelerate.py", "train") if what == "accelerate" else program("v_deepspeed.py")
    env = ["--env", "ACCELERATE_USE_CPU=true", "--env", "OMP_NUM_THREADS=1", *BUILT]
    done = launch.call(
        "render", what, "--hosts", "h1,h2", "--nproc", "2", "--master-addr", launch.bed.hosts[0].address,
        "--python", INTERPRETER, *env, "--output", "by_hand", "--", *script,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scripts = sorted((launch.work / "by_hand").glob("*.sh"))
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(h.run, ["sh", "-c", f"{s} 2>&1"], timeout=BOUND)
                   for h, s in zip(launch.bed.hosts, scripts, strict=True)]  # fmt: skip
        said = "".join(future.result().stdout for future in started)
    for rank in range(4):
        assert f"rank {rank} of 4" in said and "sum 10" in said


# -- ColossalAI --------------------------------------------------------------------------------------


def test_colossalai(launch: Launch) -> None:
    """The command as people have it, once on each host; the program calls `colossalai.launch_from_torch`."""
    need("colossalai")
    words = ["colossalai", "run", "--nproc_per_node", "2", *program("v_colossalai.py", "--config", "demo.py")]
    result = run(launch, None, words)
    assert (result["exit"], result["verdict"]) == (0, None), all_logs(launch)
    said = all_logs(launch)
    assert all(f"rank {rank} of 4: sum 10 --config demo.py" in said for rank in range(4)), said
    assert initialised(launch) == [0, 1, 2, 3]


# -- deepspeed ---------------------------------------------------------------------------------------


def test_deepspeed(launch: Launch) -> None:
    need("deepspeed")
    result = run(launch, "deepspeed", program("v_deepspeed.py"))
    assert (result["exit"], result["verdict"]) == (0, None)
    said = all_logs(launch)
    for rank in range(4):
        assert f"rank {rank} of 4, local {rank % 2}: sum 10" in said, "its --local_rank comes through"
    assert initialised(launch) == [0, 1, 2, 3]


def test_the_example_of_accelerate_and_deepspeed(launch: Launch) -> None:
    """The command that examples/README.md shows: both nodes' ranks share one optimizer, and each saves its share."""
    need("accelerate")
    need("deepspeed")
    shutil.copytree(EXAMPLES, launch.work / "examples")
    words = ["accelerate", "launch", "--config_file", "examples/accelerate.yaml"]
    result = run(launch, None, [*words, "examples/train_accelerate.py", "--steps", "10", "--out", "out"], *BUILT)
    assert (result["exit"], result["verdict"]) == (0, None), all_logs(launch)
    assert "DEEPSPEED: 4 ranks" in all_logs(launch) and "step 10/10 loss" in all_logs(launch)
    assert initialised(launch) == [0, 1, 2, 3]
    metrics = [path.read_text().splitlines() for path in sorted((launch.work / "out").glob("rank_*.jsonl"))]
    losses = [[json.loads(line)["loss"] for line in lines] for lines in metrics]
    assert len(losses) == 4 and all(other == losses[0] for other in losses)
    assert losses[0][-1] < losses[0][0] - 0.5
    assert len(list((launch.work / "out").glob("**/*optim_states.pt"))) == 4


@pytest.mark.parametrize(("what", "code", "signal"), [("raise", 1, None), ("exit", 3, None), ("kill", None, 9)])
def test_a_failure_under_deepspeed(what: str, code: int | None, signal: int | None, launch: Launch) -> None:
    """deepspeed itself says of all this: a command line (of its last child), and one code."""
    need("deepspeed")
    result = run(launch, "deepspeed", program("v_deepspeed.py", "--what", what, "--who", "2"))
    assert result["exit"] == 1
    assert place_of(result) == ("h2", 2)
    check_end(launch, result, {"rank": 2, "code": code, "signal": signal})


def test_batch_sizes_that_do_not_multiply_out_are_refused(launch: Launch) -> None:
    """Whatever is installed: it is read before anything starts."""
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    (launch.work / "ds.json").write_text(json.dumps(sizes))
    launch.start([*program("v_deepspeed.py"), "--deepspeed_config", "ds.json"], "--launcher", "deepspeed", nproc=2,
                 python=PYTHON)  # fmt: skip
    result = launch.result()
    assert result["exit"] == 3
    assert result["verdict"]["cause"] == "deepspeed-config"
    assert "train_batch_size: 16, or train_micro_batch_size_per_gpu: 2" in result["verdict"]["remedy"]
    assert launch.events("rank-started") == []
