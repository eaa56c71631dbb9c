"""Fuzzers of what a training program writes for allranks: metrics lines, numbers of steps, reports, error files."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_import_records import Program
from tests.campaign import Campaign
from tests.fuzz.nasty import NASTY, flipped, hostile_json, mutated
from tests.outcome import outcome

from allranks.agent.attempt import read_error_file
from allranks.diagnose.exceptions import Raised
from allranks.engines.remote_shell import files_of
from allranks.gang.matching import LINE, Matching
from allranks.gang.progress import LINE_LIMIT, StepReader
from allranks.protocol.codec import decode, encode
from allranks.protocol.foreign import LINKS, TEXT, TRACE, ReportMessage, clean_error, read_report
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.orders import MOST_RANKS
from allranks.runs.known_directories import NAME, known_runs_directories, note_runs_directory

pytestmark = pytest.mark.fuzz
Message = dict[str, Any]
MOST_STEPS = (1 << 53) - 1
METRICS: list[Message] = [{"step": 7, "t": 1000.5, "loss": 0.5}, {"step": 8}, {"t": 1.0, "loss": "nan"}]
REPORTS: list[Message] = [
    {"event": "initialised", "rank": 1, "world_size": 4, "t": 1000.0, "pid": 7},
    {"event": "leaving", "rank": 1, "code": -9, "threads": ["a", "b"], "t": 1000.0},
    {"event": "launched", "rank": 0, "pid": 77, "count": 8, "program": "python"},
]
LINK = {"type": "OSError", "text": "no", "file": "a.py", "line": 3, "function": "f", "link": "cause"}
ERROR_FILES: list[Message] = [
    {"message": {"message": "E: x", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}},
    {"message": "a text"},
    {"message": {"message": "E: x"}, "allranks": {
        "schema": 1, "type": "E", "text": "x", "file": "a.py", "line": 3, "function": "f", "module": "m", "t": 1000.0,
        "rank": 1, "pid": 7, "traceback": "Traceback", "chain": [LINK, LINK]}},
]  # fmt: skip


def written(rng: random.Random, documents: list[Message]) -> bytes:
    """One of the documents, or something else in its place."""
    kind = rng.randrange(4)
    if kind == 0:
        return hostile_json(rng)
    text = json.dumps(rng.choice(documents) if kind == 1 else mutated(rng.choice(documents), rng)).encode()
    return flipped(text, rng) if kind == 3 else text


def test_metrics_lines(campaign: Campaign) -> None:
    """Each line gives a step or is refused; how the bytes were cut makes no difference."""
    for chance in campaign.cases(300):
        data = b"".join(written(chance, METRICS) + chance.choice((b"\n", b"\r\n")) for _ in range(5))
        readers = []
        for pieces in (1, chance.randrange(2, 9)):
            reader, refused = StepReader(), list[str]()
            for start in range(0, len(data), len(data) // pieces + 1):
                reader.metrics(data[start : start + len(data) // pieces + 1], 1000.0, refused.append, lambda _: None)
            readers.append((reader.step, reader.rate, len(refused)))
            assert reader.step is None or 0 <= reader.step <= MOST_STEPS
            assert reader.rate is None or 0 <= reader.rate < float("inf")
            assert all("\x1b" not in why and len(why) < 100 for why in refused)
        if all(len(line) <= LINE_LIMIT for line in data.splitlines()):
            assert readers[0] == readers[1]
        reader.metrics(b'\n{"step": 3}\n', 1000.0, lambda _: None, lambda _: None)
        assert reader.step == 3


DIGITS = (b"7", b"0", b"9" * 18, b"9" * 19, b"9" * 5000, "٣".encode(), "²".encode(), b"-5", b"1e9", b"1_0", b"+5", b"")


def test_lists_of_runs_directories(campaign: Campaign, tmp_path: Path) -> None:
    """Whatever stands in the list, reading gives directories that are there, and a run's own is noted."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    file = tmp_path / "allranks" / NAME
    file.parent.mkdir()
    known: list[Message] = [{"schema": 1, "directory": str(tmp_path)}, {"schema": 1, "directory": "/nonexistent"}]
    for chance in campaign.cases(150):
        file.write_bytes(b"\n".join(written(chance, known) for _ in range(chance.randrange(1, 9))))
        assert {path.is_dir() for path in known_runs_directories(environ)} <= {True}
        note_runs_directory(tmp_path, environ)
        assert tmp_path in known_runs_directories(environ)


