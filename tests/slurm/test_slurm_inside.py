"""Inside an allocation: one srun step has the agents, all else is as over ssh."""

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from tests.hosts.launching import BOUND, PROGRAMS, PYTHON, program
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed
from tests.slurm.jobs import JOB, SlurmLaunch


@pytest.mark.slow
@pytest.mark.torch
def test_the_demo_trains_on_four_nodes(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(JOB, "--nproc", "1")
    result = launch.result()
    assert (result["exit"], result["verdict"]) == (0, None), launch.stderr
    assert "step 2/2 loss" in launch.log(0)
    assert len(launch.events("rank-initialised")) == 4
    names = sorted(p.name for p in (launch.run_dir / "logs").iterdir())
    assert names == ["node_00_h1", "node_01_h2", "node_02_h3", "node_03_h4"]
    for name in ("run.json", "events.jsonl", "result.json", "status.json", "outputs", "evidence", "srun.log"):
        assert (launch.run_dir / name).exists(), name
    launch.nothing_left()


def test_ranks_and_gpus_come_from_the_allocation(slurm: SlurmBed, tmp_path: Path) -> None:
    salloc = ("-N2", "--ntasks-per-node=3", "--gres=gpu:2")
    launch = SlurmLaunch(slurm, tmp_path).inside(program("tell.py"), salloc=salloc)
    assert launch.result()["exit"] == 0, launch.stderr
    assert len(launch.events("rank-started")) == 6
    assert launch.run_dir.name.endswith(f"-job{launch.job}")
    assert slurm.job(launch.job).get("Comment") == str(launch.run_dir)
    for rank in range(6):
        told = json.loads(launch.log(rank).split("TOLD ", 1)[1])
        assert told["env"]["CUDA_VISIBLE_DEVICES"] == "0,1", "the step has the job's GPUs, all of them"
        assert told["env"]["SLURM_JOB_ID"] == launch.job
    launch.nothing_left()


APPTAINER = """#!/bin/sh
# As `apptainer exec` where nothing is to be hidden: options, the image, then the command, in the caller's environment.
[ "$1" = exec ] || exit 2
shift
while [ "${1#--}" != "$1" ]; do shift; done
export APPTAINER_CONTAINER="$1"
shift
exec "$@"
"""


def test_a_container_image_without_pyxis_is_apptainers(slurm: SlurmBed, tmp_path: Path) -> None:
    """Slurm, its step and the ranks are real. Apptainer is not to be had here: a script takes its words."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apptainer").write_text(APPTAINER)
    (programs / "apptainer").chmod(0o755)
    launch = SlurmLaunch(slurm, tmp_path)
    words = ("--container-image", "/images/train.sif", "--prelude", f"export PATH={programs}:$PATH")
    launch.inside(program("tell.py"), *words, salloc=("-N2",))
    assert launch.result()["exit"] == 0, launch.stderr
    for rank in range(2):
        told = json.loads(launch.log(rank).split("TOLD ", 1)[1])
        assert told["env"]["APPTAINER_CONTAINER"] == "/images/train.sif"
        assert told["env"]["RANK"] == str(rank)
    launch.nothing_left()


FETCH = """
import os, sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen("http://" + sys.argv[1]).read()
        break
    except OSError:
        time.sleep(0.2)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["ROLE_NAME"], flush=True)
