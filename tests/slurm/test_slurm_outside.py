"""From the login node: submitted, waited for with reasons, followed, stopped; the verbs go through Slurm."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.hosts.launching import PYTHON, program
from tests.hosts.waiting import BOUND, wait_until
from tests.slurm.bed import SlurmBed
from tests.slurm.jobs import JOB, SlurmLaunch


@pytest.mark.slow
@pytest.mark.torch
def test_the_demo_is_submitted_and_trains_on_four_nodes(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).outside(JOB, "--nproc", "1", "--name", "demo")
    result = launch.result()
    assert (result["exit"], result["verdict"]) == (0, None), launch.stderr
    assert "step 2/2 loss" in launch.log(0) and "step 2/2 loss" in launch.stderr, "followed, too"
    assert sorted(p.name for p in (launch.run_dir / "logs").iterdir())[3] == "node_03_h4"
    assert launch.run_dir.name.startswith("demo-") and slurm.job(launch.job)["JobName"] == "demo"
    launch.nothing_left()


def test_the_queue_says_why_and_a_waiting_job_can_be_stopped(slurm: SlurmBed, tmp_path: Path) -> None:
    slurm.call("sbatch", "-N4", "--exclusive", "--wrap", "sleep 600", "-o", "/dev/null", check=True)
    launch = SlurmLaunch(slurm, tmp_path)
    words = ["--slurm", "--nodes", "2", "--python", PYTHON, "--", *program("tell.py")]
    launch.begin("run", *words)
    wait_until(lambda: "Resources: it is the next in line" in launch.stdout, BOUND, f"a reason ({launch.stdout})")
    status = json.loads(launch.call("status", "--json").stdout)
    assert (status["state"], status["job"]["id"], status["job"]["state"]) == ("queued", launch.job, "PENDING")
    assert launch.call("stop").returncode == 0
    assert launch.process is not None and launch.process.wait(BOUND) == 143, launch.stderr
    assert slurm.job(launch.job)["JobState"] == "CANCELLED"
    launch.all_gone()


def test_an_exception_then_its_verdict_and_exit_code(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).outside(program("nasty.py", "raise", "1"), nodes=2).until_running(2)
    (launch.work / "go").touch()
    result = launch.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"]) == (1, "program-exception"), launch.stderr
    assert (verdict["where"]["node"], verdict["where"]["rank"]) == ("h2", 1)
    job = slurm.job(launch.job)
    assert launch.run_dir.name.endswith(f"-job{launch.job}")
    assert (job["JobName"], job["Comment"]) == ("nasty.py", str(launch.run_dir))
    output = launch.work / f"slurm-{launch.job}.out"
    wait_until(lambda: "ValueError: bad batch" in output.read_text(), what="it is where users of sbatch look")
    assert (launch.run_dir / "slurm.log").resolve() == output
    assert launch.call("status", launch.job).returncode == 0, "a run is found by its job"
    launch.nothing_left()


def test_functions_that_the_submitting_shell_exports_reach_the_prelude(slurm: SlurmBed, tmp_path: Path) -> None:
    """Through sbatch, the batch script, srun and the shell of its tasks."""
    function = '() {  case $2 in cuda) export CUDA_HOME=/opt/cuda;; *) echo "no $2" >&2; return 1;; esac\n}'
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(
        program("tell.py"), "--prelude", "module load cuda; [ $SLURMD_NODENAME = h1 ] || module load cudnn", nodes=2,
        env={"BASH_FUNC_module%%": function},
    )  # fmt: skip
    verdict = launch.result()["verdict"]
    assert (verdict["cause"], verdict["where"]["node"]) == ("remote-path-missing", "h2"), launch.stderr
    assert "ended with code 1: module load cudnn: no cudnn" in verdict["message"]
    launch.nothing_left()


@pytest.mark.slow
def test_detached_then_status_logs_attach_and_stop(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    saves = program("nasty.py", "save-on-term")
    words = ["--slurm", "--nodes", "2", "--python", PYTHON, "--detach", "--json", "--", *saves]
    done = launch.call("run", *words)
    assert done.returncode == 0 and json.loads(done.stdout)["job"] == launch.job, done.stderr
    launch.until_running(2)
    status = json.loads(launch.call("status", "--json").stdout)
    assert (status["state"], status["job"]["state"], len(status["nodes"])) == ("running", "RUNNING", 2)
    assert launch.call("logs").returncode == 0
    attached = subprocess.Popen(
        launch.command("attach", "--json"), env=launch.environment(), cwd=launch.work, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    stopped = launch.call("stop", bound=120.0)
    assert stopped.returncode == 0, stopped.stderr
    assert launch.saved == ["saved-0", "saved-1"]
    out, err = attached.communicate(timeout=BOUND)
    assert attached.returncode == 143 and json.loads(out)["exit"] == 143, err
    launch.nothing_left()


@pytest.mark.slow
def test_ctrl_c_stops_the_job(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).outside(program("nasty.py", "save-on-term"), nodes=2).until_running(2)
    launch.signal(2)
    result = launch.result()
    assert result["exit"] == 130, launch.stderr
    assert launch.saved == ["saved-0", "saved-1"]
    launch.nothing_left()


def test_what_sbatch_refuses_leaves_nothing(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    done = launch.call("run", "--slurm", "--nodes", "2", "--partition", "nowhere", "--", *program("tell.py"))
    assert done.returncode == 4 and "invalid partition" in done.stderr.lower(), done.stderr
    assert not launch.runs.exists() or not any(launch.runs.iterdir())
    refused = launch.call("run", "--slurm", "--sbatch", "--array=1-4", "--", *program("tell.py"))
    assert refused.returncode == 2 and "--array" in refused.stderr


@pytest.mark.slow
def test_a_directory_that_nodes_do_not_see_is_named(slurm: SlurmBed, tmp_path: Path) -> None:
    """/root is the hosts' own: what the script needs there is not there."""
    home = Path("/root") / f"slurm-test-{tmp_path.name}"
    home.mkdir()
    try:
        launch = SlurmLaunch(slurm, tmp_path)
        words = ["--slurm", "--workdir", str(home), "--json", "--", *program("tell.py")]
        done = launch.call("run", *words)
        result = json.loads(done.stdout)
        assert (result["exit"], result["verdict"]["cause"]) == (4, "remote-path-missing"), done.stderr
        assert str(home) in " ".join(result["verdict"]["evidence"])
    finally:
        home.rmdir()