def test_numbers_of_a_step_pattern(campaign: Campaign) -> None:
    """What is found is a number that a step can be."""
    patterns = (r"step (\S*)", r"step (\d+)", r"\d+", r"step (x)?", r"(?P<step>[^ ]+)$", "step|(loss)")
    for chance in campaign.cases(100):
        matching = Matching("--step-pattern", chance.choice(patterns), pytest.fail)
        for rank in range(chance.randrange(1, 20)):
            line = b"step " + chance.choice(DIGITS) + chance.choice((b"\n", b"\r", b" x\n", b"x" * LINE + b"\n"))
            match = matching.feed(rank % 3, line + chance.randbytes(chance.randrange(20)))
            assert match is not None and match.lines >= 0
            if match.number is not None:
                reader = StepReader()
                reader.note(match.number, 1000.5)
                assert 0 <= match.number < 10**18


def test_reports_to_the_agent(campaign: Campaign) -> None:
    """A report has the fields that it should, or is refused."""
    for chance in campaign.cases(1000):
        found = outcome(DecodeError, read_report, written(chance, REPORTS)[:65536])
        if isinstance(found, DecodeError):
            assert len(str(found)) < 100
            campaign.counts["refused"] = campaign.counts.get("refused", 0) + 1
            continue
        assert 0 < len(found.event) <= 40
        assert 0 <= found.rank <= MOST_RANKS
        assert all(isinstance(number, (int, type(None))) for number in (found.pid, found.world_size, found.code))
        assert all(len(name) <= 200 for name in found.threads)
        written_again = json.dumps(encode(found), allow_nan=False)
        assert decode(ReportMessage, json.loads(written_again)) == found


def test_error_files(campaign: Campaign, tmp_path: Path) -> None:
    """What is kept of one is small, of the right types, and the same when it is read again."""
    path = tmp_path / "error.json"
    for chance in campaign.cases(150):
        path.write_bytes(written(chance, ERROR_FILES))
        _checked(read_error_file(str(path)))
        if chance.random() < 0.5:
            _checked(clean_error(chance.choice([*NASTY, mutated(chance.choice(ERROR_FILES), chance)])))


def _checked(found: Message | None) -> None:
    if found is None:
        return
    assert clean_error(found) == found
    assert len(json.dumps(found, allow_nan=False)) < 8 * (2 * TRACE + (LINKS + 1) * (TEXT + 5000))
    raised = Raised.from_error_file(found)
    assert raised is None or isinstance(raised.type, str)


def test_records_of_imports(campaign: Campaign, tmp_path: Path) -> None:
    """Whatever lies in the user's cache directory: it serves as it was written, or it is said why not."""
    program = Program(tmp_path)
    path = program.keep()
    document = json.loads(path.read_bytes())
    for chance in campaign.cases(300):
        path.write_bytes(written(chance, [document]))
        found, why = program.find()
        assert why or found == program.imports() or json.loads(path.read_bytes()) != document
        assert len(why) < 500


def test_answers_of_another_machine(campaign: Campaign) -> None:
    """Whatever a host answers to a look at its run, its files are taken from between their marks alone."""
    mark = b"0123456789abcdef"
    for chance in campaign.cases(300):
        begin, end = mark + b" file run.json\n", b"\n" + mark + b" end\n"
        parts = [begin, end, mark + b" done\n", written(chance, METRICS), b"\xff"]
        answer = b"".join(chance.choice(parts) for _ in range(chance.randrange(1, 12)))
        files = files_of(answer, mark)
        assert files.keys() <= {"run.json"}
        assert not any(mark + b" end" in content for content in files.values())
