"""Following a job from the login node: who ended it, what is told of the queue, when it is given up."""

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.shell import Shell

from allranks.cli import status
from allranks.cli.status import EngineReport, JobReport
from allranks.diagnose.slurm_jobs import SlurmJob
from allranks.engines import Stopped, settle
from allranks.engines import following as loop
from allranks.engines.following import read_request
from allranks.engines.signals import Signals
from allranks.engines.slurm import engine, jobs
from allranks.engines.slurm.engine import HOPELESS_LOOKS, JobFollower
from allranks.findings import Finding, Verdict
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.run_facts import Fact, RunStart, Stamped, write_line
from allranks.report.live import OutputView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, Timing
from allranks.runs.result import write_result
from allranks.runs.view import View

CANCELLED = SlurmJob("12", "CANCELLED", end="2026-11-22T07:00:00")


class Kept(OutputView):
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def event(self, stamped: Stamped[Fact]) -> None:
        self.told.append(str(write_line(stamped)["message"]))


Looks = Callable[..., tuple[JobFollower, Kept]]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory.create(tmp_path, "run", 1_795_000_000.0, "-job12")
    found.write_document("run.json", {"run": found.name, "uid": "", "started": 1.0, "spec": {}, "nodes": []})
    found.write_document("status.json", {"run": found.name, "state": "queued", "t": 1.0, "nodes": []})
    found.write_document("job.json", {"job": "12"})
    return found


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals()
    yield made
    made.restore()


def test_a_run_whose_job_runs_is_not_queued(run: RunDirectory) -> None:
    report = replace(status.describe(run, 2.0), state="queued")
    waiting = replace(report, engine=EngineReport(JobReport("12", "PENDING", "the queue is full")))
    assert status.lines(waiting) == [f"{run.name}: queued", "Slurm job 12: PENDING, the queue is full"]
    starting = replace(report, engine=EngineReport(JobReport("12", "RUNNING")))
    assert status.lines(starting) == [f"{run.name}: starting", "Slurm job 12: RUNNING"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("sbatch: error: invalid partition specified: man", "hint: sinfo -s"),
        ("sbatch: unrecognized option '--tiem=1'", "hint: sbatch --help"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "hint: sacctmgr show qos"),
        ("sbatch: error: fetch_config: DNS SRV lookup failed", "sbatch does not find the cluster from this machine"),
    ],
)
def test_what_sbatch_refuses_has_a_command_that_shows_what_there_is(
    words: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\necho {shlex.quote(words)} >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(jobs.SlurmError, match=hint):
        jobs.submit("", dict(os.environ), str(tmp_path))


# -- who ended it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "wanted", "code"),
    [(signal.SIGTERM, "stop", 143), (signal.SIGINT, "ctrl-c", 130), (signal.SIGHUP, "leave", 143)],
)
def test_the_exit_code_tells_ctrl_c_from_sigterm(
    run: RunDirectory, signals: Signals, number: int, wanted: str, code: int
) -> None:
    """A follower that got SIGTERM printed 130."""
    follower = JobFollower(run, "12", Kept())
    os.kill(os.getpid(), number)
    request = read_request(signals, follower)
    assert request == wanted
    assert follower.finish(ResultDocument(exit=143), request).exit == code
    assert follower.finish(ResultDocument(exit=1), request).exit == 1


def test_signals_for_the_ranks_go_to_the_controller_in_the_job(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory, signals: Signals
) -> None:
    """The follower kept SIGUSR1 and SIGUSR2 to itself."""
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(jobs, "tell", lambda job, name: sent.append((job, name)))
    follower = JobFollower(run, "12", view := Kept())
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    names = signals.take_for_the_ranks()
    assert (names, signals.take_for_the_ranks(), signals.take()) == (["USR1", "USR2", "USR2"], [], None)
    follower.pass_signal("USR1")
    assert sent == [] and view.told == ["SIGUSR1 reaches no rank: the run has not begun"]
    follower.begun = True
    for name in names:
        follower.pass_signal(name)
    assert sent == [("12", "USR1"), ("12", "USR2"), ("12", "USR2")]

    def away(job: str, name: str = "TERM") -> None:
        raise jobs.SlurmError("scancel gave no answer")

    monkeypatch.setattr(jobs, "tell", away)
    follower.pass_signal("USR1")
    assert view.told[-1] == "SIGUSR1 is not passed on: scancel gave no answer"