@pytest.mark.slow
def test_secrets_are_in_no_script(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(program("tell.py"), "--env", "MY_API_KEY=sesame-1234", "--env", "PLAIN=x y", nodes=1)
    assert launch.result()["exit"] == 0, launch.stderr
    told = json.loads(launch.log(0).split("TOLD ", 1)[1])
    assert (told["env"]["MY_API_KEY"], told["env"]["PLAIN"]) == ("sesame-1234", "x y")
    script = slurm.scontrol("write", "batch_script", launch.job, "-")
    assert "sesame" not in script and "PLAIN=x y" in script
    kept = "".join(p.read_text(errors="replace") for p in launch.run_dir.glob("*.json*"))
    assert "sesame" not in kept
    launch.nothing_left()


def test_a_rendered_script_passes_sbatch_and_runs(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    words = ["slurm", "--nodes", "2", "--nproc", "2", "--partition", "main", "--sbatch", "--gres=gpu:2 --time=5",
             "--python", PYTHON, "--output", str(launch.work), "--", *program("tell.py")]  # fmt: skip
    done = launch.call("render", *words)
    assert done.returncode == 0, done.stderr
    tested = subprocess.run(
        ["sbatch", "--test-only", "job.sh"], env=launch.environment(), cwd=launch.work, capture_output=True, text=True
    )
    assert tested.returncode == 0 and "to start at" in tested.stderr, tested.stderr
    subprocess.run(["sbatch", "job.sh"], env=launch.environment(), cwd=launch.work, check=True, capture_output=True)
    launch.until("run-end")
    assert len(launch.events("rank-started")) == 4
    assert json.loads((launch.run_dir / "result.json").read_text())["exit"] == 0
    launch.nothing_left()


def test_a_job_cancelled_while_it_waits_is_over_for_everyone(slurm: SlurmBed, tmp_path: Path) -> None:
    """Nobody follows it (--detach): the next who asks writes down how it ended."""
    slurm.call("sbatch", "-N4", "--exclusive", "--wrap", "sleep 600", "-o", "/dev/null")
    launch = SlurmLaunch(slurm, tmp_path)
    words = ["--slurm", "--nodes", "2", "--python", PYTHON, "--detach", "--json", "--", *program("tell.py")]
    assert launch.call("run", *words).returncode == 0
    slurm.call("scancel", launch.job)
    status = json.loads(launch.call("status", "--json").stdout)
    assert (status["state"], status["verdict"]["cause"]) == ("failed", "slurm-cancelled"), status
    assert launch.call("attach").returncode == 4
    assert "was cancelled" in launch.call("diagnose").stdout


def test_a_request_that_no_waiting_fulfils_is_not_followed(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(program("tell.py"), "--partition", "short", "--sbatch", "--time=10", nodes=1)
    assert launch.process is not None and launch.process.wait(BOUND) == 4, launch.stderr
    result = json.loads(launch.stdout)
    assert result["verdict"]["cause"] == "slurm-config"
    assert "will not start as it is" in result["verdict"]["message"]
    assert "PartitionTimeLimit" in result["verdict"]["message"]
    assert slurm.job(launch.job)["JobState"] == "PENDING", "it is its owner's"
    stopped = launch.call("stop")
    assert stopped.returncode == 0
    assert "from the queue" in stopped.stdout and "to save" not in stopped.stdout, "no rank runs"
    assert slurm.job(launch.job)["JobState"] == "CANCELLED"
