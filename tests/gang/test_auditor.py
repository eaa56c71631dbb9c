"""When a running program's loaders can be judged, and what the gang then does."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.gang.test_gang import Drive

from allranks.diagnose.causes import CAUSES, exit_code
from allranks.diagnose.incident import Incident
from allranks.diagnose.verdict import judge
from allranks.exitcodes import CHECK_FAILED
from allranks.findings import Finding
from allranks.gang.auditor import QUIET, Auditor
from allranks.gang.policy import ROWS
from allranks.gang.states import Audited, State
from allranks.protocol.codec import encode
from allranks.protocol.frames import AUDIT, RANK_LOG, Stream
from allranks.report.sentences import closing_lines
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import result_record

BAD = Finding("data-same-samples", "fail", "ranks 0-1 and 2-3 read the same samples", "shard", check="data-audit")
LAYOUT = {0: ("h1", 0), 1: ("h1", 1), 2: ("h2", 0), 3: ("h2", 1)}


def line(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


def loader(number: int = 0, dataset: str = "Images") -> bytes:
    return line(kind="data-loader", loader=number, dataset=dataset, style="map", workers=0)


def batch(at: int, number: int = 0, index: list[int] | None = None) -> bytes:
    index = index if index is not None else [at]
    row = {"loader": number, "epoch": 0, "batch": at, "n": len(index), "index": index, "grad": True}
    return line(kind="data-batch", **row, hash=[f"{i:016x}" for i in index], part="hash")


def auditor_of(
    tmp_path: Path, samples: dict[int, list[int]], attempt: int = 0, ago: float = 1.0, batches: int = 2
) -> Auditor:
    """One whose ranks have told of two samples a batch, some seconds ago."""
    run = RunDirectory(tmp_path)
    auditor = Auditor(batches, run)
    for rank, index in samples.items():
        data = line(kind="data-rank") + loader()
        data += b"".join(batch(at // 2, index=index[at : at + 2]) for at in range(0, len(index), 2))
        path = run.log_path(0, "", AUDIT, rank, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        auditor.take(Stream(RANK_LOG, rank, attempt), time.monotonic())
        auditor.take(Stream(AUDIT, rank, attempt), time.monotonic() - ago)
    return auditor


def looked(auditor: Auditor) -> list[list[str]]:
    """What two looks have fed."""
    fed: list[Audited] = []

    async def look() -> None:
        for _ in range(2):
            auditor.look(LAYOUT, fed.append)
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # type: ignore[arg-type]

    asyncio.run(look())
    return [[f.id for f in event.findings] for event in fed]


@pytest.mark.parametrize("attempt", [0, 2])
def test_rows_become_findings_and_a_document(tmp_path: Path, attempt: int) -> None:
    twins = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [0, 1, 2, 3], 3: [4, 5, 6, 7]}
    findings, fresh = auditor_of(tmp_path, twins, attempt).conclude(LAYOUT, attempt)
    assert [(f.id, f.status) for f in findings] == [("data-same-samples", "fail")]
    assert "ranks 0-1 and 2-3 read the same samples" in findings[0].message
    assert fresh == list(findings)
    folder = tmp_path / "evidence" / "audit" / ("attempt_2" if attempt else "")
    document = json.loads((folder / "audit.json").read_text())
    assert document["findings"][0]["id"] == "data-same-samples" and len(document["coverage"]) == 5


def test_what_was_told_on_the_way_is_not_told_again(tmp_path: Path) -> None:
    auditor = auditor_of(tmp_path, {rank: [0, 1, 2, 3] for rank in LAYOUT})
    assert looked(auditor) == [["data-not-sharded"]]
    findings, fresh = auditor.conclude(LAYOUT, 0)
    assert [f.id for f in findings] == ["data-not-sharded"] and fresh == []


def test_a_loader_is_judged_once_all_ranks_have_noted_enough(tmp_path: Path) -> None:
    samples = {rank: [0, 1, 2, 3] for rank in LAYOUT}
    assert looked(auditor_of(tmp_path, {**samples, 3: [0, 1]})) == []
    assert looked(auditor_of(tmp_path, samples, batches=3)) == []


def test_ranks_without_the_loader_are_waited_for_a_while(tmp_path: Path) -> None:
    samples = {rank: [0, 1, 2, 3] for rank in (0, 1, 2)}
    assert looked(auditor_of(tmp_path, samples, ago=QUIET - 5)) == []
    assert looked(auditor_of(tmp_path, samples, ago=QUIET)) == [["data-not-sharded"]]


def test_a_mistake_of_ours_is_a_finding(tmp_path: Path) -> None:
    path = RunDirectory(tmp_path).log_path(0, "", AUDIT, 0, 0)
    path.parent.mkdir(parents=True)
    path.mkdir()  # can't be read
    ((found,), _) = Auditor(2, RunDirectory(tmp_path)).conclude(LAYOUT, 0)
    assert found.status == "unknown" and "failed itself" in found.message


def audited(drive: Drive, attempt: int = 0) -> list[str]:
    return drive.feed(Audited(attempt, (BAD,)))


def test_what_is_wrong_is_a_warning_and_the_run_goes_on() -> None:
    drive = Drive(audit_data=10).running()
    assert audited(drive) == ["finding"]
    assert drive.roster.state is State.RUNNING
    assert [(f.id, f.status) for f in drive.roster.findings if f.check] == [("data-same-samples", "warn")]
    assert audited(drive, attempt=1) == [], "of another attempt"


def test_on_audit_stop_ends_the_run_with_a_verdict_of_its_own() -> None:
    drive = Drive(audit_data=10, on_audit="stop").running()
    actions = audited(drive)
    assert actions[0] == "finding" and "end>h0" in actions
    found = judge(Incident(0, 3, {"h0": (0,)}, findings=tuple(drive.roster.findings), detected_t=drive.now))
    assert found is not None and found.cause == "data-not-split" and found.finding.message == BAD.message
    assert exit_code(found, None, program_failed=False) == CHECK_FAILED
    assert ROWS[CAUSES[found.cause].charge].again == "never"


def test_the_warning_stands_again_at_the_end() -> None:
    result = {"exit": 0, "directory": "runs/x", "findings": [{**encode(BAD), "status": "warn"}]}
    assert closing_lines(result_record(result))[:2] == [f"DATA      {BAD.message}", "  fix     shard"]
