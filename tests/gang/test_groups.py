"""Who trains alone: a failure under every launcher where a process group is smaller than planned."""

import pytest
from tests.gang.test_gang import Drive

from allranks.diagnose.causes import exit_code
from allranks.diagnose.incident import Incident
from allranks.diagnose.verdict import judge
from allranks.gang.groups import APART_FOR
from allranks.gang.states import State, Tick
from allranks.protocol.codec import DecodeError
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import ExitMessage, WorldMessage, read_message


def report(drive: Drive, rank: int, what: str, size: int = 0) -> list[str]:
    return drive.feed(ReportMessage(what, rank, world_size=size), drive.node_of(rank))


@pytest.mark.parametrize("launcher", ["direct", "torchrun", "accelerate", "deepspeed", "colossalai"])
def test_a_group_that_is_too_small(launcher: str) -> None:
    drive = Drive(count=2, nproc=2, launcher=launcher).running()
    assert report(drive, 1, "initialised", 1)[:2] == ["finding", "ending"]
    (finding,) = drive.roster.findings
    assert (finding.id, finding.status) == ("world-size-mismatch", "fail")
    assert (finding.where.node, finding.where.rank) == ("h0", 1)
    assert finding.message.startswith("each process trains alone")
    assert "made a process group of 1, and 4 ranks were planned" in finding.message
    assert launcher == "direct" or f"under {launcher}:" in finding.message
    assert report(drive, 2, "initialised", 1) == ["rank-initialised"], "said once"


def test_a_process_without_a_rank() -> None:
    drive = Drive(count=2, nproc=2, launcher="accelerate").running()
    assert report(drive, 2, "alone", 1)[:2] == ["finding", "ending"]
    assert "--launcher accelerate" in drive.roster.findings[0].remedy
    assert drive.roster.state is State.ENDING


def test_some_of_the_ranks() -> None:
    drive = Drive(count=2, nproc=2, launcher="torchrun").running()
    report(drive, 0, "initialised", 2)
    (finding,) = drive.roster.findings
    assert finding.message.startswith("each process trains with some of the others alone under torchrun")


def test_the_planned_size_and_more_are_fine() -> None:
    drive = Drive(count=2, nproc=2, launcher="accelerate").running()
    assert [report(drive, r, "initialised", 4) for r in range(3)] == [["rank-initialised"]] * 3
    assert report(drive, 3, "initialised", 8) == ["rank-initialised", "all-initialised"]
    assert drive.roster.findings == []


def test_it_can_be_allowed() -> None:
    drive = Drive(count=2, nproc=1, allow=("world-size-mismatch",)).running()
    assert report(drive, 0, "initialised", 1) == ["finding", "rank-initialised"]
    assert drive.roster.findings[0].status == "warn"
    assert drive.roster.state is State.RUNNING


def ended(launcher: str, say: bool, **spec: object) -> Drive:
    """All ranks end with 0; `say`: having said that they made no group."""
    drive = Drive(count=2, nproc=1, launcher=launcher, **spec).running()
    for rank in range(2):
        if say:
            report(drive, rank, "never-joined", 2)
        drive.exit(str(rank), "code=0")
    return drive


@pytest.mark.parametrize(
    ("launcher", "status"),
    [("accelerate", "fail"), ("deepspeed", "fail"), ("colossalai", "fail"), ("direct", "warn"), ("torchrun", "warn")],
)
def test_no_group_was_ever_made(launcher: str, status: str) -> None:
    """Under a launcher for groups it is a failure; elsewhere ranks may share nothing."""
    (finding,) = ended(launcher, say=True).roster.findings
    assert (finding.id, finding.status) == ("world-size-mismatch", status)
    if status == "fail":
        assert finding.message.startswith(f"each process trained alone under {launcher}: all 2 ended with 0")


