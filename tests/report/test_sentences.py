"""Folding, steps, the live table and the last words: what people read."""

import io
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.facts import fact

from allranks.cli import diagnose
from allranks.cli.test import SYNC_PASSED
from allranks.findings import Finding, Verdict
from allranks.gang.progress import StepReader
from allranks.protocol.codec import decode_parts
from allranks.protocol.run_facts import KINDS, read_line
from allranks.report.fold import WINDOW, Folder
from allranks.report.ledgerwords import PARTS, goodput_line, ledger_rows
from allranks.report.live import LiveView
from allranks.report.nodetable import node_line, table_lines, time_text
from allranks.report.sentences import closing_lines, event_line, verdict_lines
from allranks.report.testview import TestView, end_of_test
from allranks.runs.documents import (
    NodeStatus,
    RankStatus,
    ResultDocument,
    RunProgress,
    StatusDocument,
    TimeLedger,
    Timing,
    result_record,
)

VERDICT = {"message": "rank 3 on h2 raised ValueError: bad", "cause": "program-exception",
           "confidence": 0.95, "evidence": ["a", "b", "c", "d"], "remedy": "do this\nthen that",
           "victims": [0, 1, 2, 4, 5, 7]}  # fmt: skip


def fold(*said, ranks=0, **options):
    folder = Folder(**options)
    folder.ranks = ranks
    for node, rank, data, now in said:
        folder.feed(node, rank, data, now)
    return folder


def test_the_same_line_of_some_ranks_waits_for_the_window():
    folder = fold(("h1", 0, b"loading\n", 0.0), ("h2", 3, b"loading\n", 0.1), ranks=4)
    assert folder.lines(0.2) == []
    assert folder.lines(WINDOW) == ["[h1 0 +1 rank] loading"]


ALIKE = [  # real lines: torch 2.13 (c10d socket.cpp, elastic), NCCL, logging
    "[W1121 18:42:17.070123 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    "[W1122 06:30:31.110000 socket.cpp:767] [c10d] The client socket has failed to connect to [h1]:29500 (errno: 111).",
    "W1122 06:30:31.123000 {0} torch/distributed/run.py:852] Setting OMP_NUM_THREADS",
    "[rank{1}]:[W1122 06:30:31.1{1} ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called",
    "h{1}:{0}:{0} [{1}] NCCL WARN Cuda failure 'out of memory'",
    "2026-11-22 06:30:3{1},123 - INFO - model loaded",
    "connected from 10.0.0.{1}:402{1} to [fe80::{1}]:29500, pid {0}, group at 0x7f81090ed{0}",
]


@pytest.mark.parametrize("line", ALIKE)
def test_lines_that_differ_only_in_time_address_or_pid_are_one(line):
    said = [line.replace("06:30:31", f"06:30:{31 + r}").format(18000 + 7 * r, r) for r in range(4)]
    folder = fold(*((f"h{r}", r, f"{text}\n".encode(), 0.0) for r, text in enumerate(said)), ranks=4)
    assert folder.lines(0.0) == [f"[4 ranks] {said[0]}"]


@pytest.mark.parametrize("line", ["loss {0}", "step {0} 12:00:01 loss 2.{1}", "shard {1} of 4", "1e-{1}", "v1.{1}.0"])
def test_lines_that_differ_in_what_they_say_are_not(line):
    said = [line.format(18000 + r, r) for r in range(4)]
    folder = fold(*(("h1", r, f"{text}\n".encode(), 0.0) for r, text in enumerate(said)), ranks=4)
    assert len(folder.rest(1.0)) == 4


def test_output_without_room_is_told_once_a_source_and_is_not_said_to_be_in_the_logs():
    stream = io.StringIO()
    view = LiveView(stream=stream)
    total = 0
    for _ in range(9):
        total += 1000
        view.event(fact({"event": "dropped", "node": "h2", "rank": 1, "bytes": 1000, "total": total}))
    view.output("h2", 1, b"x\n" * 5000, 0.0)
    view.closing(result_record({"exit": 0, "directory": "/r", "dropped": {"h2": {"1": total}}}))
    lines = [line for line in stream.getvalue().splitlines() if "rank 1's output" in line]
    assert lines == [
        "rank 1's output on h2 is being dropped: it finds no room there",
        "9,000 bytes of rank 1's output on h2 were dropped: no room there",
    ]
    assert "lines not shown here" in stream.getvalue() and "all are in the logs" not in stream.getvalue()


