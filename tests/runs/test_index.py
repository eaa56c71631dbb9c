"""The time index of a log, logs merged by it, and a run directory that something went wrong with."""

import errno
import os

import pytest

from allranks.errors import UsageError
from allranks.protocol.frames import RANK_LOG, Stream
from allranks.runs import logs as index
from allranks.runs.directory import RunDirectory
from allranks.runs.logs import LogWriter
from allranks.runs.reading import LogReader

NOW = 1_790_000_000.0


@pytest.fixture
def run(tmp_path):
    made = RunDirectory.create(tmp_path, "job", NOW)
    made.write_document("run.json", {"started": NOW, "nodes": [{"name": "h1", "index": 0}, {"name": "h2", "index": 1}]})
    return made


@pytest.fixture
def clock(monkeypatch):
    times = [NOW]
    monkeypatch.setattr("allranks.runs.logs.time.time", lambda: times[0])
    return times


def say(writer, clock, second, rank, text):
    clock[0] = NOW + second
    offset = writer.sizes(rank, f"h{rank + 1}").get(f"0/{rank}/0", 0)
    assert writer.write(rank, f"h{rank + 1}", Stream(RANK_LOG, rank, 0), offset, text)


def test_logs_are_merged_in_the_order_of_their_arrival(run, clock):
    writer = LogWriter(run)
    said = [(0, 1, b"a"), (10, 0, b"b"), (20, 1, b"c"), (30, 0, b"d")]
    for second, rank, text in said:
        say(writer, clock, second, rank, text)
    reader = LogReader(run)
    assert [(t - NOW, r, d) for t, _, r, d in reader.merged()] == said
    assert list(reader.fresh()) == []
    say(writer, clock, 40, 0, b"e")
    assert list(reader.fresh()) == [("h1", 0, b"e")]


def test_since_shows_the_second_it_falls_into(run, clock):
    writer = LogWriter(run)
    for tenth in range(30):
        say(writer, clock, tenth / 10, 0, b"%02d\n" % tenth)
    reader = LogReader(run)
    reader.skip_to_time(NOW + 1.5)
    (_, _, data), = reader.fresh()
    assert data.startswith(b"10\n") and data.endswith(b"29\n")
    assert list(reader.fresh()) == []
    reader.skip_to_time(NOW + 100)
    assert list(reader.merged()) == []


def test_a_log_that_came_in_one_piece_has_no_index_and_its_time_all_the_same(run, clock):
    writer = LogWriter(run)
    say(writer, clock, 0, 0, b"loading\n")
    log = run.log_path(0, "h1", RANK_LOG, 0, 0)
    os.utime(log, (NOW, NOW))
    assert not index.index_path(log).exists()
    assert [(start, first) for start, _, first, _ in index.blocks(log)] == [(0, NOW)]
    say(writer, clock, 40, 0, b"step 1\n")
    assert [(start, first) for start, _, first, _ in index.blocks(log)] == [(0, NOW), (8, NOW + 40)]


def test_the_one_piece_of_a_former_controller_keeps_its_time(run, clock):
    say(LogWriter(run), clock, 0, 0, b"loading\n")
    log = run.log_path(0, "h1", RANK_LOG, 0, 0)
    os.utime(log, (NOW, NOW))
    say(LogWriter(run), clock, 40, 0, b"step 1\n")
    assert [(start, first) for start, _, first, _ in index.blocks(log)] == [(0, NOW), (8, NOW + 40)]
    say(LogWriter(run), clock, 60, 0, b"step 2\n")
    assert [(start, first) for start, _, first, _ in index.blocks(log)] == [(0, NOW), (8, NOW + 40), (15, NOW + 60)]


def test_until_shows_the_second_it_falls_into_and_no_log_that_begins_later(run, clock):
    writer = LogWriter(run)
    for tenth in range(30):
        say(writer, clock, tenth / 10, 0, b"%02d\n" % tenth)
    say(writer, clock, 3, 1, b"late\n")
    reader = LogReader(run)
    reader.stop_at_time(NOW + 1.5)
    said = b"".join(data for *_, data in reader.merged())
    assert said.startswith(b"00\n") and said.endswith(b"19\n")
    say(writer, clock, 9, 0, b"later\n")
    assert list(reader.fresh()) == []
    early = LogReader(run)
    early.stop_at_time(NOW - 1)
    assert list(early.merged()) == []


def test_a_long_index_is_thinned_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "LIMIT", 2000)
    log = tmp_path / "rank_000.log"
    for second in range(1000):
        index.note(index.index_path(log), (NOW + second, 10 * second))
    log.write_bytes(bytes(10_000))
    assert index.index_path(log).stat().st_size <= 2100
    found = list(index.blocks(log))
    starts, ends, _, _ = zip(*found, strict=True)
    assert starts == (0, *ends[:-1]) and ends[-1] == 10_000
    for start, end, first, last in found:  # each byte's true second lies within its block
        assert first <= NOW + start / 10 and NOW + end / 10 <= last
    assert index.offset_at(log, NOW + 990) == 9900
    assert index.offset_at(log, NOW + 300) <= 3000


