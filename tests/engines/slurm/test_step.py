"""Slurm's variables, options and words: what we read of them and what we give it."""

import json
import os
import re
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hosts.waiting import BOUND
from tests.shell import given_of

from allranks.cli.commands import COMMANDS
from allranks.cli.declare import Declared
from allranks.cluster.nodes import virtual_cluster
from allranks.cluster.slurm_allocation import (
    Allocation,
    allocation_cluster,
    read_allocation,
    refuse_step,
    require_nodes,
    tasks_per_node,
)
from allranks.diagnose.slurm_jobs import (
    Advice,
    GivenTime,
    SlurmJob,
    cancelled,
    ended,
    is_hopeless,
    nearly_over,
    never_starts,
    out_of_memory,
    read_sacct,
    read_scontrol,
    time_given,
    waiting,
    warned,
)
from allranks.engines.dialled import Refuse, Seat
from allranks.engines.slurm import jobs
from allranks.engines.slurm.reach import reach
from allranks.engines.slurm.step import Step, _admit
from allranks.errors import ConfigError, UsageError
from allranks.plan.slurm_commands import (
    apptainer_command,
    check_sbatch,
    knows_containers,
    pyxis_options,
    read_version,
    step_command,
    step_environment,
)
from allranks.protocol.controls import HelloControl
from allranks.protocol.header import AgentHeader
from allranks.settings import RunSpec
from allranks.settings.command_line import as_options, secret_values
from allranks.settings.layers import resolve

# -- the allocation ------------------------------------------------------------------------------------

SALLOC = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-4]", "SLURM_TASKS_PER_NODE": "1(x4)"}


def test_the_variables_of_an_allocation() -> None:
    assert read_allocation({}) is None
    assert read_allocation({"SLURM_JOB_ID": "7"}) is None
    found = read_allocation(SALLOC)
    assert found == Allocation("7", ("h1", "h2", "h3", "h4"))
    batch = {**SALLOC, "ENVIRONMENT": "BATCH", "SLURM_RESTART_COUNT": "2"}
    found = read_allocation(batch)
    assert found is not None and (found.batch, found.restarts) == (True, 2)


def test_a_saved_run_of_a_job_is_reached_from_within_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="from within it alone"):
        reach(RunSpec.of(slurm=True), virtual_cluster(1))


def test_slots_only_where_more_than_one_task_was_asked_for() -> None:
    asked = {**SALLOC, "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x3),1"}
    found = read_allocation(asked)
    assert found is not None and found.tasks == (2, 2, 2, 1)
    assert [n.slots for n in allocation_cluster(found, found.nodes).nodes] == [2, 2, 2, 1]
    last = allocation_cluster(found, ["h4", "h3"]).nodes
    assert [(n.index, n.name, n.slots) for n in last] == [(0, "h3", 2), (1, "h4", 1)]
    one = read_allocation({**SALLOC, "SLURM_NTASKS": "4"})
    assert one is not None and [n.slots for n in allocation_cluster(one, ["h1", "h2"]).nodes] == [None, None]
    assert allocation_cluster(one, one.nodes).source == "Slurm job 7"
    with pytest.raises(UsageError, match="--nodes 5: job 7 has 4"):
        require_nodes(one, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_JOB_ID", "7; rm"), ("SLURM_JOB_NODELIST", "h[1-"), ("SLURM_JOB_NODELIST", "-oProxyCommand=x"),
     ("SLURM_TASKS_PER_NODE", "two"), ("SLURM_TASKS_PER_NODE", "2(x3)"), ("SLURM_TASKS_PER_NODE", "1(x999999)")],
)  # fmt: skip
def test_variables_that_make_no_sense_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_allocation({**SALLOC, "SLURM_NTASKS": "4", name: value})


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 9)), min_size=1, max_size=6))
def test_tasks_per_node_as_slurm_writes_it(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{times})" if times > 1 else str(n) for n, times in runs)
    assert list(tasks_per_node(text)) == [n for n, times in runs for _ in range(times)]


