"""evidence/usage.jsonl: bounded however long a run is, and read back."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.run_directories import read_usage

from allranks.gang import recording as usage_log
from allranks.gang.recording import UsageLog, UsageSample
from allranks.protocol.samples import NodeUsage
from allranks.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "r", 0.0)


def sample(node: str, number: int) -> UsageSample:
    return UsageSample(node, 1, NodeUsage(t=1000.0 + 10 * number, seconds=10.0, cores=8, cpu_used=1.5))


def test_samples_are_read_back(run: RunDirectory) -> None:
    log = UsageLog(run)
    written = [sample(node, number) for number in range(3) for node in ("h1", "h2")]
    for one in written:
        log.add(one)
    path = run.path / "evidence" / "usage.jsonl"
    assert read_usage(run) == written
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b'nonsense\n{"node": 3}\n[]\n\xff\n')
    UsageLog(run).add(sample("h3", 9))  # a controller that goes on with the run
    assert read_usage(run) == [*written, sample("h3", 9)]


def test_a_long_run_keeps_fewer_of_each_node(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "LIMIT", 64 << 10)
    log = UsageLog(run)
    for number in range(5000):
        log.add(sample("h1", number))
        log.add(sample("h2", number))
    assert 48 << 10 < (run.path / "evidence" / "usage.jsonl").stat().st_size <= 64 << 10
    kept = read_usage(run)
    of_h1 = [one for one in kept if one.node == "h1"]
    assert abs(2 * len(of_h1) - len(kept)) < 10
    gaps = [after.usage.t - before.usage.t for before, after in pairwise(of_h1)]
    assert gaps[0] == 10.0
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 80.0


def test_a_directory_that_cannot_be_written_loses_samples_alone(run: RunDirectory) -> None:
    (run.path / "evidence").write_text("")
    UsageLog(run).add(sample("h1", 0))