def test_an_index_that_is_torn_or_missing_is_no_error(tmp_path):
    log = tmp_path / "rank_000.log"
    assert list(index.blocks(log)) == [] and index.offset_at(log, 0.0) == 0
    log.write_bytes(b"x" * 100)
    os.utime(log, (NOW, NOW))
    assert index.offset_at(log, NOW - 10) == 0
    assert index.offset_at(log, NOW + 10) == 100
    index.index_path(log).write_bytes(b"\xff nonsense\n%.1f 40\n17" % NOW)
    assert [(start, end) for start, end, _, _ in index.blocks(log)] == [(0, 40), (40, 100)]


def test_no_descriptor_is_lost_while_the_disk_is_full(run, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = LogWriter(run)
    stream = Stream(RANK_LOG, 0, 0)
    assert writer.write(0, "h1", stream, 0, b"x")
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr("allranks.runs.logs.EVERY", 0.0)
    for _ in range(20):
        assert not writer.write(0, "h1", stream, 1, b"y")
        run.append_line({"t": 1.0, "event": "x"})
    assert len(os.listdir("/proc/self/fd")) == before
    assert run.write_failure == writer.failure == "No space left on device"


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EROFS, errno.EDQUOT])
def test_a_log_that_cannot_be_opened_does_not_end_the_run(run, monkeypatch, code):
    def fails(*_, **__):
        raise OSError(code, os.strerror(code))

    writer = LogWriter(run)
    monkeypatch.setattr(os, "open", fails)
    assert not writer.write(0, "h1", Stream(RANK_LOG, 0, 0), 0, b"x")
    assert writer.failure == os.strerror(code)


def test_an_event_after_one_that_was_cut_is_read(run, monkeypatch):
    write = os.write
    run.append_line({"t": 1.0, "event": "a"})
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    run.append_line({"t": 1.0, "event": "cut short"})
    monkeypatch.setattr(os, "write", write)
    run.append_line({"t": 1.0, "event": "b"})
    assert [e["event"] for e in run.read_lines()[0]] == ["a", "b"]
    assert run.write_failure == "No space left on device"


def test_a_directory_that_cannot_be_made_says_what_to_set(tmp_path):
    (tmp_path / "file").write_text("")
    for runs_dir in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UsageError, match="--runs-dir"):
            RunDirectory.create(runs_dir, "job", NOW)


@pytest.mark.parametrize(
    ("code", "state"), [(0, "done"), (1, "failed"), (5, "failed"), (130, "stopped"), (143, "stopped")]
)
def test_a_result_ends_a_run_whatever_its_last_status_says(run, code, state):
    run.write_document("status.json", {"state": "running"})
    run.write_document("result.json", {"exit": code})
    assert run.state() == state


@pytest.mark.parametrize("controller", [None, [], "x", {"host": os.uname().nodename, "pid": "12x"}, {"pid": -1}])
def test_a_damaged_controller_is_a_dead_one(run, controller):
    run.write_document("run.json", {"controller": controller})
    assert not run.controller_alive()


def test_damaged_documents_are_none(run):
    (run.path / "status.json").write_text("[" * 100_000)
    assert run.read_document("status.json") is None
    run.write_document("run.json", {"nodes": [None, {"index": "x"}]})
    assert list(LogReader(run).fresh()) == []


def test_a_run_is_found_from_within(run, monkeypatch):
    monkeypatch.chdir(run.path)
    assert RunDirectory.find(run.path.parent, ".").name == run.name


def test_a_pipe_in_the_place_of_an_index_is_not_waited_for(tmp_path):
    log = tmp_path / "rank_000.log"
    log.write_bytes(b"step 1\n")
    os.mkfifo(index.index_path(log))
    assert [(start, end) for start, end, _, _ in index.blocks(log)] == [(0, 7)]


def test_a_hole_is_neither_read_nor_shown(tmp_path):
    log = tmp_path / "logs" / "node_00_h1" / "rank_000.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"first\n")
    with log.open("r+b") as file:
        file.seek(8 << 40)
        file.write(b"\nlast\n")
    reader = LogReader(RunDirectory(tmp_path))
    read = b"".join(data for _, _, _, data in reader.merged())
    assert len(read) < 1 << 20 and read.strip(b"\0").splitlines()[-1] == b"last"
    assert list(reader.fresh()) == []
    tail = LogReader(RunDirectory(tmp_path))
    tail.skip_to_last_lines(1)
    assert [data for _, _, data in tail.fresh()] == [b"last\n"]