def test_one_of_many_tasks_is_refused() -> None:
    refuse_step({})
    refuse_step({"SLURM_STEP_NUM_TASKS": "1"})
    with pytest.raises(UsageError, match="task 3 of 8"):
        refuse_step({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"})


# -- commands ------------------------------------------------------------------------------------------


def test_the_step() -> None:
    words = step_command("7", ["h1", "h2", "h4"], (22, 5), "exit 0")
    assert words[:6] == ["srun", "--jobid=7", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--nodelist=h[1-2,4]"]
    assert {"--kill-on-bad-exit=1", "--input=all", "--export=ALL", "--mpi=none", "--overlap"} <= set(words)
    assert "--overlap" not in step_command("7", ["h1"], (20, 2), "exit 0")
    assert words[-3:] == ["/bin/sh", "-c", "exit 0"]


def test_what_was_asked_for_the_job_does_not_bind_the_step() -> None:
    given = {"SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "7", "SLURM_GPUS_PER_TASK": "1",
             "SLURM_EXPORT_ENV": "NONE", "PATH": "/bin"}  # fmt: skip
    assert step_environment(given) == {"SLURM_JOB_ID": "7", "PATH": "/bin"}


def test_versions() -> None:
    assert read_version("slurm-wlm 22.05.8\n") == (22, 5)
    assert read_version("slurm 20.11.9") == (20, 11)
    assert read_version("") == (0, 0)


# What pyxis adds to `srun --help` (github.com/NVIDIA/pyxis/wiki/Usage), shortened, between options of Slurm's own.
PYXIS_HELP = """
      --container             Path to OCI container bundle
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container filesystem.
      --container-mounts=SRC:DST[:FLAGS][,SRC:DST...]
                              [pyxis] bind mount[s] inside the container.
      --container-workdir=PATH [pyxis] working directory inside the container
"""


def test_a_container_by_pyxis_is_asked_for_in_its_documented_options() -> None:
    """pyxis is nowhere to be had without root of a cluster: its own help says what it takes."""
    assert knows_containers(PYXIS_HELP)
    assert not knows_containers("      --container             Path to OCI container bundle")  # Slurm's own since 21.08
    spec = RunSpec.of(
        container_image="nvcr.io#nvidia/pytorch:24.05-py3", workdir="/shared/p", output_dir="out", data_paths=("/data",)
    )
    words = pyxis_options(spec, "/home/me")
    assert words == [
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3",
        "--container-mounts=/shared/p:/shared/p,/home/me/out:/home/me/out,/data:/data",
    ]
    documented = set(re.findall(r"--container-[a-z]+", PYXIS_HELP))
    assert {word.partition("=")[0] for word in words} <= documented
    command = step_command("7", ["h1"], (23, 2), "boot", words)
    assert command[-5:] == [*words, "/bin/sh", "-c", "boot"]
    with pytest.raises(UsageError, match="cannot be mounted"):
        pyxis_options(RunSpec.of(container_image="x", workdir="/a,b"), "/")


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("/images/train.sif", "/images/train.sif"),
        ("train.sif", "train.sif"),
        ("nvcr.io#nvidia/pytorch:24.05-py3", "docker://nvcr.io/nvidia/pytorch:24.05-py3"),
        ("oras://registry/train:1", "oras://registry/train:1"),
    ],
)
def test_a_container_by_apptainer_is_around_each_rank(image: str, named: str) -> None:
    spec = RunSpec.of(container_image=image, wrap="numactl -m 0")
    assert apptainer_command(spec, "/w d") == f"apptainer exec --nv '--bind=/w d' {named} numactl -m 0"


def test_options_of_sbatch() -> None:
    given = ["--time=1:00:00 --qos=long", "--comment='a b'"]
    assert check_sbatch(given) == ["--time=1:00:00", "--qos=long", "--comment=a b"]
    assert check_sbatch(["-t 10", "-p gpu"]) == ["-t", "10", "-p", "gpu"]
    own = ("--array=1-4", "-a 1-4", "-a1-4", "--wrap=x", "-N2", "--nodes 3", "--signal=USR2", "-o x", "--chdir=/")
    for text in own:
        with pytest.raises(UsageError, match="not possible here"):
            check_sbatch([text])
    with pytest.raises(UsageError, match="options of sbatch only"):
        check_sbatch(["train.py"])
    with pytest.raises(UsageError, match="quotation"):
        check_sbatch(["--comment='a"])


# -- a spec as words -----------------------------------------------------------------------------------


def test_a_spec_becomes_the_options_that_give_it_again() -> None:
    spec = RunSpec.of(
        command=("train.py", "--lr", "0.1", "--name=a b"), name="demo", slurm=True, partition="gpu",
        sbatch=("--time=5", "--gres=gpu:8"), nodes=4, nproc=8, python="/opt/py", workdir="/shared/x y", sync=True,
        prelude="module load cuda\nulimit -n 4096", wrap="apptainer exec --nv x.sif", env={"A": "b c", "TOKEN": "x"},
        network="10.0.0.0/8", check=False, allow=("shm", "own_name"), lease=90.0, stop_grace=12.5, retries=2,
        step_pattern=r"-step (\d+)", fold=False, debug=True, runs_dir="/shared/runs", output_dir="/shared/out",
    )  # fmt: skip
    words = as_options(spec, "run")
    assert "x" not in words and words[-5:] == ["--", "train.py", "--lr", "0.1", "--name=a b"]
    declared = COMMANDS["run"]
    assert isinstance(declared, Declared)
    given = given_of(declared, words)
    again = resolve(given, {"TOKEN": "x", "WANDB_API_KEY": "y"}, {}, config_source="").spec
    assert secret_values(spec) == {"TOKEN": "x"}
    assert again.launch.forward == ("TOKEN",)
    assert RunSpec.of(**{**dict(again.values()), "forward": (), "env": spec.launch.env}) == spec


# -- words of Slurm's ----------------------------------------------------------------------------------

SCONTROL = (
    "JobId=12 JobName=job sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=429 Nice=0 Account=(null) QOS=(null)"
    " JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=0:15"
    " RunTime=00:00:06 TimeLimit=00:01:00 StartTime=2026-11-21T14:10:19 EndTime=2026-11-21T14:11:19"
    " PreemptTime={preempt} NodeList=h[1-2] BatchHost=h1 NumNodes=2 Command=/x y/job.sh WorkDir=/x Power="
)


def test_scontrol() -> None:
    job = read_scontrol(SCONTROL.format(state="RUNNING", reason="None", preempt="None"))
    assert job is not None and (job.id, job.state, job.reason, job.nodes) == ("12", "RUNNING", "", "h[1-2]")
    assert (job.exit_code, job.exit_signal, job.restarts, job.limit, job.preempted) == (0, 15, 1, "00:01:00", False)
    assert job.active and not job.waits and not job.over
    assert read_scontrol("slurm_load_jobs error: Invalid job id specified") is None


def test_sacct() -> None:
    text = "12|CANCELLED by 1000|0:15|h[1-2]|2026-11-21T14:10:19|2026-11-21T14:11:19|00:01:00|None\n"
    job = read_sacct(text, "12")
    assert job is not None and (job.state, job.by, job.over) == ("CANCELLED", "1000", True)
    assert read_sacct(text, "13") is None


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("Resources", "until enough nodes are free"), ("Priority", "higher priority"), ("", "not considered it yet"),
        ("ReqNodeNotAvail, UnavailableNodes:h3", "down, drained or reserved"), ("PartitionNodeLimit", "--nodes"),
        ("PartitionTimeLimit", "--time"), ("JobHeldUser", "scontrol release 12"), ("AssocGrpGRES", "AssocGrpGRES"),
        ("AssocGrpCpuLimit", "a limit of the account or user"), ("QOSMaxJobsPerUserLimit", "a limit of the QOS"),
        ("QOSMaxNodePerJobLimit", "more than one job may have"), ("SomethingNew", "SomethingNew"),
    ],
)  # fmt: skip
def test_reasons_in_plain_words(reason: str, says: str) -> None:
    assert says in waiting(SlurmJob("12", "PENDING", reason))


