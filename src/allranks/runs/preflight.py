"""evidence/preflight.json: what a check or a run has seen of its nodes, to be judged again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.errors import ConfigError
from allranks.findings import Finding
from allranks.settings.secrets import redact_env

from .directory import RunDirectory

SCHEMA = 1
LIMIT = 256 << 20  # bytes of saved evidence
NAME = "preflight.json"

Document = dict[str, Any]


def document(
    request: Mapping[str, Any],
    nodes: Mapping[str, Any],
    checks: Sequence[str],
    t: float,
    unreachable: Sequence[Finding] = (),
    covered: str = "",
) -> Document:
    """All that a judgement needs, without secrets; `t` is unix seconds."""
    return {
        "schema": SCHEMA,
        "t": round(t, 3),
        "checks": list(checks),
        "request": {**request, "environ": redact_env(request.get("environ") or {})},
        "nodes": dict(nodes),
        "unreachable": [f.to_json() for f in unreachable],
        "covered": covered,
    }


def save(run: RunDirectory, found: Document) -> None:
    """Into a run directory; on a full disk it is left out."""
    evidence = run.path / "evidence"
    evidence.mkdir(mode=0o700, exist_ok=True)
    RunDirectory(evidence).write_document(NAME, found)


def read(path: Path) -> Document:
    """Saved evidence; raises ConfigError with what is wrong with it."""
    try:
        if path.is_dir():
            path = path / "evidence" / NAME
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; --from takes the evidence/preflight.json of a run") from None
    try:
        document = json.loads(data) if len(data) <= LIMIT else None
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), dict):
        raise ConfigError(f"{path} is no evidence of a check; --from takes the evidence/preflight.json of a run")
    if document.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: schema {document.get('schema')!r}; this allranks reads schema {SCHEMA}")
    return document
