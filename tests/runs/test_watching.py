"""What a look at a run directory reads, and that the next look reads what is new."""

from pathlib import Path

from allranks.protocol.frames import RANK_LOG
from allranks.runs.directory import RunDirectory
from allranks.runs.watching import EVENTS_READ, WARNINGS_KEPT, RunWatch, printed_loss


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


def test_the_loss_is_that_of_the_lowest_rank_and_the_last_whole_row(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    outputs = run.path / "outputs"
    outputs.mkdir()
    (outputs / "rank_x_metrics.jsonl").write_text('{"loss": 9}\n')
    (outputs / "rank_12_metrics.jsonl").write_text('{"loss": 12}\n')
    (outputs / "rank_03_metrics.jsonl").write_text('{"loss": 3}\n{"loss": 2.5}\n{"lo')
    watch = RunWatch(run)
    watch.look()
    assert watch.loss == 2.5
    with (outputs / "rank_03_metrics.jsonl").open("a") as file:
        file.write('ss": 2}\n')
    watch.look()
    assert watch.loss == 2.0


def test_the_loss_is_what_the_lowest_rank_prints_where_it_has_no_metrics(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    ranks = [{"rank": 0, "local": 0, "state": "running"}]
    node = {"index": 0, "name": "h1", "state": "running", "ranks": ranks}
    run.write_document("status.json", {"state": "running", "attempt": 1, "nodes": [node]})
    log = run.log_path(0, "h1", RANK_LOG, 0, 1)
    log.parent.mkdir(parents=True)
    log.write_text("step 1 loss 2.5\nstep 2 loss 2.25\n")
    watch = RunWatch(run)
    watch.look()
    assert watch.loss == 2.25
    with log.open("a") as file:
        file.write("saved a checkpoint\neval loss 9\nstep 3 | train_loss=1.5e-1\n")
    watch.look()
    assert watch.loss == 0.15


def test_text_of_any_kind_is_borne_in_the_place_of_a_loss() -> None:
    assert printed_loss(b"loss " * 3000 + b"\xff\x00 1", 4.0) == 4.0
    assert printed_loss(b"loss 12345678901234567890123", 4.0) == 4.0