def test_too_many_lines_are_counted():
    folder = fold(("h1", 0, b"".join(b"%d\n" % i for i in range(5000)), 0.0), fold=False)
    lines = folder.lines(0.0)
    assert len(lines) == 2001
    assert lines[-1].startswith("… 3,000 lines not shown")
    assert fold(("h1", 0, b"x\n" * 5000, 0.0), fold=False, most=None).lines(0.0) == ["[h1 0] x"] * 5000


def ignore(row: object) -> None:
    """What a rule over metrics would read."""


def test_steps_come_from_metrics_cut_anywhere():
    reader, refused = StepReader(), []
    assert not reader.metrics(b'{"step": 1, "t": 10.0}', 10.0, refused.append, ignore)
    rest = b'\n{"step": 2, "t": 10.5}\nnonsense\n[1]\n{"step": 3, "t": 11.0}\n'
    assert reader.metrics(rest, 11.0, refused.append, ignore)
    assert (reader.step, reader.rate) == (3, 2.0)
    assert refused == ["expected JSON", "expected a JSON object"]


def test_a_loss_that_is_not_a_number_is_a_step():
    """Python's json writes NaN and Infinity, and a run that diverges goes on."""
    reader, refused = StepReader(), []
    assert reader.metrics(b'{"step": 7, "loss": NaN, "norm": -Infinity, "t": 10.0}\n', 10.0, refused.append, ignore)
    assert (reader.step, refused) == (7, [])


def test_a_restart_starts_the_rate_anew():
    reader, refused = StepReader(), []
    reader.metrics(b'{"step": 90, "t": 1.0}\n{"step": 100, "t": 2.0}\n', 2.0, refused.append, ignore)
    reader.metrics(b'{"step": 1, "t": 9.0}\n', 9.0, refused.append, ignore)
    assert (reader.step, reader.rate, refused) == (1, None, [])


@pytest.mark.parametrize(
    ("code", "word"), [(0, "passed"), (3, "failed"), (5, "failed"), (130, "stopped by Ctrl-C"), (143, "stopped")]
)
def test_a_test_that_was_stopped_has_not_failed(code: int, word: str) -> None:
    result = result_record({"exit": code, "directory": "runs/t", "timing": {"total": 2.0}})
    assert end_of_test(result)[-1] == f"{word} after 2.0 s (exit {code}), report in runs/t"


ATTEMPTS = [
    {"attempt": 0, "outcome": "failed", "cause": "node-network-down", "culprit": {"node": "h3"}, "step": 12,
     "seconds": 35.24, "decision": "retry", "reason": "h3 was replaced by h5 in attempt 1"},
    {"attempt": 1, "outcome": "failed", "cause": "unknown", "culprit": {"rank": 3, "node": "h2"}, "step": None,
     "seconds": 2.0, "decision": "finish", "reason": "the retry is used up"},
]  # fmt: skip


def test_verdict_first_with_three_lines_of_evidence():
    document = {"exit": 1, "directory": "runs/x", "timing": {"total": 3.0}, "attempts": ATTEMPTS, "verdict": VERDICT}
    lines = closing_lines(result_record(document))
    assert lines[1] == "VERDICT   rank 3 on h2 raised ValueError: bad"
    assert [line for line in lines if "saw" in line] == ["  saw     a", "  saw     b", "  saw     c"]
    assert "          then that" in lines
    assert "  victims ranks 0-2,4-5,7 ended because of it" in lines
    assert lines[-3:-1] == [
        "attempt 0  failed after 35.2 s at step 12: node-network-down, h3. Tried again: h3 was replaced by h5 in "
        "attempt 1",
        "attempt 1  failed after 2.0 s: unknown, rank 3 on h2",
    ]
    assert lines[-1] == "failed after 3.0 s, 2 attempts (exit 1), logs in runs/x/logs"
    assert "(confidence 40%)" in verdict_lines(decode_parts(Verdict, {**VERDICT, "confidence": 0.4}))[1]


def test_evidence_that_the_sentence_has_is_not_repeated():
    document = {**VERDICT, "message": "h9: ssh: no such name", "evidence": ["ssh: no such name", "no such", "a line"]}
    said = verdict_lines(decode_parts(Verdict, document))
    assert [line for line in said if "saw" in line] == ["  saw     a line"]