@pytest.mark.parametrize(
    ("reason", "partition", "hopeless"),
    [
        ("PartitionNodeLimit", "gpu", True), ("PartitionTimeLimit", "gpu", True), ("BadConstraints", "gpu", True),
        ("DependencyNeverSatisfied", "gpu", True), ("QOSMaxWallDurationPerJobLimit", "gpu", True),
        ("AssocMaxNodePerJobLimit", "gpu", True), ("QOSMinGRES", "gpu", True), ("InvalidAccount", "gpu", True),
        ("PartitionTimeLimit", "gpu,long", False), ("Resources", "gpu", False), ("Priority", "gpu", False),
        ("QOSMaxJobsPerUserLimit", "gpu", False), ("AssocGrpGRES", "gpu", False), ("JobHeldUser", "gpu", False),
        ("BeginTime", "gpu", False), ("Dependency", "gpu", False), ("PartitionDown", "gpu", False), ("", "gpu", False),
        ("ReqNodeNotAvail, UnavailableNodes:h3", "gpu", False),
    ],
)  # fmt: skip
def test_reasons_that_waiting_does_not_end(reason: str, partition: str, hopeless: bool) -> None:
    job = SlurmJob("12", "PENDING", reason, partition=partition)
    assert is_hopeless(job) is hopeless
    assert not is_hopeless(SlurmJob("12", "RUNNING", reason, partition=partition))
    if hopeless:
        finding = never_starts(job, "demo-1")
        assert reason in finding.message and "allranks stop demo-1" in finding.remedy
        assert finding.id == "slurm-config"


