"""A record without secrets (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .record import Excerpt, Piece, Record, Tested
from .redact import Lines, Redactor, isolated, plain


def redacted(record: Record, redactor: Redactor) -> Record:
    """All that a page shows; the redactor has the list of what was hidden."""
    value = redactor.value
    names = redactor.text
    return replace(
        record,
        name=names(record.name, "names"),
        directory=names(record.directory, "names"),
        run=value(record.run, "run.json"),
        result=value(record.result, "result.json"),
        status=value(record.status, "status.json"),
        verdict=value(record.verdict, "verdict"),
        events=tuple(value(e, "events.jsonl", i + 1) for i, e in enumerate(record.events)),
        preflight=value(record.preflight, "evidence/preflight.json"),
        checks=_keys(record.checks, redactor),
        tests=tuple(_tested(t, redactor) for t in record.tests),
        rows=value(record.rows, "outputs"),
        texts={names(f, "names"): _text(f, text, redactor) for f, text in record.texts.items()},
        excerpts=tuple(_excerpt(e, redactor) for e in record.excerpts),
    )


def _text(file: str, text: str, redactor: Redactor) -> str:
    """JSON by its parts, as texts in it are escaped; anything else line by line."""
    if file.endswith(".jsonl"):
        lines = [
            redactor.json_line(line, file, i + 1) or redactor.text(line, file, i + 1)
            for i, line in enumerate(text.split("\n"))
        ]
        return "\n".join(lines)
    document = redactor.document(text, file) if file.endswith(".json") else None
    return redactor.text(text, file, 1) if document is None else document


def _keys(checks: Mapping[str, Mapping[str, str]], redactor: Redactor) -> dict[str, dict[str, str]]:
    """Node names may have to be hidden; statuses are ours."""
    return {check: {redactor.text(n, "names"): s for n, s in row.items()} for check, row in checks.items()}


def _tested(tested: Tested, redactor: Redactor) -> Tested:
    file = f"{tested.name}/result.json"
    links: tuple[Any, ...] = tuple(redactor.value(link, file) for link in tested.links)
    return Tested(redactor.text(tested.name, "names"), redactor.value(tested.result, file), links)


def _excerpt(excerpt: Excerpt, redactor: Redactor) -> Excerpt:
    pieces = tuple(_piece(p, excerpt.file, redactor, i > 0 and p.context == 0) for i, p in enumerate(excerpt.pieces))
    file = redactor.text(excerpt.file, "names")
    node = redactor.text(excerpt.node, "names")
    return replace(excerpt, file=file, node=node, pieces=pieces)


def _piece(piece: Piece, file: str, redactor: Redactor, alone: bool) -> Piece:
    """`alone`: from the middle of a log, where a private key may go on."""
    lines = Lines(redactor, file, piece.first)
    shown = [lines.line(isolated(plain(line)) if alone else line) for line in piece.lines]
    return Piece(piece.first + piece.context, tuple(shown[piece.context :]))