TREE = {"event": "tree", "root": "/w", "files": 4, "bytes": 3210, "sha256": "0"}
ENDING = {"event": "ending", "reason": "ctrl-c", "ranks": 2, "grace": 30.0}
PAUSED = {"event": "launcher-paused", "seconds": 20.1, "slept": False, "ended": False}
PROVED = {"event": "gate-proved", "node": "h1", "address": "10.0.0.1", "port": 29500, "seconds": 0.12}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "all-initialised", "seconds": 2.34, "ranks": 4}, "all 4 ranks initialised in 2.3 s"),
        (
            {"event": "all-initialised", "seconds": 37.1, "ranks": 4, "attempt": 1},
            "all 4 ranks initialised 37.1 s after the start of the run",
        ),
        ({"event": "attempt-start", "attempt": 1}, "attempt   1"),
        (TREE, "sync      4 files, 3.13 KB of /w"),
        (
            {**TREE, "left_out": ["data.bin (300 MB)"], "limit": 16 << 20},
            "sync      4 files, 3.13 KB of /w\nnot shipped, over 16 MB: data.bin (300 MB)",
        ),
        ({**ENDING, "reason": "failure", "ranks": 4}, "ending the remaining 4 ranks"),
        ({**ENDING, "reason": "failure", "ranks": 1}, "ending the remaining rank"),
        ({**ENDING, "reason": "failure", "ranks": 0}, None),
        ({**ENDING, "reason": "sigterm"}, "SIGTERM or `allranks stop`: ending 2 ranks, with 30 s to save"),
        ({**ENDING, "ranks": 0}, "Ctrl-C: ending the run"),
        (ENDING, "Ctrl-C: ending 2 ranks, with 30 s to save. Ctrl-C again ends them at once"),
        ({**ENDING, "grace": 0.0}, "Ctrl-C: ending 2 ranks at once"),
        (PAUSED, "note: this process did not run for 20 s"),
        ({**PAUSED, "slept": True}, "note: this machine slept for 20 s"),
        (
            {**PAUSED, "waited": True},
            "note: a disk perhaps held this process for 20 s. Ranks went on, their output waited on the nodes",
        ),
        (
            {**PROVED, "ranks": {"h1": 2, "h2": 2}},
            "master    h1 10.0.0.1:29500, reached by all 2 nodes in 0.12 s\nranks     4 in all, 2 a node",
        ),
        (
            {**PROVED, "ranks": {"h1": 8, "h2": 4}},
            "master    h1 10.0.0.1:29500, reached by all 2 nodes in 0.12 s\nranks     12 in all: h1 8, h2 4",
        ),
        ({"event": "join", "message": "1 of 2 nodes are here"}, "join      1 of 2 nodes are here"),
        ({"event": "rank-started", "rank": 0, "pid": 7}, None),
        ({"event": "rank-exit", "node": "h1", "rank": 2, "signal": 15, "expected": True}, None),
        ({"event": "outputs-temporary", "nodes": {"h1": "/tmp/allranks-0/x/outputs"}}, None),
    ],
)
def test_the_line_of_an_event(event, line):
    assert event_line(fact(event), 2) == line


def test_what_is_left_and_what_is_missing_are_said():
    lines = closing_lines(result_record(
        {"exit": 4, "directory": "r", "left": {"h1": [{"pid": 7, "command": "train"}]},
         "unfetched": {"h3": {"node_dir": "/tmp/a", "fetched_bytes": {"0/1/0": 1234}}}}))  # fmt: skip
    assert "LEFT on h1: pid 7 (train)" in lines
    assert any(line.startswith("h3's logs end early (1,234 bytes") and "/tmp/a" in line for line in lines)


def test_a_cause_that_is_cut_short_ends_with_an_ellipsis():
    long = Finding("peer-died", "fail", "rank 0 on h1: Connection closed by peer. " * 9)
    *_, line, page = diagnose.lines(Verdict(Finding(message="m"), "unknown", runners_up=(long,)))
    assert page == "  more    allranks explain unknown", "below all that was found"
    assert line.startswith("  or      peer-died: rank 0 on h1") and line.endswith("…") and len(line) < 200


def test_a_rank_that_fails_is_said_with_its_signal():
    assert "signal 9" in event_line(fact({"event": "rank-exit", "node": "h1", "rank": 2, "signal": 9}), 4)