@pytest.mark.parametrize("launcher", ["direct", "torchrun", "accelerate", "command"])
def test_silence_is_no_evidence_and_is_said(launcher: str) -> None:
    """A report can be lost, and a program without torch makes none: the run is done, with a warning."""
    drive = ended(launcher, say=False)
    (finding,) = drive.roster.findings
    assert (finding.id, finding.status) == ("world-size-mismatch", "warn")
    assert finding.message == "no process group of torch was seen: 2 nodes may each have worked alone"
    assert drive.roster.failed_at is None


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_said_of_one_node_and_where_it_is_meant(count: int) -> None:
    allow = ("world-size-mismatch",) if count == 2 else ()
    drive = Drive(count=count, nproc=2, allow=allow).running()
    for rank in range(2 * count):
        drive.exit(str(rank), "code=0")
    assert drive.roster.findings == []


def left(drive: Drive, rank: str, *commands: str) -> None:
    drive.feed(ExitMessage(int(rank), 0, code=0, background=commands), f"h{rank}")


@pytest.mark.parametrize(
    ("seconds", "on_all", "status"), [(2.0, True, "fail"), (2.0, False, "warn"), (60.0, True, "warn")]
)
def test_a_script_that_leaves_its_training_in_the_background(seconds: float, on_all: bool, status: str) -> None:
    """It ends with 0 at once, and the training with it. What runs beside a training is found at the end."""
    drive = Drive(count=2, nproc=1, launcher="command").running()
    drive.now += seconds
    left(drive, "0", "python train.py")
    left(drive, "1", *(["python train.py"] if on_all else []))
    (finding,) = drive.roster.findings
    assert (finding.id, finding.status, finding.where.node) == ("rank-exited-early", status, "h0")
    assert "left `python train.py` in the background" in finding.message
    verdict = judge(Incident(0, 2, {"h0": (0,), "h1": (1,)}, findings=(finding,)))
    assert (verdict is None) == (status == "warn")
    assert verdict is None or exit_code(verdict, None, program_failed=False) == 1


def test_what_a_script_leaves_beside_the_world_of_the_run_is_ended_without_a_word() -> None:
    drive = Drive(count=2, nproc=1, launcher="command").running()
    world(drive, "h0", here=1, size=2, lives=False)
    for rank in ("0", "1"):
        left(drive, rank, "python monitor.py")
    assert drive.roster.findings == []


def test_a_training_that_lives_on_when_its_script_ends_is_no_success() -> None:
    drive = Drive(count=2, nproc=1, launcher="command").running()
    world(drive, "h0", here=1, size=2)
    drive.now += 60.0
    for rank in ("0", "1"):
        left(drive, rank, "python train.py")
    assert statuses(drive) == [("rank-exited-early", "fail")]


def world(drive: Drive, node: str, here: int = 2, size: int = 2, lives: bool = True, is_all: bool = True) -> None:
    drive.feed(WorldMessage(0, 0, size, here, lives, "pg.py", is_all), node)


def wait(drive: Drive, seconds: float) -> list[str]:
    drive.now += seconds
    return drive.feed(Tick())


def apart(is_all: bool = True, **spec: object) -> Drive:
    drive = Drive(count=2, nproc=1, launcher="command", **spec).running()
    world(drive, "h0", is_all=is_all)
    world(drive, "h1", is_all=is_all)
    return drive


def statuses(drive: Drive) -> list[tuple[str, str]]:
    return [(f.id, f.status) for f in drive.roster.findings]


def test_nodes_that_train_apart_end_the_run() -> None:
    drive = apart()
    assert drive.roster.findings == [], "one node may look at itself for a moment before the training"
    wait(drive, APART_FOR)
    (finding,) = drive.roster.findings
    assert (finding.id, finding.status, drive.roster.state) == ("nodes-train-apart", "fail", State.ENDING)
    assert finding.message.startswith("each node trains on its own: h0 and h1 have each a world of 2 ranks")
    line = finding.remedy.split("`")[1]
    assert line.startswith("allranks run --nproc=2 ") and line.endswith(" pg.py")
    verdict = judge(Incident(0, 2, {"h0": (0,), "h1": (1,)}, findings=(finding,)))
    assert verdict is not None and exit_code(verdict, None, program_failed=False) == 1


