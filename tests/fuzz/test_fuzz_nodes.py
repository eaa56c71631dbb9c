"""Fuzzers of what nodes answer to `exec` and `fetch`, and of the memory of nodes."""

import contextlib
import hashlib
import json
import random
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped, hostile_json, mutated

from allranks.cli.exec import groups_of, how_it_ended, lines_of, node_code
from allranks.cli.nodes import lines_of as lines_of_nodes
from allranks.cluster import Node
from allranks.engines.ssh import SshTransport
from allranks.gang.execution import HEAD, TAIL, Job, NodeCommand
from allranks.gang.fetching import FetchFailed, FileReceiver, NodeFetch, read_list
from allranks.protocol.frames import MAX_OFFSET, Frame, OutputFrame, Stream
from allranks.protocol.header import WantedFile
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import Message, OutputFile, read_message
from allranks.report.terminal import clean
from allranks.runs.nodeledger import add_records, read_ledger, remembered, suspects
from allranks.settings.runspec import Launch

pytestmark = pytest.mark.fuzz
JOB = Job("exec-1", ("true",), {}, None, None, 1.0, 1.0, 1.0)
ANSWERS: list[dict[str, Any]] = [
    {"type": "hello", "node_dir": "/tmp/x", "hostname": "h1", "pid": 7, "t": 1.0, "cwd": "/"},
    {"type": "exit", "rank": 0, "attempt": 0, "code": 3, "error": {"message": "x"}},
    {"type": "ended", "attempt": 0, "left": [{"pid": 3, "command": "x"}], "reason": "exec"},
    {"type": "drained", "attempt": 0, "sizes": {"0/0/0": 3}},
    {"type": "dropped", "kind": 0, "rank": 0, "attempt": 0, "total": 77, "bounded": True},
    {"type": "fault", "kind": "start-failed", "message": "rank 0 could not run x", "rank": 0},
]


def _answer(rng: random.Random, documents: list[dict[str, Any]]) -> Frame:
    """One of the documents, or a broken one."""
    if rng.randrange(2):
        return dict(rng.choice(documents))
    made = mutated(rng.choice(documents), rng)
    return {**made, "type": str(made["type"])} if isinstance(made, dict) and "type" in made else {"type": "x"}


def _frame(rng: random.Random) -> Frame:
    """What a node may send: an answer, or output of any stream and offset."""
    if rng.randrange(2):
        return _answer(rng, ANSWERS)
    stream = Stream(rng.choice((0, 0, 1, 255)), rng.choice((0, 0, 7)), rng.choice((0, 0, 9)))
    offset = rng.choice((0, 0, 10, HEAD, rng.randrange(MAX_OFFSET)))
    data = rng.choice((b"", rng.randbytes(rng.randrange(300)), b"\x1b]0;x\x07\r\n" * 9, b"x" * HEAD))
    return OutputFrame(stream, offset, data)


def test_the_output_of_a_node(campaign: Campaign) -> None:
    """Whatever comes is bounded, printable, and the outcome stands for an exit code."""
    for rng in campaign.cases(200):
        transport = SshTransport(Launch())
        asked = NodeCommand(Node(0, "h1", "h1"), JOB, transport)
        for _ in range(rng.randrange(1, 12)):
            asked.session.receive([_frame(rng) for _ in range(rng.randrange(4))])
        result = asked.result
        result.code = rng.choice((None, 0, 3, -1, 1 << 40))
        result.signal = rng.choice((None, 9, 64, 999, -5))
        output = result.output
        assert len(output.head) + len(output.tail) <= HEAD + TAIL
        assert output.left_out == output.size - len(output.head) - len(output.tail) >= 0
        (((_, end), members),) = groups_of([result], 1.0).items()
        lines = lines_of(members, end, colour=False)
        assert not any(unicodedata.category(letter) == "Cc" for letter in "".join(lines).replace("\t", ""))
        assert end == how_it_ended(result, 1.0)
        assert node_code(result) in (0, 1, 4)