def test_a_run_that_is_followed_before_its_nodes_are_known_has_them_from_the_gate():
    assert "reached by all 4 nodes" in event_line(fact({**PROVED, "ranks": {f"h{i}": 2 for i in range(4)}}), 1)


def test_a_node_has_one_line():
    ranks = (
        RankStatus(0, state="initialised", step=5, rate=2.0, last_output=90.0),
        RankStatus(1, state="initialised", step=4, rate=1.5, last_output=95.0),
    )
    line = node_line(NodeStatus("h1", None, "10.0.0.1", "running", ranks), 100.0, 4)
    assert line.split() == ["h1", "(10.0.0.1)", "running", "2", "initialised", "4", "1.50", "5", "s", "ago"]
    many = StatusDocument(nodes=tuple(NodeStatus(f"n{i}", state="ready") for i in range(100)))
    assert [line.split()[0] for line in table_lines(many, 0.0, 80)[1:]] == ["node", "100", "total"]


def test_the_table_has_headings_totals_and_the_time():
    ranks = [RankStatus(number, 0, "initialised", step=40 + number, rate=2.0 + number) for number in range(4)]
    nodes = tuple(NodeStatus(f"h{i}", i, None, "running", tuple(ranks[2 * i : 2 * i + 2])) for i in range(2))
    rule, head, first, _, total = table_lines(StatusDocument(nodes=nodes), 165.0, 100, began=100.0)
    assert rule.startswith("── 1 min 5 s ────")
    assert head.split() == ["node", "state", "ranks", "step", "steps/s", "last", "output"]
    assert total.split() == ["total", "2", "nodes", "4", "initialised", "40", "2.00"]
    ends = [line.index(word) + len(word) for line, word in ((head, "step"), (first, " 40"), (total, " 40"))]
    assert len(set(ends)) == 1, "the figures stand below their heading"
    assert table_lines(StatusDocument(nodes=nodes[:1]), 0.0, 100)[-1].startswith("h0"), "one node is its own total"


def test_the_time_that_is_left_needs_a_total_and_a_rate():
    assert RunProgress(40, 41, 2.0, 100).seconds_left == 30.0
    assert time_text(RunProgress(40, 41, 2.0, 100), 165.0, 100.0, 0.914) == "1 min 5 s, about 30.0 s left, goodput 91 %"
    assert time_text(RunProgress(40, 41, 2.0), 165.0, 100.0) == "1 min 5 s"
    assert [RunProgress(40, 41, 2.0).seconds_left, RunProgress(40, 41, None, 100).seconds_left] == [None, None]
    assert RunProgress(101, 101, 2.0, 100).seconds_left is None, "the program goes on behind its last step"


def test_a_node_that_is_lost_stands_out_where_colours_are_written():
    nodes = (NodeStatus("h1", state="running"), NodeStatus("h2", state="lost"))
    lines = table_lines(StatusDocument(nodes=nodes), 0.0, 100, colour=True)
    assert [line.startswith("\x1b[31m") for line in lines[2:4]] == [False, True]
    assert "\x1b" not in "".join(table_lines(StatusDocument(nodes=nodes), 0.0, 100))


def test_a_test_that_passed_says_what_that_means() -> None:
    stream = io.StringIO()
    view = TestView(stream=stream)
    document = {"exit": 0, "directory": "runs/t", "timing": {"total": 3.0}, "meaning": SYNC_PASSED, "ok": True}
    view.closing(result_record(document))
    assert "the cluster carries collectives. Look at the training code\npassed after 3.0 s" in stream.getvalue()


_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
_FIELDS = ("seconds", "ranks", "quiet", "node", "nodes", "signal", "by", "files", "bytes", "root", "slept", "verdict",
           "reason", "grace", "rank", "left", "address", "port", "attempt", "message", "left_out", "total")  # fmt: skip


_SHAPES = st.dictionaries(st.sampled_from(_FIELDS), _VALUES | st.dictionaries(st.text(), _VALUES))


@given(st.sampled_from(sorted(KINDS)), _SHAPES)
def test_an_event_of_another_shape_ends_no_view(kind: str, fields: dict[str, Any]) -> None:
    """`attach` ended with KeyError at the first damaged line of events.jsonl."""
    stamped = read_line({**fields, "t": 1.0, "event": kind})
    line = event_line(stamped, 2) if stamped is not None else None
    assert line is None or isinstance(line, str)


