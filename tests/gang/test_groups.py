"""Who trains alone: a failure under every launcher where a process group is smaller than planned."""

from __future__ import annotations

import pytest
from tests.gang.test_gang import Drive

from allranks.diagnose.incident import Incident
from allranks.diagnose.verdict import judge
from allranks.gang.states import Report, State


def report(drive: Drive, rank: int, what: str, size: int = 0) -> list[str]:
    return drive.feed(Report(drive.node_of(rank), drive.now, rank, what, size))


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


@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed", "colossalai"])
def test_no_group_was_ever_made_under_a_launcher_for_groups(launcher: str) -> None:
    (finding,) = ended(launcher, say=True).roster.findings
    assert (finding.id, finding.status) == ("world-size-mismatch", "fail")
    assert finding.message.startswith(f"each process trained alone under {launcher}: all 2 ended with 0")


@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_ranks_may_share_nothing_elsewhere(launcher: str) -> None:
    assert [f.status for f in ended(launcher, say=True).roster.findings] == ["warn"]


@pytest.mark.parametrize("launcher", ["direct", "torchrun", "accelerate", "deepspeed"])
def test_silence_is_no_evidence(launcher: str) -> None:
    """A report can be lost."""
    assert ended(launcher, say=False).roster.findings == []


def test_the_finding_is_the_verdict() -> None:
    gang = ended("accelerate", say=True).gang
    verdict = judge(Incident(0, 2, {"h0": (0,), "h1": (1,)}, findings=tuple(gang.roster.findings)))
    assert verdict is not None and verdict.cause == "world-size-mismatch"
