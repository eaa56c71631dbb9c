"""Fuzzers of a run's figures over time: evidence/usage.jsonl, evidence/progress.jsonl, and what is drawn of them."""

from __future__ import annotations

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped, hostile_json, mutated

from allranks.gang import recording as usage_log
from allranks.gang.recording import UsageLog, UsageSample
from allranks.report.progressplot import ROW, progress_plots
from allranks.runs import progresshistory
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeStatus, RankStatus, StatusDocument
from allranks.runs.progresshistory import MOST_READ, SIZE_LIMIT, ProgressHistory, read_progress

pytestmark = pytest.mark.fuzz
ROWS: list[dict[str, Any]] = [
    {"schema": 1, "t": 1000.0 + 2 * at, "attempt": 0, "steps": [at, at + 1], "lateness": [0.1, None], "goodput": 0.5}
    for at in range(4)
]
ROW_OF_ONE = json.dumps(ROWS[0]).encode() + b"\n"
STATUS = StatusDocument(
    "r", "running", 2000.0, 0, None, 2, (NodeStatus("h1", 0, None, "running", (RankStatus(0, step=9),)),)
)


def evidence(place: Path, name: str) -> Path:
    (place / "evidence").mkdir(exist_ok=True)
    return place / "evidence" / name


def line(rng: random.Random, document: dict[str, Any]) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return hostile_json(rng)
    text = json.dumps(document if kind == 1 else mutated(document, rng)).encode()
    return flipped(text, rng) if kind == 3 else text


def test_rows_of_progress_and_what_is_drawn(tmp_path: Path, campaign: Campaign) -> None:
    """A page has plots of what fits, or none, and a controller that takes the run over goes on with the file."""
    file = evidence(tmp_path, progresshistory.NAME)
    run = RunDirectory(tmp_path)
    for rng in campaign.cases(300):
        rows = [line(rng, row) if rng.random() < 0.6 else json.dumps(row).encode() for row in ROWS]
        file.write_bytes(b"\n".join([*rows, b""]))
        plots = progress_plots(read_progress(run))
        if plots is not None:
            assert "nan" not in str(plots) and "inf" not in str(plots)
            campaign.counts["drawn"] = campaign.counts.get("drawn", 0) + 1
            if plots.heatmap is not None:
                assert 0 < plots.heatmap.frame.height <= 48 * ROW
        ProgressHistory(run).note(STATUS, 1e9)
        assert read_progress(run)[-1].steps == (9,)
    assert campaign.counts["drawn"] > 0


def test_rows_without_end_are_bounded(tmp_path: Path) -> None:
    evidence(tmp_path, progresshistory.NAME).write_bytes(ROW_OF_ONE * (SIZE_LIMIT // len(ROW_OF_ONE)))
    assert len(read_progress(RunDirectory(tmp_path))) == MOST_READ


def test_rows_for_many_ranks_take_their_own_memory_alone(tmp_path: Path) -> None:
    file = evidence(tmp_path, progresshistory.NAME)
    wide = [{"t": 1000.0 + at, "attempt": 0, "steps": [at % 9] * (500_000 if at % 18 == 1 else 1)} for at in range(60)]
    file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in wide))
    rows = read_progress(RunDirectory(tmp_path))
    assert max(len(row.steps) for row in rows) == 500_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plots = progress_plots(rows)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB: a list a column took 230,000
    assert plots is not None and plots.heatmap is not None
    assert sum(len(layer.path) for layer in plots.heatmap.layers) <= 48 * 120


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(evidence(tmp_path, usage_log.NAME))
    os.mkfifo(evidence(tmp_path, progresshistory.NAME))
    run = RunDirectory(tmp_path)
    UsageLog(run).add(UsageSample("h1"))
    assert read_progress(run) == []
