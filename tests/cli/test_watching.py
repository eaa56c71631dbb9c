"""What a look at a run directory reads, and that the next look reads what is new."""

from pathlib import Path

from allranks.cli.top import EVENTS_READ, WARNINGS_KEPT, RunWatch
from allranks.runs.directory import RunDirectory


def run_in(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "job", 0.0)
    run.write_document("run.json", {"run": run.name, "started": 1.0})
    run.write_document("status.json", {"state": "running"})
    return run


def warn(run: RunDirectory, message: object) -> None:
    run.append_line({"t": 1.0, "event": "finding", "id": "slow-rank", "status": "warn", "message": message})


def test_warnings_are_of_this_attempt_and_each_once(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    watch = RunWatch(run)
    for message in ("one", "two", "one", 7):
        warn(run, message)
    run.append_line({"t": 1.0, "event": "finding", "status": "fail", "message": "no warning"})
    watch.look()
    assert watch.warnings == ("two", "one")
    run.append_line({"t": 1.0, "event": "attempt-start", "attempt": 1})
    warn(run, "three")
    watch.look()
    assert watch.warnings == ("three",)
    for number in range(3 * WARNINGS_KEPT):
        warn(run, f"number {number}")
    watch.look()
    assert (len(watch.warnings), watch.warnings[-1]) == (WARNINGS_KEPT, f"number {3 * WARNINGS_KEPT - 1}")


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    with (run.path / "events.jsonl").open("w") as file:
        file.writelines(f'{{"t": 1, "event": "note", "message": "{"x" * 1000} {number}"}}\n' for number in range(2000))
    assert (run.path / "events.jsonl").stat().st_size > EVENTS_READ
    watch = RunWatch(run)
    watch.look()
    assert str(watch.events[-1].fact).endswith(" 1999')")


def test_the_loss_is_that_of_rank_0_and_the_last_whole_row(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    (run.path / "outputs").mkdir()
    metrics = run.path / "outputs" / "rank_00_metrics.jsonl"
    metrics.write_text('{"loss": 3}\n{"loss": 2.5}\n{"lo')
    watch = RunWatch(run)
    watch.look()
    assert watch.loss == 2.5
    with metrics.open("a") as file:
        file.write('ss": 2}\n')
    watch.look()
    assert watch.loss == 2.0
