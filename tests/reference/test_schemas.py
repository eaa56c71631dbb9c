"""JSON Schemas of the documents: well formed, refuse what is wrong, and true of what is written and printed.

Documents of real runs are validated where the tests make them (tests/shell.py, tests/local, tests/hosts).
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.local.running import LocalRun
from tests.reference.all_pages import REFERENCE
from tests.reference.schemas import PUBLISHED, schema_of
from tests.reference.validating import faults, name_of

from allranks.cli.commands import COMMANDS
from allranks.cli.declare import DeclaredVerbs
from allranks.findings import Finding, Verdict, Where
from allranks.protocol.codec import encode
from allranks.protocol.run_facts import KINDS

VERDICT = Verdict(Finding("oom", "fail", "m", where=Where(node="h1")), "unknown", 0.5, (1, 2))


@pytest.mark.parametrize("name", [*PUBLISHED, "events"])
def test_a_published_schema_is_one_that_stands_alone(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((REFERENCE / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == schema_of(name)
    references = [word for word in json.dumps(schema).split('"') if word.startswith("#/")]
    assert {reference.rpartition("/")[2] for reference in references} <= set(schema.get("$defs", ()))


def test_every_command_with_json_has_a_schema() -> None:
    """`logs`, and `join` on node 0, print lines of JSON."""
    commands = [
        (one.name, below) for one in COMMANDS.values()
        for below in (one.commands if isinstance(one, DeclaredVerbs) else (one,))
    ]  # fmt: skip
    words = [[verb, below.name] for verb, below in commands if any(row.option == "--json" for row in below.rows)]
    without = [word for word in words if name_of([*word, "--json"], {}) is None]
    assert len(words) > 12 and [word[0] for word in without] == ["logs", "join"]


def test_a_document_is_as_its_record_is_written() -> None:
    assert faults("verdict", encode(VERDICT)) == []


def _without(name: str) -> dict[str, Any]:
    document = copy.deepcopy(encode(VERDICT))
    del document[name]
    return document


@pytest.mark.parametrize(
    "document",
    [
        _without("schema"),
        _without("message"),
        {**encode(VERDICT), "schema": 2},
        {**encode(VERDICT), "confidence": "high"},
        {**encode(VERDICT), "victims": [1, "2"]},
        {**encode(VERDICT), "where": {"node": 5}},
        {**encode(VERDICT), "further": 1},
        {**encode(VERDICT), "runners_up": [{"id": "x", "status": "broken"}]},
    ],
)
def test_a_document_that_is_wrong_is_refused(document: dict[str, Any]) -> None:
    assert faults("verdict", document) != []


def test_every_kind_of_event_has_its_schema() -> None:
    known = {line["properties"]["event"]["const"] for line in schema_of("events")["anyOf"]}
    assert known == set(KINDS)
    assert faults("events", {"t": 1.0, "event": "run-end", "exit": 0}) == []
    assert faults("events", {"t": 1.0, "event": "run-end"}) != []
    assert faults("events", {"t": 1.0, "event": "no-such-event"}) != []


@pytest.mark.processes
def test_the_documents_of_a_run_that_fails_and_is_tried_again(tmp_path: Path) -> None:
    """`LocalRun.result` validates what was printed, and the run directory."""
    program = "import os\nif os.environ['RANK'] == '1': raise ConnectionResetError('reset by peer')\n"
    run = LocalRun(tmp_path, program, "--retries", "1")
    document = run.result()
    assert len(document["attempts"]) == 2
    assert document["verdict"]["explain"] == f"allranks explain {document['verdict']['cause']}"
    assert {"run-start", "retry", "attempt-end", "run-end"} <= {event["event"] for event in events_of(run.directory)}


def events_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()]