@pytest.mark.parametrize("joins", [True, False])
def test_what_may_be_no_more_than_a_preparation_is_a_warning(joins: bool) -> None:
    """A program or a script can do more after it: the world of the run, or nothing."""
    drive = apart(is_all=False)
    wait(drive, 100)
    assert statuses(drive) == [("nodes-train-apart", "warn")] and drive.roster.state is State.RUNNING
    if joins:
        report(drive, 0, "init-entered")
    for rank in range(2):
        drive.exit(str(rank), "code=0")
    assert statuses(drive)[1:] == ([] if joins else [("nodes-train-apart", "fail")])


def test_a_world_of_the_programs_own_processes_is_mended_in_the_program() -> None:
    drive = Drive(count=2, nproc=1).running()
    for node in ("h0", "h1"):
        drive.feed(WorldMessage(0, 0, 8, 8, lives=True, is_own=True), node)
    wait(drive, APART_FOR)
    assert statuses(drive) == [("nodes-train-apart", "warn")], "the rank itself may train after them"
    for rank in range(2):
        drive.exit(str(rank), "code=0")
    assert statuses(drive)[1:] == [("nodes-train-apart", "fail")]
    assert "torch.multiprocessing.spawn" in drive.roster.findings[-1].remedy


def test_a_world_across_the_nodes_that_the_programs_processes_made_is_the_runs() -> None:
    drive = Drive(count=2, nproc=1).running()
    for node in ("h0", "h1"):
        drive.feed(WorldMessage(0, 0, 16, 8, lives=True, is_own=True), node)
    for rank in range(2):
        drive.exit(str(rank), "code=0")
    assert drive.roster.findings == []


def test_worlds_are_known_to_a_controller_that_was_away() -> None:
    """Their agents say them again before the exits that end the run."""
    drive = Drive(count=2, nproc=1, launcher="command").running()
    for rank, node in enumerate(("h0", "h1")):
        ended = {str(rank): {"pid": 7, "exit": {"rank": rank, "code": 0}}}
        worlds = [{"attempt": 0, "number": 0, "size": 2, "here": 2}]
        drive.hello(node, {"attempt": 0, "ranks": ended, "worlds": worlds})
    assert statuses(drive) == [("nodes-train-apart", "fail")]


def test_training_apart_can_be_meant() -> None:
    drive = apart(allow=("nodes-train-apart",))
    wait(drive, APART_FOR)
    assert [f.status for f in drive.roster.findings] == ["warn"] and drive.roster.state is State.RUNNING


@pytest.mark.parametrize("case", ["one node", "joined", "spanning", "over", "part"])
def test_worlds_that_are_no_reason(case: str) -> None:
    """An evaluation on one node, the run's own world, one across the nodes, one that was there before the training."""
    drive = Drive(count=2, nproc=1, launcher="command").running()
    world(drive, "h0")
    if case == "joined":
        report(drive, 0, "init-entered")
    if case != "one node":
        world(drive, "h1", lives=case != "over", here=1 if case in ("part", "spanning") else 2)
    if case == "spanning":
        world(drive, "h0", here=1)
    wait(drive, 100)
    assert drive.roster.findings == [] and drive.roster.state is State.RUNNING


@pytest.mark.parametrize(
    "wrong", [{"here": 3}, {"size": 0, "here": 0}, {"size": 10**9}, {"number": 16}, {"number": -1}, {"here": 0}]
)
def test_a_world_that_cannot_be_is_not_read(wrong: dict[str, int]) -> None:
    with pytest.raises(DecodeError):
        read_message({"type": "world", "attempt": 0, "number": 0, "size": 2, "here": 2, **wrong})


def test_a_program_with_a_newline_stands_in_no_command() -> None:
    message = read_message({"type": "world", "attempt": 0, "number": 0, "size": 2, "here": 2, "program": "a.py\nrm x"})
    assert isinstance(message, WorldMessage) and message.program == ""