"""


def test_roles_run_on_the_nodes_of_one_allocation(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    (launch.work / "fetch.py").write_text(FETCH)
    roles = ("--role", "server:1", "python -m http.server {server.port.http}")
    roles += ("--role", "trainer:3", "fetch.py {server.address}:{server.port.http}")
    result = launch.inside((), *roles, "--nproc", "1").result()
    assert (result["exit"], result["verdict"]) == (0, None), launch.stderr
    assert result["roles"]["server"]["nodes"] == ["h1"] and result["roles"]["trainer"]["nodes"] == ["h2", "h3", "h4"]
    assert "rank 2 of 3 trainer" in (launch.run_dir / "logs/node_03_h4/rank_002.log").read_text()
    launch.nothing_left()


def test_roles_of_a_submitted_job_share_its_nodes(slurm: SlurmBed, tmp_path: Path) -> None:
    """The job's script has the roles in it; a role that shares nodes has a step of its own there."""
    launch = SlurmLaunch(slurm, tmp_path)
    (launch.work / "fetch.py").write_text(FETCH)
    (launch.work / "roles.toml").write_text(
        "[roles.trainer]\ncommand = 'fetch.py {server.address}:{server.port.http}'\nnodes = 2\ngpus = '0'\n"
        "after = ['server']\n[roles.server]\ncommand = 'python -m http.server {server.port.http}'\nwith = 'trainer'\n"
        "gpus = 'none'\nends = 'never'\n"
    )
    result = launch.outside((), "--roles", "roles.toml", nodes=2).result()
    assert (result["exit"], result["verdict"]) == (0, None), launch.stderr
    assert result["roles"]["trainer"]["nodes"] == ["h1", "h2"]
    assert result["roles"]["server"]["nodes"] == ["h1-server", "h2-server"]
    assert "rank 1 of 2 trainer" in (launch.run_dir / "logs/node_01_h2/rank_001.log").read_text()
    launch.nothing_left()


def test_one_exception_ends_all_of_it(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "raise", "2")).until_running(4)
    (launch.work / "go").touch()
    result = launch.result()
    assert (result["exit"], result["verdict"]["cause"]) == (1, "program-exception"), launch.stderr
    assert (result["verdict"]["where"]["node"], result["verdict"]["where"]["rank"]) == ("h3", 2)
    assert result["verdict"]["victims"] == [0, 1, 3]
    launch.nothing_left()


def test_a_node_whose_service_is_dead_is_named(slurm: SlurmBed, tmp_path: Path) -> None:
    slurm.kill_slurmd("h3")
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "wait"))
    result = launch.result()
    assert result["exit"] == 4, launch.stderr
    assert result["verdict"]["where"]["node"] == "h3", result["verdict"]
    assert result["verdict"]["cause"] == "node-network-down"
    launch.nothing_left()


def test_a_node_that_cannot_dial_back_is_named(slurm: SlurmBed, tmp_path: Path) -> None:
    """Slurm starts its task, but a firewall drops its way to the controller: all but slurmctld's ports."""
    slurm.refuse_dialling("h2")
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "wait"), "--connect-timeout", "8s")
    result = launch.result()
    assert result["exit"] == 4, launch.stderr
    assert result["verdict"]["where"]["node"] == "h2", result["verdict"]
    assert "dial" in result["verdict"]["message"]
    launch.nothing_left()


@pytest.mark.slow
def test_a_agent_that_dies(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "wait")).until_running(4)
    os.kill(launch.agent_pid(1), signal.SIGKILL)
    result = launch.result()
    assert (result["exit"], result["verdict"]["where"]["node"]) == (4, "h2")
    launch.nothing_left()


def test_nothing_outlives_a_controller_that_dies(slurm: SlurmBed, tmp_path: Path) -> None:
    """The lease is ten minutes: it is the end of Slurm's step that ends the ranks, daemons and all."""
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "wait"), "--lease", "10m").until_running(4)
    os.kill(controller(launch), signal.SIGKILL)
    launch.nothing_left()


@pytest.mark.slow
def test_a_node_that_slurm_takes_away_is_a_verdict(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "wait")).until_running(4)
    slurm.scontrol("update", "nodename=h3", "state=down", "reason=test")
    result = launch.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"], verdict["where"].get("node")) == (4, "node-network-down", "h3"), verdict
    launch.nothing_left()


def controller(launch: SlurmLaunch) -> int:
    """The pid of the controller, as run.json has it."""
    return int(json.loads((launch.run_dir / "run.json").read_text())["controller"]["pid"])


@pytest.mark.slow
def test_stop_gives_ranks_time_to_save(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "save-on-term")).until_running(4)
    done = launch.call("stop", bound=120)
    assert done.returncode == 0, done.stderr
    result = launch.result()
    assert (result["exit"], result["verdict"]) == (143, None)
    assert launch.saved == [f"saved-{r}" for r in range(4)]
    launch.nothing_left()


def test_scancel_is_a_verdict(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "save-on-term")).until_running(4)
    slurm.call("scancel", launch.job)
    result = launch.result()
    assert (result["exit"], result["verdict"]["cause"]) == (4, "slurm-cancelled"), launch.stderr
    launch.nothing_left()


