"""JSON Schemas of the documents: well formed, refuse what is wrong, and true of what is written and printed.

Documents of real runs are validated where the tests make them (tests/shell.py, tests/local, tests/hosts).
"""

import json
from typing import Any

import pytest
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


@pytest.mark.parametrize("name", ["schema", "message"])
def test_a_document_lacks_nothing(name: str) -> None:
    document = encode(VERDICT)
    assert faults("verdict", document) == [] and document["explain"] == "allranks explain unknown"
    assert faults("verdict", {key: value for key, value in document.items() if key != name}) != []


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": 2},
        {"confidence": "high"},
        {"victims": [1, "2"]},
        {"where": {"node": 5}},
        {"further": 1},
        {"runners_up": [{"id": "x", "status": "broken"}]},
    ],
)
def test_a_document_that_is_wrong_is_refused(wrong: dict[str, Any]) -> None:
    assert faults("verdict", {**encode(VERDICT), **wrong}) != []


def test_every_kind_of_event_has_its_schema() -> None:
    known = {line["properties"]["event"]["const"] for line in schema_of("events")["anyOf"]}
    assert known == set(KINDS)
    assert faults("events", {"t": 1.0, "event": "run-end", "exit": 0}) == []
    assert faults("events", {"t": 1.0, "event": "run-end"}) != []
    assert faults("events", {"t": 1.0, "event": "no-such-event"}) != []