@pytest.mark.parametrize(
    ("job", "cause", "says"),
    [
        (SlurmJob("12", "TIMEOUT", limit="00:10:00"), "slurm-preempted-or-timeout", "time limit (00:10:00) was up"),
        (SlurmJob("12", "DEADLINE"), "slurm-preempted-or-timeout", "deadline"),
        (SlurmJob("12", "PREEMPTED"), "slurm-preempted-or-timeout", "preempted"),
        (SlurmJob("12", "REQUEUED", preempted=True), "slurm-preempted-or-timeout", "preempted"),
        (SlurmJob("12", "NODE_FAIL", nodes="h[1-2]"), "node-network-down", "a node of h[1-2]"),
        (SlurmJob("12", "NODE_FAIL", failed_node="h2"), "node-network-down", "h2 failed"),
        (SlurmJob("12", "OUT_OF_MEMORY"), "host-out-of-memory", "memory"),
        (SlurmJob("12", "CANCELLED", by="1000"), "slurm-cancelled", "by user 1000"),
        (SlurmJob("12", "BOOT_FAIL"), "slurm-config", "could not start"),
    ],
)
def test_ends(job: SlurmJob, cause: str, says: str) -> None:
    finding = ended(job)
    assert finding is not None and (finding.id, finding.check) == (cause, "slurm")
    assert says in finding.message and "{" not in finding.remedy


def test_a_job_that_ended_by_itself_has_no_reason() -> None:
    assert [ended(SlurmJob("12", state)) for state in ("COMPLETED", "FAILED", "RUNNING", "PENDING")] == [None] * 4


def test_an_announced_end_is_the_limit_where_that_is_near() -> None:
    job = SlurmJob("12", "RUNNING", end="2026-11-21T14:11:19", limit="00:01:00")
    end = datetime.fromisoformat(job.end).timestamp()
    assert "time limit (00:01:00)" in warned(job, end - 45).message
    assert "preempted" in warned(job, end - 4000).message
    assert "preempted" in warned(SlurmJob("12", "RUNNING", end="Unknown"), end).message


def test_the_time_that_slurm_gives_is_that_of_its_own_options() -> None:
    """KillWait once Slurm ends the job; before it GraceTime or EndTime, as scontrol of 22.05 shows them."""
    preempted_t = datetime.fromisoformat("2026-11-24T15:06:16").timestamp()
    preempted = SlurmJob("8", "RUNNING", preempted=True, preempt_time="2026-11-24T15:06:16", partition="low")
    assert time_given(SlurmJob("8", "COMPLETING"), preempted_t, 6) == GivenTime(6, "KillWait")
    assert time_given(SlurmJob("8", "RUNNING"), preempted_t, 6) is None, "it goes on"
    assert time_given(SlurmJob("8", "RUNNING", end="2026-11-24T19:06:16"), preempted_t, 6) is None, "it goes on"
    limit = SlurmJob("8", "RUNNING", end="2026-11-24T15:06:56", limit="00:01:00")
    assert time_given(limit, preempted_t, 6) == GivenTime(40, "EndTime")
    assert "40 s before (--signal)" in warned(limit, preempted_t).message
    assert time_given(preempted, preempted_t, 6) is None, "scontrol hides EndTime of a job without a time limit"
    limited = replace(preempted, end="2026-11-24T15:06:26")
    unlimited = replace(preempted, grace_time=10)
    for job in (limited, unlimited):
        assert time_given(job, preempted_t + 3, 6) == GivenTime(7, "GraceTime")
        message = warned(job, preempted_t + 0.5).message
        assert message.endswith("ranks were ended in order within 10 s (GraceTime)"), message
    assert "scontrol show partition low: GraceTime=10" in warned(unlimited, preempted_t).evidence