def inside(launch: SlurmLaunch, *words: str) -> subprocess.CompletedProcess[str]:
    """salloc, on the launching machine."""
    return subprocess.run(
        ["salloc", "-Q", *words], env=launch.environment(), cwd=launch.work, capture_output=True, text=True,
        timeout=BOUND,
    )  # fmt: skip


def test_a_heterogeneous_job_is_refused(slurm: SlurmBed, tmp_path: Path) -> None:
    """It trained on the submit host alone, with exit code 0."""
    launch = SlurmLaunch(slurm, tmp_path)
    for words in (["run", "--", *program("tell.py")], ["check"]):
        done = inside(launch, "-N1", ":", "-N1", *launch.command(*words))
        assert done.returncode == 2, done.stdout + done.stderr
        assert "is heterogeneous: its 2 components" in done.stderr


@pytest.mark.slow
def test_many_tasks_of_a_step_are_refused(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    words = launch.command("run", "--", str(PROGRAMS / "tell.py"))
    done = slurm.call("srun", "-N2", "--export=ALL", *words, check=False)
    assert done.returncode != 0 and "Start allranks once, without srun" in done.stderr


@pytest.mark.slow
def test_check_looks_at_the_nodes_of_the_allocation(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    done = inside(launch, "-N2", *launch.command("check", "--slurm", "--level", "quick", "--json"))
    assert done.returncode == 0, done.stderr + done.stdout
    launch.nothing_left()
    wait_until(lambda: not slurm.call("squeue", "-h").stdout.strip(), BOUND, "the job is over")


@pytest.mark.slow
def test_exec_runs_on_the_nodes_of_the_allocation(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    command = launch.command("exec", "--slurm", "--", "sh", "-c", "echo of $SLURM_NNODES; exit 3")
    done = inside(launch, "-N2", *command)
    assert done.returncode == 1, done.stderr + done.stdout
    assert done.stdout == "h[1-2]: of 2\nh[1-2]: (exit 3)\n", done.stderr
    launch.nothing_left()
    wait_until(lambda: not slurm.call("squeue", "-h").stdout.strip(), BOUND, "the job is over")


@pytest.mark.slow
def test_two_runs_of_one_allocation_take_different_nodes(slurm: SlurmBed, tmp_path: Path) -> None:
    """Both start at the same moment, as in `allranks run … & allranks run … & wait`; a third is told what it shares."""
    launch = SlurmLaunch(slurm, tmp_path)
    waits, ends = program("v_signals.py"), program("tell.py")
    runs = [
        launch.command("run", "--name", name, *nodes, "--python", PYTHON, "--", *words)
        for name, nodes, words in (
            ("first", ["--nodes", "2"], waits), ("second", ["--nodes", "2"], waits), ("third", [], ends)
        )
    ]  # fmt: skip
    first, second, third = (shlex.join(words) for words in runs)
    lines = [f"{first} &", f"{second} &", "until [ -e all-up ]; do sleep 0.1; done", third, "touch go", "wait"]
    (launch.work / "both.sh").write_text("\n".join(lines) + "\n")
    launch.popen(["salloc", "-Q", "-N4", "bash", "both.sh"], None)

    def up() -> int:
        """Ranks of both runs; their files would not do, as two hosts count their processes alike."""
        logs = launch.runs.glob("*/logs/node_*/rank_*.log")
        return sum("is up" in path.read_text() for path in logs)

    wait_until(lambda: up() == 4, BOUND, "four programs up")
    (launch.work / "all-up").touch()
    assert launch.process is not None and launch.process.wait(BOUND) == 0, launch.stderr

    def nodes_of(name: str) -> list[str]:
        (path,) = launch.runs.glob(f"{name}-*/run.json")
        return [node["name"] for node in json.loads(path.read_text())["nodes"]]

    assert sorted([nodes_of("first"), nodes_of("second")]) == [["h1", "h2"], ["h3", "h4"]]
    assert nodes_of("third") == ["h1", "h2", "h3", "h4"]
    (note,) = [line for line in launch.stdout.splitlines() if "another allranks run" in line]
    assert "h1, h2, h3 and h4 too" in note
    launch.nothing_left()
