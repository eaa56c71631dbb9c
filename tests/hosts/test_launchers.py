"""Launchers and kinds of programs, with real process groups where torch is there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.launching import PROGRAMS, PYTHON, Launch, culprit, program

SOURCES = Path(__file__).parents[2] / "src"


def all_logs(launch: Launch) -> str:
    return "".join(p.read_text() for p in sorted(launch.run_dir.glob("logs/node_*/rank_*.log")))


def initialised(launch: Launch) -> list[int]:
    return sorted(e["rank"] for e in launch.events("rank-initialised"))


# -- direct ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.torch
def test_direct_with_a_real_process_group(launch: Launch) -> None:
    result = launch.start(program("v_gloo.py", "sum"), nproc=2).result()
    assert (result["exit"], result["verdict"]) == (0, None)
    for rank in range(4):
        assert launch.log(rank).endswith(f"rank {rank} of 4, local {rank % 2}: sum 10\n")
    assert initialised(launch) == [0, 1, 2, 3]
    assert launch.events("all-initialised")[0]["ranks"] == 4 and result["timing"]["initialised"] > 0
    assert launch.alive() == []


def test_a_script_of_the_shell(launch: Launch) -> None:
    script = launch.work / "go.sh"
    script.write_text('#!/bin/bash\necho "rank $RANK of $WORLD_SIZE at $MASTER_ADDR" "$@"\nexit $((RANK * 7))\n')
    script.chmod(0o755)
    result = launch.start(["./go.sh", "x y"]).result()
    master = launch.bed.hosts[0].address
    assert launch.log(1) == f"rank 1 of 2 at {master} x y\n"
    assert result["exit"] == 1
    assert culprit(result["verdict"]) == ("h2", 1)
    assert result["program_exit"] == {"rank": 1, "code": 7, "signal": None}


# -- torchrun ----------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_torchrun(launch: Launch, nproc: int) -> None:
    result = launch.start(program("v_gloo.py", "sum"), "--launcher", "torchrun", nproc=nproc).result()
    assert (result["exit"], result["verdict"]) == (0, None)
    said, world = all_logs(launch), 2 * nproc
    for rank in range(world):
        assert f"rank {rank} of {world}, local {rank % nproc}: sum {sum(range(world + 1))}\n" in said
    assert initialised(launch) == list(range(world))
    assert [e["ranks"] for e in launch.events("all-initialised")] == [world]
    assert launch.alive() == []


@pytest.mark.slow
@pytest.mark.torch
def test_an_exception_under_torchrun(launch: Launch) -> None:
    """The agents say only that a child failed; the rank's own error file says what."""
    result = launch.start(program("v_gloo.py", "raise", "3"), "--launcher", "torchrun", nproc=2).result()
    assert result["exit"] == 1
    verdict = result["verdict"]
    assert (verdict["where"]["node"], verdict["where"]["rank"]) == ("h2", 3)
    assert "RuntimeError" in verdict["message"] and "rank 3 has a bad batch" in verdict["message"]
    assert launch.alive() == []


# -- command -----------------------------------------------------------------------------------------

NODE = 'echo "node $NODE_RANK of $NNODES × $NPROC_PER_NODE = $WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT rank=$RANK"'


def test_a_command_once_a_node(launch: Launch) -> None:
    result = launch.start(["/bin/sh", "-c", NODE], "--launcher", "command", "--master-port", "29544", nproc=4).result()
    assert (result["exit"], result["verdict"]) == (0, None)
    master = launch.bed.hosts[0].address
    logs = sorted(launch.run_dir.glob("logs/node_*/rank_*.log"))
    assert [p.parent.name for p in logs] == ["node_00_h1", "node_01_h2"]
    for number, path in enumerate(logs):
        assert path.read_text() == f"node {number} of 2 × 4 = 8, {master}:29544 rank=\n"


def test_a_command_that_fails_on_a_node(launch: Launch) -> None:
    command = ["/bin/sh", "-c", "[ $NODE_RANK = 1 ] && exit 3; sleep 600"]
    result = launch.start(command, "--launcher", "command", nproc=4).result()
    assert result["exit"] == 1
    assert result["verdict"]["where"]["node"] == "h2"
    assert result["program_exit"]["code"] == 3
    assert launch.alive() == []


