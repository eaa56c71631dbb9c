"""The run directory: names, documents, events, logs at offsets, and who controls it."""

import errno
import os
import subprocess

import pytest

from allranks.errors import RunNotFound
from allranks.protocol.codec import encode
from allranks.protocol.frames import METRICS, NCCL_LOG, NODE_LOG, RANK_LOG, Stream
from allranks.runs.directory import RunDirectory
from allranks.runs.logs import LogWriter
from allranks.runs.opening import controller_identity
from allranks.runs.reading import LogReader

NOW = 1_790_000_000.0
NODES = [{"name": "h1", "index": 0}, {"name": "fe80::1%eth0", "index": 1}]


@pytest.fixture
def run(tmp_path):
    made = RunDirectory.create(tmp_path / "runs", "job", NOW)
    made.write_document("run.json", {"run": made.name, "started": NOW, "nodes": NODES})
    return made


def test_a_second_run_of_the_same_second_gets_its_own_directory(tmp_path):
    names = [RunDirectory.create(tmp_path, "job", NOW).name for _ in range(3)]
    assert len(set(names)) == 3
    assert names[1] == names[0] + "-2"
    assert (tmp_path / names[0]).stat().st_mode & 0o777 == 0o700


def test_found_by_name_prefix_path_or_as_the_newest(tmp_path):
    made = []
    for index, name in enumerate(("alpha", "beta", "beta2")):
        run = RunDirectory.create(tmp_path, name, NOW)
        run.write_document("run.json", {"started": NOW - index})
        made.append(run)
    (tmp_path / "not-a-run").mkdir()
    assert [r.name for r in RunDirectory.list_runs(tmp_path)] == [r.name for r in reversed(made)]
    assert RunDirectory.find(tmp_path, None).name == made[0].name
    assert RunDirectory.find(tmp_path, "alp").name == made[0].name
    assert RunDirectory.find(tmp_path, str(made[1].path)).path == made[1].path
    assert RunDirectory.find(tmp_path, made[1].name).name == made[1].name
    with pytest.raises(RunNotFound, match="2 runs"):
        RunDirectory.find(tmp_path, "bet")
    with pytest.raises(RunNotFound, match="no run 'gamma'"):
        RunDirectory.find(tmp_path, "gamma")
    with pytest.raises(RunNotFound, match="no run in"):
        RunDirectory.find(tmp_path / "empty", None)


LIVES, LOST, OVER = "lives", "lost", "over"


@pytest.mark.parametrize(
    ("runs", "wanted", "found"),
    [
        ([("a", OVER), ("a", LIVES), ("a", OVER)], "a", 1),
        ([("a", OVER), ("a", LIVES), ("a", OVER)], "a-2", 1),
        ([("a", OVER), ("a", OVER)], "a", 1),
        ([("a", OVER), ("ab", LIVES)], "a", 0),
        ([("a", LOST), ("a", LIVES)], "a", 1),
        ([("a", OVER), ("a", LOST)], "a", 1),
        ([("ab", OVER), ("ac", LIVES)], "a", 1),
        ([("ab", LOST), ("ac", OVER)], "a", 0),
        ([("a", LIVES), ("a", LIVES)], "a", "2 runs in .* have this name and go on"),
        ([("ab", LIVES), ("ac", LIVES), ("ad", OVER)], "a", "2 runs in .* begin so and go on"),
        ([("ab", OVER), ("ac", OVER)], "a", "2 runs in .* begin so"),
        ([("a-b", OVER), ("a-b-c", LIVES)], "a-b", 0),
    ],
)
def test_an_exact_name_and_a_run_that_goes_on_win(tmp_path, runs, wanted, found):
    made = []
    for at, (name, state) in enumerate(runs):
        one = RunDirectory.create(tmp_path, name, NOW + 86400 * at)
        controller = {**encode(controller_identity()), **({} if state == LIVES else {"start_time": 1})}
        one.write_document("run.json", {"started": NOW + at, "controller": controller})
        if state == OVER:
            one.write_document("result.json", {"exit": 0})
        made.append(one.name)
    if isinstance(found, int):
        assert RunDirectory.find(tmp_path, wanted).name == made[found]
    else:
        with pytest.raises(RunNotFound, match=found):
            RunDirectory.find(tmp_path, wanted)


def test_a_run_that_ends_while_it_is_looked_for(tmp_path):
    made = RunDirectory.create(tmp_path, "a", NOW)
    made.write_document("run.json", {"started": NOW})

    def lives_and_ends(run: RunDirectory) -> bool:
        run.write_document("result.json", {"exit": 0})
        return True

    assert RunDirectory.find(tmp_path, made.name, lives_and_ends).name == made.name
    assert made.has_ended