def test_a_stop_that_slurm_did_not_hear_can_be_asked_again(monkeypatch: pytest.MonkeyPatch, run: RunDirectory) -> None:
    """The follower ended with scancel's words, and the job went on."""
    asked: list[bool] = []

    def end_job(job: str, orderly: bool) -> None:
        asked.append(orderly)
        if len(asked) == 1:
            raise jobs.SlurmError("scontrol gave no answer within 30 s")

    monkeypatch.setattr(engine, "end_job", end_job)
    follower = JobFollower(run, "12", view := Kept())
    requests = [signal.SIGINT, signal.SIGTERM, signal.SIGINT]

    def turn() -> dict[str, Any] | None:
        if not requests:
            return {"exit": 143}
        assert follower.stopping == (len(asked) > 1)
        os.kill(os.getpid(), requests.pop(0))
        return None

    monkeypatch.setattr(follower, "turn", turn)
    monkeypatch.setattr(loop, "PAUSE", 0.0)
    assert (follower.follow() or {})["exit"] == 143, "the stop that Slurm heard was SIGTERM's"
    assert asked == [True, True, False]
    assert "not stopped, ask again" in view.told[1]


# -- the queue -----------------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, run: RunDirectory) -> Looks:
    """Makes a follower that has seen these states of the job, one a look, and asks no more."""

    def follower_after(*found: SlurmJob | None) -> tuple[JobFollower, Kept]:
        follower = JobFollower(run, "12", view := Kept())
        left = list(found)
        monkeypatch.setattr(jobs, "look", lambda job: left.pop(0))
        for _ in found:
            follower.ask(0.0)
        follower.ask_at = float("inf")
        return follower, view

    return follower_after


def pending(reason: str) -> SlurmJob:
    return SlurmJob("12", "PENDING", reason, partition="gpu")


def test_reasons_that_take_turns_are_told_once_and_asked_for_less_often(looks: Looks) -> None:
    turns = [pending("Priority"), pending("Resources")]
    assert looks(*turns * 4)[0].pause > looks(*turns)[0].pause
    _, view = looks(*turns * 5, SlurmJob("12", "RUNNING"), pending("Priority"))
    assert [text.split(":")[1].strip() for text in view.told[:2]] == ["Priority", "Resources"]
    assert view.told[2:] == ["running", view.told[0]], "after it ran, the queue is told of again"


def test_a_job_that_waits_for_its_second_start_is_asked_for_as_seldom(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory
) -> None:
    """The result of the first start is there for hours, and slurmctld was asked five times a second."""
    preempted = Finding("slurm-preempted-or-timeout", "fail", "Slurm ended job 12", check="slurm")
    write_result(run, ResultDocument(exit=4, verdict=Verdict(preempted, preempted.id, 0.9)), stopped=False)
    asked: list[str] = []
    monkeypatch.setattr(jobs, "look", lambda job: asked.append(job) or pending("Priority"))
    now = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    follower = JobFollower(run, "12", OutputView())
    for turn in range(600):
        now[0] = turn / 10
        assert follower.turn() is None
    assert len(asked) < 15


def test_who_follows_a_job_that_is_cancelled_while_it_waits_says_so(looks: Looks, run: RunDirectory) -> None:
    follower, _ = looks(pending("Priority"), CANCELLED)
    assert follower.over_since is not None
    follower.over_since = float("-inf")
    result = follower.turn()
    assert result is not None and result.verdict is not None
    assert (result.exit, result.verdict.cause) == (4, "slurm-cancelled")
    assert (run.read_document("status.json") or {})["state"] == "failed"


def test_what_will_not_start_is_given_up_and_left_in_the_queue(looks: Looks, run: RunDirectory) -> None:
    follower, _ = looks(*[pending("PartitionNodeLimit")] * HOPELESS_LOOKS)
    result = follower.turn()
    assert result is not None and result.exit == 4 and result.verdict is not None
    assert result.verdict.cause == "slurm-config"
    assert f"allranks stop {run.name}" in result.verdict.finding.remedy
    assert run.read_document("result.json") is None, "it may be changed, and start after all"


def test_a_reason_in_passing_gives_nothing_up(looks: Looks) -> None:
    hopeless = [pending("PartitionNodeLimit")] * (HOPELESS_LOOKS - 1)
    follower, _ = looks(*hopeless, pending("Resources"), pending("BadConstraints"))
    assert follower.turn() is None


def test_of_a_job_that_slurm_has_forgotten_no_empty_line_is_shown(looks: Looks) -> None:
    follower, view = looks(None)
    assert view.told == [] and follower.over_since is not None


