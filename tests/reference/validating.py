"""Check that a document is as its JSON Schema says; no field may stand there that the schema does not have."""

import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from tests import wording
from tests.reference.schemas import DOCUMENTS, schema_of

# What is asked of the nodes stands in the evidence as it was asked; only a part of it has a record.
OPEN = {"preflight"}
# The words of command lines that print a document, out of the table of the page; the most words come first.
_PRINTS = [
    (one.name, set(words.split()) - {"…"})
    for one in DOCUMENTS
    if one.name not in ("node-result", "log-line", "metrics-line")  # a line for each, of several kinds
    for words in re.findall(r"`([a-z][a-z0-9 …-]*) --json`", one.where)
]
_BY_WORDS = sorted(_PRINTS, key=lambda row: len(row[1]), reverse=True)


@functools.cache
def _validator(name: str) -> Any:
    schema = schema_of(name, closed=name not in OPEN)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def faults(name: str, document: object) -> list[str]:
    """What of a document is not as its schema says."""
    errors: Iterable[Any] = _validator(name).iter_errors(document)
    return [f"{name}: {error.json_path}: {error.message[:300]}" for error in errors]


def printed_faults(words: Sequence[str], document: object) -> list[str]:
    """The same of what a command line with --json has printed."""
    name = name_of(words, document)
    return faults(name, document) if name else []


def name_of(words: Sequence[str], document: object) -> str | None:
    """Name the schema of what a command line prints; None for what has none of its own."""
    if not isinstance(document, dict):
        return None
    words = list(words)
    if "error" in document and "exit" in document and len(document) <= 4:
        return "error"
    if words[:1] == ["explain"]:
        return "explain-list" if "pages" in document else "explain"
    if words[:1] == ["test"] and "--dry-run" not in words:
        return "test-result"
    if words[:1] == ["run"] and "collectives" in document:
        return "test-result"
    return next((name for name, needed in _BY_WORDS if words[:1] and words[0] in needed and needed <= set(words)), None)


def directory_faults(run: Path) -> list[str]:
    """Say what of its documents and events is not as its schemas say, and which findings are worded badly."""
    found: list[str] = []
    for name in ("run", "status", "result", "verdict"):
        path = run / f"{name}.json"
        if path.exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            of = "test-result" if name == "result" and "collectives" in document else name
            found += faults(of, document)
            if name == "result":
                found += [text for finding in document["findings"] for text in wording.faults_of(finding)]
                found += wording.faults_of(document["verdict"], is_verdict=True) if document["verdict"] else []
    preflight = run / "evidence" / "preflight.json"
    if preflight.exists():
        found += faults("preflight", json.loads(preflight.read_text(encoding="utf-8")))
    events = run / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    for line in lines:
        if line.endswith("}"):  # not one that a full disk has cut short
            found += [f"{line[:80]}: {fault}" for fault in faults("events", json.loads(line))]
    return found
