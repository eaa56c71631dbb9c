"""What an agent remarks: a warning, once, in every attempt that follows, in status, and in the evidence of its node."""

from pathlib import Path

from allranks.cluster.nodes import virtual_cluster
from allranks.diagnose.recorded import AttemptFacts, fold
from allranks.diagnose.verdict import judge
from allranks.engines.ssh import ssh_reach
from allranks.findings import Finding, Verdict
from allranks.gang.session import create
from allranks.protocol.messages import LOW_SPACE, RemarkMessage
from allranks.protocol.run_facts import of_kind
from allranks.runs.view import View
from allranks.settings import RunSpec

from .test_gang import Drive

REMARK = RemarkMessage(LOW_SPACE, "812 MB are left in /tmp/allranks-0")
SAID = "h1: 812 MB are left in /tmp/allranks-0"


def remark(drive: Drive, node: str) -> list[str]:
    return drive.feed(REMARK, node)


def warned(drive: Drive) -> list[Finding]:
    return [f for f in drive.roster.findings if f.id == LOW_SPACE]


def judged(drive: Drive) -> Verdict:
    """By the facts of the run that goes on, and by its log: they are one."""
    kept = AttemptFacts()
    for note in drive.notes:
        kept.take(note)
    live = fold(kept.facts, drive.roster.attempt, drive.names)
    assert fold(drive.notes, drive.roster.attempt, drive.names) == live
    verdict = judge(live)
    assert verdict is not None
    return verdict


def test_it_is_a_warning_once() -> None:
    drive = Drive(3).running()
    assert remark(drive, "h1") == ["finding"]
    assert remark(drive, "h1") == []  # told again over a new connection
    (found,) = warned(drive)
    assert (found.status, found.message, found.where.node) == ("warn", SAID, "h1")
    assert "ssh h1 'du -xh -d1" in found.remedy


def test_it_is_evidence_where_the_run_fails_on_that_node_alone() -> None:
    for rank, is_evidence in (("1", True), ("2", False)):
        drive = Drive(3).running()
        remark(drive, "h1")
        drive.exit(rank, "code=1", error="OSError:_boom")
        assert (SAID in judged(drive).finding.evidence) is is_evidence


def test_it_holds_for_the_attempts_that_follow() -> None:
    drive = Drive(3).running()
    remark(drive, "h1")
    drive.again("1")
    assert remark(drive, "h1") == []
    assert len(warned(drive)) == 1
    drive.exit("1", "code=1")
    assert SAID in judged(drive).finding.evidence
    assert len([f for f in of_kind(drive.notes, Finding) if f.fact.id == LOW_SPACE]) == 1


def test_it_says_nothing_of_a_run_that_ends_well() -> None:
    drive = Drive(3).running()
    remark(drive, "h1")
    for rank in "012":
        drive.exit(rank, "code=0")
    assert judge(fold(drive.notes, 0, drive.names)) is None


def test_the_status_of_its_node_says_it_and_one_machine_says_it_once(tmp_path: Path) -> None:
    spec = RunSpec.of(command=("true",), local=2, nproc=1, runs_dir=str(tmp_path / "runs"))
    controller = create(spec, virtual_cluster(2), ssh_reach(spec), {}, str(tmp_path), View).controller
    controller.feed(REMARK, "local1", 1000.0)
    controller.feed(REMARK, "local0", 1001.0)
    assert [node.warnings for node in controller.status().nodes] == [(), (SAID.replace("h1", "local1"),)]
    controller.recording.close()