# -- over, and without a follower -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "cause"),
    [(CANCELLED, "slurm-cancelled"), (None, "unknown")],
    ids=["cancelled while it waited", "forgotten"],
)
def test_a_job_that_is_over_has_an_end(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory, job: SlurmJob | None, cause: str
) -> None:
    """It stayed "orphaned" for ever."""
    for going_on in (pending("Resources"), SlurmJob("12", "RUNNING")):
        monkeypatch.setattr(jobs, "look", lambda number, going_on=going_on: going_on)
        settle(run, 1_795_331_000.0)
        assert run.read_document("result.json") is None
    monkeypatch.setattr(jobs, "look", lambda number: job)
    settle(run, 1_795_331_000.0)
    result = run.read_document("result.json") or {}
    assert (result["exit"], result["verdict"]["cause"], run.state()) == (4, cause, "failed")


def test_a_controller_that_has_begun_may_write_its_own_end(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory
) -> None:
    end = 1_795_331_000.0
    monkeypatch.setattr(engine, "seconds_since_end", lambda job, now: now - end)
    monkeypatch.setattr(jobs, "look", lambda number: SlurmJob("12", "COMPLETED"))
    run.append(Stamped("", 1.0, None, RunStart(run.name, "")))
    settle(run, end + engine.LATE / 2)
    assert run.read_document("result.json") is None
    settle(run, end + engine.LATE * 2)
    assert run.read_document("result.json") is not None


# -- slurmctld is away -----------------------------------------------------------------------------------


class Service:
    """slurmctld as its commands show it: away, then with a job in this state."""

    def __init__(self, times_away: int, job: SlurmJob | None) -> None:
        self.times_away = times_away
        self.job = job
        self.before_answer: Callable[[], None] = lambda: None

    def look(self, number: str) -> SlurmJob | None:
        if self.times_away > 0:
            self.times_away -= 1
            raise jobs.SlurmError(f"scontrol show job {number}: Unable to contact slurm controller")
        self.before_answer()
        return self.job


def test_a_job_that_slurm_was_not_asked_about_yet_is_not_over(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory
) -> None:
    """attach while slurmctld was away wrote "job 12 has ended before it started" into a run that went on."""
    service = Service(3, SlurmJob("12", "RUNNING"))
    monkeypatch.setattr(jobs, "look", service.look)
    monkeypatch.setattr(JobFollower, "_patience", lambda self: -1.0)
    follower = JobFollower(run, "12", view := Kept())
    for _ in range(5):
        follower.ask_at = 0.0
        assert follower.turn() is None
    assert run.read_document("result.json") is None
    assert [text.partition(":")[0] for text in view.told] == ["scontrol show job 12", "running"]


def test_a_stop_goes_on_while_slurmctld_is_away_and_keeps_the_result_of_the_run(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory
) -> None:
    """`stop` ended with scontrol's words, and wrote over the result that came while slurmctld answered."""
    service = Service(0, SlurmJob("12", "RUNNING"))
    monkeypatch.setattr(jobs, "look", service.look)
    monkeypatch.setattr(jobs, "tell", lambda number: None)
    monkeypatch.setattr(engine, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(engine, "PAUSE", 0.0)

    def goes_away() -> None:
        service.times_away = 2
        service.job = SlurmJob("12", "COMPLETED")
        service.before_answer = writes_its_end

    def writes_its_end() -> None:
        write_result(run, ResultDocument(run.name, exit=143, timing=Timing(7.0)), stopped=True)

    service.before_answer = goes_away
    stopped = engine.ENGINE.stop(run, 30.0, Kept())
    assert not stopped.code
    result = run.read_result()
    assert result is not None and result.timing.total == 7.0


def test_what_a_stop_could_not_end_is_named(
    monkeypatch: pytest.MonkeyPatch, run: RunDirectory, shell: Shell, tmp_path: Path
) -> None:
    """It was printed as a dictionary of Python."""
    left = {"h1": (RemainingProcess(7, "D", "python t.py --token hunter2"),)}

    def ends_the_job(run: RunDirectory, grace: float, view: View) -> Stopped:
        write_result(run, ResultDocument(run.name, exit=143, left=left), stopped=True)
        return Stopped(run.name, "job", job="12")

    monkeypatch.setattr(engine.ENGINE, "stop", ends_the_job)
    answer = shell("stop", run.name, "--runs-dir", str(tmp_path))
    assert answer.code == 4
    assert answer.out.splitlines()[-1] == "LEFT on h1: pid 7 (python t.py --token <redacted>)"


@pytest.mark.parametrize("verb", ["look", "submit"])
def test_a_command_of_slurm_that_cannot_be_started_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    """An environment that is too large for execve(2), or a program without its x, was an internal error."""
    for name in ("scontrol", "sbatch"):
        (tmp_path / name).write_text("#!/no/such/interpreter\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jobs.SlurmError, match=r"^(scontrol|sbatch): Permission denied"):
        jobs.look("12") if verb == "look" else jobs.submit("#!/bin/sh\n", os.environ, str(tmp_path))
