"""evidence/progress.jsonl: rows come in even pauses, and the file stays bounded."""

import json
from itertools import pairwise
from pathlib import Path

from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeStatus, ProgressRow, RankStatus, StatusDocument
from allranks.runs.progresshistory import EVERY, MOST_ROWS, NAME, ProgressHistory, read_progress


def status(*steps: int | None, attempt: int = 0) -> StatusDocument:
    ranks = tuple(RankStatus(rank, step=step) for rank, step in enumerate(steps))
    return StatusDocument(attempt=attempt, nodes=(NodeStatus("h1", ranks=ranks[::-1]),), goodput=0.5)


def test_a_row_has_all_ranks_in_order(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    history = ProgressHistory(run)
    history.note(status(None, None), 100.0)
    history.note(status(3, None, 4), 101.0)
    history.note(status(5, 5, 5), 101.0 + EVERY / 2)
    history.note(status(6, 6, 6, attempt=1), 101.0 + EVERY)
    assert read_progress(run) == [
        ProgressRow(101.0, 0, (3, None, 4), goodput=0.5),
        ProgressRow(101.0 + EVERY, 1, (6, 6, 6), goodput=0.5),
    ]
    assert (tmp_path / "evidence" / NAME).stat().st_mode & 0o777 == 0o600


def test_a_long_run_has_few_rows_over_all_of_its_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    history = ProgressHistory(run)
    for second in range(20_000):
        history.note(status(second), float(second))
    times = [row.t for row in read_progress(run)]
    assert MOST_ROWS / 2 - 1 <= len(times) <= MOST_ROWS
    assert times[0] == 0.0 and times[-1] > 19_000
    pauses = {after - before for before, after in pairwise(times)}
    assert max(pauses) <= 2 * min(pauses)


def test_another_controller_goes_on_with_the_file(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    ProgressHistory(run).note(status(1), 100.0)
    with (tmp_path / "evidence" / NAME).open("ab") as file:
        file.write(b'{"t": "x"}\n\xff\n')
    again = ProgressHistory(run)
    again.note(status(2), 100.5)
    again.note(status(3), 110.0)
    lines = (tmp_path / "evidence" / NAME).read_text("utf-8", "replace").splitlines()
    assert [json.loads(lines[0])["steps"], json.loads(lines[-1])["steps"]] == [[1], [3]]


def test_a_folder_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("")
    history = ProgressHistory(RunDirectory(tmp_path))
    history.note(status(1), 100.0)
    assert read_progress(RunDirectory(tmp_path)) == []