LISTS: list[dict[str, Any]] = [
    {"type": "listed", "files": [{"path": "a/b.pt", "size": 6}, {"path": "c", "size": 0}], "last": False},
    {"type": "listed", "files": [{"path": "../../etc/x", "size": 3}, {"path": "/abs", "size": 3}], "last": True},
    {"type": "listed", "skipped": 3, "error": "no directory", "last": True},
    {"type": "fault", "kind": "boot", "message": "x"},
    {"type": "swept"},
]
SENT: list[dict[str, Any]] = [
    {"type": "sent", "index": 0, "size": 6, "sha256": hashlib.sha256(b"abcdef").hexdigest()},
    {"type": "sent", "index": 1, "size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    {"type": "sent", "index": 0, "error": "gone"},
    {"type": "sent", "index": 1, "size": 9, "sha256": "00"},
]


def _message(rng: random.Random, kinds: list[dict[str, Any]]) -> OutputFrame | Message:
    answer = _answer(rng, kinds)
    return answer if isinstance(answer, OutputFrame) else read_message(answer)


def test_the_list_and_the_files_of_a_node(campaign: Campaign, tmp_path: Path) -> None:
    """Nothing is written outside of the node's directory, and a file gets its name only if it is what was hashed."""
    for number, rng in enumerate(campaign.cases(150)):
        place = tmp_path / f"case{number}" / "in"
        place.mkdir(parents=True)
        node = NodeFetch(Node(0, "h1", "h1"), "/out", place / "node")
        with contextlib.suppress(DecodeError, FetchFailed):
            while not read_list(_message(rng, LISTS), node, rng.choice((None, "*.pt", "a/*"))):
                pass
        assert all(not path.startswith("/") and ".." not in path.split("/") for path, _ in node.listed)
        node.listed = [OutputFile("a/b.pt", 6), OutputFile("c", 0)]
        wanted = [WantedFile("a/b.pt", rng.choice((0, 3))), WantedFile("c")]
        if wanted[0].offset:
            (place / "node" / "a").mkdir(parents=True)
            (place / "node" / "a" / ".b.pt.part").write_bytes(rng.choice((b"abc", b"xyz")))
        receiver = FileReceiver(node, wanted)
        with contextlib.suppress(DecodeError, FetchFailed):
            for _ in range(8):
                stream = Stream(rng.choice((0, 0, 0, 3)), rng.choice((0, 0, 1)), 0)
                data = OutputFrame(stream, rng.choice((0, 0, 3, 9)), rng.choice((b"abc", b"def", b"abcdef", b"")))
                if receiver.take(data if rng.randrange(2) else _message(rng, SENT)):
                    break
        receiver.close()
        assert [path.name for path in place.parent.iterdir()] == ["in"]
        assert [path.name for path in place.iterdir()] in ([], ["node"])
        whole = place / "node" / "a" / "b.pt"
        assert not whole.exists() or whole.read_bytes() == b"abcdef"
        shutil.rmtree(place.parent)


RECORDS: list[dict[str, Any]] = [
    {"schema": 1, "t": 1.7e9, "run": "r", "kind": "run", "name": "h1", "hostname": "h1", "machine": "a" * 16,
     "outcome": "failed", "cause": "slow-link", "peer": "h2", "message": "m"},
    {"schema": 1, "t": 1.7e9, "run": "r", "kind": "run", "name": "h2", "hostname": "h2", "machine": "a" * 16},
    {"schema": 1, "t": 1.8e9, "run": "s", "kind": "check", "name": "h3", "outcome": "failed", "cause": "ecc-error"},
]  # fmt: skip


def test_the_memory_of_nodes(campaign: Campaign, tmp_path: Path) -> None:
    """Whatever stands in the file is read or left out, and what is printed is printable and stands for one line."""
    file = tmp_path / "nodes.jsonl"
    for rng in campaign.cases(200):
        lines = [
            hostile_json(rng) if rng.randrange(6) == 0
            else flipped(json.dumps(rng.choice(RECORDS)).encode(), rng) if rng.randrange(2)
            else json.dumps(mutated(rng.choice(RECORDS), rng)).encode()
            for _ in range(rng.randrange(8))
        ]  # fmt: skip
        file.write_bytes(b"\n".join(lines))
        records = read_ledger(file)
        nodes = remembered(records, 1.8e9)
        assert sum(node.runs for node in nodes) == len(records)
        assert all(reason for reason in suspects(nodes).values())
        shown = [clean(line, colour=False) for line in lines_of_nodes(nodes, 1.8e9, "f")]
        assert all(line.isprintable() for line in shown)
        assert add_records(file, records[:1]) and read_ledger(file)[: len(records)] == records