def test_documents_are_replaced_whole_and_carry_the_schema(run):
    run.write_document("status.json", {"state": "running"})
    assert run.read_document("status.json") == {"schema": 1, "state": "running"}
    (run.path / "status.json").write_text("[1]")
    assert run.read_document("status.json") is None
    assert run.read_document("nothing.json") is None
    assert not list(run.path.glob(".*.part"))


def test_events_are_read_from_where_the_last_read_ended(run):
    run.append_line({"t": 1.0, "event": "a"})
    first, offset = run.read_lines()
    with open(run.path / "events.jsonl", "a") as file:
        file.write('{"event": "b"}\n{"event": "cut')
    second, offset = run.read_lines(offset)
    assert [e["event"] for e in first + second] == ["a", "b"]
    with open(run.path / "events.jsonl", "a") as file:
        file.write(' off"}\n')
    assert [e["event"] for e in run.read_lines(offset)[0]] == ["cut off"]


def test_events_of_a_block_are_written_together_and_each_without_its_secret(run):
    token = "hf_" + "Ab1" * 12
    with run.events_together():
        run.append_line({"t": 1.0, "event": "a"})
        run.append_line({"t": 1.0, "event": "note", "message": f"token {token}"})
        assert run.read_lines()[0] == []
        run.write_events()
        assert len(run.read_lines()[0]) == 2
        run.append_line({"t": 1.0, "event": "b"})
    lines = run.read_lines()[0]
    assert [line["event"] for line in lines] == ["a", "note", "b"]
    assert token not in str(lines) and "token <redacted>" in str(lines)


def test_a_large_document_is_what_a_plain_one_would_be(run):
    shared = {"url": "https://me:hunter22secret@host/x", "n": [1, 2]}
    nodes = {"h1": {"env": shared, "cpu": 4}, "h2": {"env": shared, "cpu": 8}, "h3": {}}
    for objects in (nodes, {}):
        run.write_large("large.json", {"t": 1.0}, "nodes", objects)
        run.write_document("plain.json", {"t": 1.0, "nodes": objects})
        assert run.read_document("large.json") == run.read_document("plain.json") is not None
    assert "hunter22secret" not in (run.path / "large.json").read_text()


def test_every_stream_has_its_file(run):
    paths = [run.log_path(1, "fe80::1%eth0", *s) for s in
             (Stream(RANK_LOG, 3, 0), Stream(RANK_LOG, 3, 2), Stream(NODE_LOG, 0, 0), Stream(NCCL_LOG, 3, 0),
              Stream(METRICS, 3, 0))]  # fmt: skip
    assert [str(p.relative_to(run.path)) for p in paths] == [
        "logs/node_01_fe80_1_eth0/rank_003.log",
        "logs/attempt_2/node_01_fe80_1_eth0/rank_003.log",
        "logs/node_01_fe80_1_eth0/node.log",
        "logs/node_01_fe80_1_eth0/nccl_rank_003.log",
        "outputs/rank_03_metrics.jsonl",
    ]


def test_what_another_node_sends_of_a_shared_file_comes_after_what_is_there(run):
    metrics, log = Stream(METRICS, 1, 0), Stream(RANK_LOG, 1, 1)
    writer = LogWriter(run)
    writer.deal({0: [0], 1: [1]})
    writer.write(1, "h2", metrics, 0, b"first\n")
    assert writer.fresh_sizes(1) == {"3/1/0": 6}
    writer.deal({0: [0], 4: [1]})
    assert not any(writer.sizes(4, "h5").values()), "h5 has sent nothing yet"
    writer.write(4, "h5", metrics, 0, b"second\n")
    writer.write(4, "h5", metrics, 3, b"ond\nthird\n")
    writer.write(4, "h5", log, 0, b"rank\n")
    assert writer.fresh_sizes(4) == {"3/1/0": 13, "0/1/1": 5}
    assert writer.sizes(4, "h5") == {"3/1/0": 13, "0/1/1": 5, "4/1/0": 0}
    assert run.log_path(1, "h2", *metrics).read_bytes() == b"first\nsecond\nthird\n"
    again = LogWriter(run)  # of a controller that takes over
    again.resume(run.read_facts()[0])
    again.write(4, "h5", metrics, 0, b"second\nthird\nfourth\n")
    assert run.log_path(1, "h2", *metrics).read_bytes() == b"first\nsecond\nthird\nfourth\n"
    writer.deal({0: [0], 1: [1]})
    writer.write(1, "h2", metrics, 6, b"fifth\n")
    assert run.log_path(1, "h2", *metrics).read_bytes() == b"first\nsecond\nthird\nfourth\nfifth\n", "h2 is back"