def test_files_that_may_be_lost_are_told_of_at_the_end_and_only_where_there_are_any() -> None:
    """The place is temporary in every run on hosts: it matters once the program has left something there."""
    ended = {"exit": 0, "directory": "runs/a", "timing": {"total": 1.0}}
    assert closing_lines(result_record(ended)) == ["done after 1.0 s (exit 0), logs in runs/a/logs"]
    lines = closing_lines(result_record({**ended, "outputs": {"h1": "/tmp/allranks-0/x/node_00/outputs"}}))
    assert lines[:2] == [
        "outputs   h1:/tmp/allranks-0/x/node_00/outputs",
        "          such places are temporary: --output-dir PATH names a lasting one",
    ]
    for asked_for in ("/data/out", "/tmp/out"):
        assert len(closing_lines(result_record({**ended, "outputs": {"h1": asked_for}}))) == 2


def test_the_end_says_what_share_of_the_time_was_useful_and_where_the_rest_went() -> None:
    ledger = TimeLedger(1000.0, start=12.0, useful=870.0, slow_share=33.0, computed_twice=51.0, restart=34.0, hang=0.0)
    result = ResultDocument("a", "runs/a", timing=Timing(1000.0), goodput=ledger.goodput, time_ledger=ledger)
    assert closing_lines(result)[-2] == (
        "goodput   87 %: 12.0 s start, 33.0 s waiting for stragglers, 51.0 s computed twice, 34.0 s restart"
    )


@pytest.mark.parametrize(
    ("ledger", "attempts", "line"),
    [
        pytest.param(TimeLedger(10.0, start=4.0, without_steps=6.0), 1, "", id="a run that shows no step"),
        pytest.param(
            TimeLedger(100.0, start=4.0, without_steps=66.0, restart=30.0),
            2,
            "unknown, fewer than two steps recognised (--step-pattern): 4.0 s start, 1 min 6 s in the program, "
            "30.0 s restart",
            id="it was tried again",
        ),
        pytest.param(
            TimeLedger(100.0, without_steps=40.0, hang=60.0),
            1,
            "unknown, fewer than two steps recognised (--step-pattern): 40.0 s in the program, 1 min 0 s hang",
            id="it hung",
        ),
        pytest.param(TimeLedger(100.0, useful=100.0, start=0.5), 1, "100 %", id="nothing was lost"),
        pytest.param(TimeLedger(100.0, useful=0.0, start=100.0), 1, "0 %: 1 min 40 s start", id="all was lost"),
    ],
)
def test_what_is_said_of_a_ledger(ledger: TimeLedger, attempts: int, line: str) -> None:
    assert goodput_line(ledger, attempts) == line


def test_a_part_of_the_ledger_has_a_name_and_a_meaning() -> None:
    """A field that the table lacks would be missing on every page."""
    assert [part.field for part in PARTS] == [one.name for one in fields(TimeLedger) if one.name != "wall"]
    rows = ledger_rows(TimeLedger(10.0, start=2.5))
    assert [(part.name, seconds, share) for part, seconds, share in rows] == [
        ("start", "2.5 s", 0.25),
        ("useful steps", "unknown", None),
        ("waiting for stragglers", "unknown", None),
        ("computed twice", "unknown", None),
        ("unaccounted", "0.00 s", 0.0),
    ]


ODD = tuple("\n\r\x00\x0b\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\u200f\u061c")


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_foreign_words_begin_no_line_of_ours(odd):
    """A fault's text with a newline made a line `VERDICT ...` in the live view."""
    words = f"it failed{odd}VERDICT   all is well"
    line = event_line(fact({"event": "fault", "id": "boot", "node": "h2", "message": words}), 2)
    assert line is not None and line.isprintable() and line.startswith("note: h2: it failed")
    left = {"event": "node-clean", "node": "h2", "left": [{"pid": 5, "state": "D", "command": words}]}
    line = event_line(fact(left), 2)
    assert line is not None and line.isprintable()
    finding = {"event": "finding", "status": "warn", "message": words, "remedy": "do this\nthen that"}
    line = event_line(fact(finding), 2)
    assert line is not None and [part.isprintable() for part in line.split("\n")] == [True] * 3
    verdict = decode_parts(Verdict, {**VERDICT, "message": words, "evidence": [words, words]})
    lines = verdict_lines(verdict)
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.startswith("VERDICT   all")] == []