# -- time limits -------------------------------------------------------------------------------------


@pytest.mark.torch
def test_the_init_timeout_names_the_rank_that_never_came(launch: Launch) -> None:
    """Time enough for rank 0 to import torch: before that both ranks are late, and no rank is blamed."""
    result = launch.start(program("v_gloo.py", "late", "1"), "--init-timeout", "20s").result()
    assert result["exit"] == 5
    verdict = result["verdict"]
    assert verdict["cause"] == "rendezvous-timeout"
    assert culprit(verdict) == ("h2", 1)
    assert "never entered init_process_group" in verdict["message"]
    assert launch.alive() == []
    assert "wait_for_nothing" in "".join(p.read_text() for p in launch.run_dir.glob("evidence/**/*") if p.is_file())


@pytest.mark.slow
@pytest.mark.torch
def test_the_pg_timeout_shortens_a_hang(launch: Launch) -> None:
    """The script names 30 minutes: the option holds over it. It is the limit of the start, too."""
    result = launch.start(program("v_gloo.py", "hang", "1"), "--pg-timeout", "30s").result()
    assert initialised(launch) == [0, 1]
    named_before_its_limit(launch, result)


@pytest.mark.slow
@pytest.mark.torch
def test_time_limits_by_the_names_that_colossalai_has(launch: Launch) -> None:
    """As the set-up exports them. The program names no limit of its own, which would hold over a variable."""
    result = launch.start(program("v_gloo.py", "late", "1"), env={"COLOSSALAI_MASTER_READY_TIMEOUT": "20"}).result()
    assert (result["exit"], result["verdict"]["cause"]) == (5, "rendezvous-timeout")
    assert culprit(result["verdict"]) == ("h2", 1)
    stuck = program("v_gloo.py", "hang", "1", "torch's-limit")
    named_before_its_limit(launch, launch.start(stuck, env={"COLOSSALAI_DIST_TIMEOUT": "30"}).result())


def named_before_its_limit(launch: Launch, result: dict[str, Any]) -> None:
    """The ranks' process group has 30 s. They are looked at before it gives up, and none ends by itself."""
    assert [event["limit"] for event in launch.events("rank-initialised")] == [30.0, 30.0]
    assert (result["exit"], result["verdict"]["cause"]) == (5, "straggler")
    assert culprit(result["verdict"]) == ("h2", 1)
    assert [e["rank"] for e in launch.events("rank-exit") if not e["expected"]] == []
    assert launch.alive() == []


# -- stacks ------------------------------------------------------------------------------------------


def ask_stacks(launch: Launch, rank: int) -> dict[str, Any]:
    """What the agent of h1 answers to `stacks`."""
    host = launch.bed.host("h1")
    uid = json.loads((launch.run_dir / "run.json").read_text())["uid"]
    agent = f"/tmp/allranks-{os.getuid()}/{uid}/node_00/agent.sock"
    command = [PYTHON, str(PROGRAMS / "v_stacks.py"), agent, str(rank)]
    answer = host.run(command, env={"PYTHONPATH": str(SOURCES)}).stdout
    found: dict[str, Any] = json.loads(answer)[str(rank)]
    return found


def test_stacks_of_a_python_rank(launch: Launch) -> None:
    launch.start(program("nasty.py"), hosts="h1").until_running(1)
    found = ask_stacks(launch, 0)
    assert found["how"] == "py-spy"
    assert "nasty.py" in found["text"] and "MainThread" in found["text"]
    assert launch.rank_pid(0), "it has survived being asked"
    launch.call("stop", "--now")
    launch.all_gone()


def test_stacks_of_a_program_that_would_die_of_the_signal(launch: Launch) -> None:
    launch.start(["/bin/sh", "-c", "touch up-0; sleep 600"], hosts="h1").until_running(1)
    found = ask_stacks(launch, 0)
    assert "no dump handler" in found["error"]
    assert launch.rank_pid(0), "the signal was not sent"
    launch.call("stop", "--now")
    launch.all_gone()