def test_a_second_agent_of_a_node_goes_on_in_its_log(run):
    node_log, metrics = Stream(NODE_LOG, 0, 0), Stream(METRICS, 0, 0)
    writer = LogWriter(run)
    writer.write(0, "h1", node_log, 0, b"old agent\n")
    writer.write(0, "h1", metrics, 0, b"one\n")
    writer.begin_anew(0, "h1")
    assert writer.sizes(0, "h1") == {"1/0/0": 0}
    assert writer.fresh_sizes(0) == {}
    writer.write(0, "h1", node_log, 0, b"new agent\n")
    writer.write(0, "h1", metrics, 0, b"two\n")
    assert run.log_path(0, "h1", *node_log).read_bytes() == b"old agent\nnew agent\n"
    assert run.log_path(0, "h1", *metrics).read_bytes() == b"one\ntwo\n"


def test_many_open_logs_stay_within_the_limit(run, monkeypatch):
    monkeypatch.setattr("allranks.runs.logs.OPEN_FILES", 4)
    writer = LogWriter(run)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for rank in range(50):
            assert writer.write(0, "h1", Stream(RANK_LOG, rank, 0), turn * 2, b"%d\n" % turn)
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert run.log_path(0, "h1", RANK_LOG, 49, 0).read_text() == "0\n1\n2\n"


def test_a_descriptor_whose_close_fails_is_given_up(run, monkeypatch):
    monkeypatch.setattr("allranks.runs.logs.OPEN_FILES", 1)
    writer = LogWriter(run)
    first, second = Stream(RANK_LOG, 0, 0), Stream(RANK_LOG, 1, 0)
    assert writer.write(0, "h1", first, 0, b"one\n")
    close = os.close

    def close_and_fail(descriptor):
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", close_and_fail)  # as NFS does where the quota is over
    assert not writer.write(0, "h1", second, 0, b"two\n")
    assert writer.failure == os.strerror(errno.EDQUOT)
    monkeypatch.setattr(os, "close", close)
    assert writer.write(0, "h1", second, 0, b"two\n")
    assert writer.write(0, "h1", first, 4, b"more\n")
    writer.close()
    assert run.log_path(0, "h1", *first).read_text() == "one\nmore\n"
    assert run.log_path(0, "h1", *second).read_text() == "two\n"


def test_a_failing_look_at_a_file_loses_neither_its_descriptor_nor_its_bytes(run, monkeypatch):
    stream = Stream(RANK_LOG, 0, 0)
    LogWriter(run).write(0, "h1", stream, 0, b"one\n")
    writer = LogWriter(run)
    before = len(os.listdir("/proc/self/fd"))
    fstat = os.fstat

    def fail(descriptor):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "fstat", fail)
    assert not writer.write(0, "h1", stream, 4, b"two\n")
    monkeypatch.setattr(os, "fstat", fstat)
    assert len(os.listdir("/proc/self/fd")) == before
    assert writer.write(0, "h1", stream, 4, b"two\n")
    assert run.log_path(0, "h1", *stream).read_text() == "one\ntwo\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_told_and_what_fits_is_kept(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    try:
        run = RunDirectory.create(tmp_path, "job", NOW)
        writer = LogWriter(run)
        stream = Stream(RANK_LOG, 0, 0)
        assert not writer.write(0, "h1", stream, 0, bytes(1 << 20))
        kept = run.log_path(0, "h1", *stream).stat().st_size
        assert 0 < kept <= 1 << 18
        assert writer.fresh_sizes(0) == {"0/0/0": kept}
        run.append_line({"t": 1.0, "event": "x" * 10_000})
        run.write_document("status.json", {"x": "y" * 100_000})
        assert run.write_failure == "No space left on device"
        writer.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_reader_filters_and_names_nodes_as_the_user_did(run):
    writer = LogWriter(run)
    for index, node in enumerate(("h1", "fe80::1%eth0")):
        for rank in (2 * index, 2 * index + 1):
            writer.write(index, node, Stream(RANK_LOG, rank, 0), 0, b"x\n")
    assert {(n, r) for n, r, _ in LogReader(run).fresh()} == {
        ("h1", 0), ("h1", 1), ("fe80::1%eth0", 2), ("fe80::1%eth0", 3)}  # fmt: skip
    assert [(n, r) for n, r, _ in LogReader(run, ("fe80::1%eth0",), (3,)).fresh()] == [("fe80::1%eth0", 3)]


def test_controller_is_known_by_pid_and_start_time(run):
    identity = encode(controller_identity())
    run.write_document("run.json", {"controller": identity})
    assert run.controller_alive()
    run.write_document("run.json", {"controller": {**identity, "start_time": identity["start_time"] + 1}})
    assert not run.controller_alive()
    run.write_document("run.json", {"controller": {**identity, "host": "elsewhere"}})
    assert not run.controller_alive()
    run.write_document("status.json", {"state": "running"})
    assert run.state() == "orphaned"
    run.write_document("result.json", {"exit": 0})
    run.write_document("status.json", {"state": "done"})
    assert run.state() == "done"