def test_status_says_when_slurm_ends_a_job_that_runs() -> None:
    limit = SlurmJob("8", "RUNNING", end="2026-11-24T15:06:56", limit="00:01:00")
    end = datetime.fromisoformat(limit.end).timestamp()
    assert nearly_over(limit, end - 120) == "its time is up in 120 s (EndTime)"
    assert nearly_over(replace(limit, preempted=True), end - 8) == "it is preempted in 8 s (GraceTime)"
    assert [nearly_over(limit, end - 3600), nearly_over(SlurmJob("8", "COMPLETING"), end)] == ["", ""]


@pytest.mark.parametrize("job", [SlurmJob("8", "REQUEUED"), SlurmJob("8", "PREEMPTED"), SlurmJob("8", "TIMEOUT")])
def test_an_end_without_a_warning_says_kill_wait(job: SlurmJob) -> None:
    finding = ended(job, kill_wait=6)
    assert finding is not None and finding.message.endswith(", and ranks had 6 s (KillWait)"), finding
    assert "scontrol show config: KillWait = 6 sec" in finding.evidence


def test_slurmstepd_says_why() -> None:
    limit = "0: slurmstepd-h1: error: *** STEP 3.0 ON h1 CANCELLED AT 2026-11-21T14:11:45 DUE TO TIME LIMIT ***\n"
    plain = "slurmstepd-h1: error: *** JOB 3 ON h1 CANCELLED AT 2026-11-21T14:10:45 ***\n"
    node = limit.replace("TIME LIMIT", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
    assert cancelled("") is None
    assert (cancelled(plain) or ("",))[0] == "CANCELLED"
    assert (cancelled(plain + limit + plain) or ("",))[0] == "TIMEOUT"
    assert (cancelled(node) or ("",))[0] == "NODE_FAIL"
    assert (cancelled(limit.replace("TIME LIMIT", "PREEMPTION")) or ("",))[0] == "PREEMPTED"
    assert cancelled(limit, "2026-11-21T14:11:46") is None
    assert cancelled(limit, "2026-11-21T14:11:45") == cancelled(limit, "") == cancelled(limit)


def test_slurmstepd_on_memory() -> None:
    line = (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4.0. Some of your processes may have been killed by "
        "the cgroup out-of-memory handler."
    )
    assert out_of_memory(f"x\n{line}\ny") == line
    assert out_of_memory("oom") == ""


def test_seats_of_a_step() -> None:
    seats = {0: Seat(0), 1: Seat(1, hello=HelloControl(1, instance="a"), taken=True)}
    assert _admit(seats, HelloControl(0), "10.0.0.1") == 0
    assert _admit(seats, HelloControl(1, instance="a"), "10.0.0.1") == 1, "the same task again"
    for hello in (HelloControl(2), HelloControl(-1), HelloControl(1, instance="b")):
        with pytest.raises(Refuse):
            _admit(seats, hello, "10.0.0.1")


def test_a_step_ships_the_files_that_its_agents_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relays that a task starts get their files from the task: without probe.py an audit sees nothing."""
    srun = tmp_path / "srun"
    sent = tmp_path / "sent"
    srun.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo slurm 23.11.4 && exit\nexec cat > {sent}\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    step = Step(RunSpec.of(), virtual_cluster(1), "7", lambda text: None, Advice())
    step.start(AgentHeader("agent", "r", "node_00", "r/node_00", lease=30.0, grace=1.0, tests=True, audit=True))
    assert step.srun is not None and step.srun.wait(BOUND) == 0
    step.finish("")
    data = sent.read_bytes()
    parts = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        parts.append(data[4:end])
        data = data[end:]
    header = json.loads(parts[1])
    assert len(parts) == 2 + len(header["files"])
    assert {"runner.py", "probe.py", "fabric.zip"} <= set(header["files"])


def test_a_step_that_cannot_start_says_why_for_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second node's channel failed with "threads can only be started once", an internal error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    jobs.version.cache_clear()
    step = Step(RunSpec.of(), virtual_cluster(2), "7", lambda text: None, Advice())
    for _ in range(2):
        with pytest.raises(UsageError, match="srun is not on PATH"):
            step.start(AgentHeader("agent", "r", "node_00", "r/node_00", lease=30.0, grace=1.0))
    step.finish("")
    assert "listener" not in [thread.name for thread in threading.enumerate()]
