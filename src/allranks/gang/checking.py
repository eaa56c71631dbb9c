"""`allranks check` from a spec to findings: looks, saves what it saw, judges; or judges what was saved (IO)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.cluster import Cluster
from allranks.errors import ConfigError
from allranks.findings import Finding, Where
from allranks.preflight.check import Check
from allranks.preflight.judge import judge
from allranks.preflight.schedule import covered
from allranks.runs.directory import RunDirectory
from allranks.spec import RunSpec
from allranks.spec.secrets import redact_env

from .inspection import Evidence, Inspection
from .places import Setting, judge_request
from .session import make_setting

SCHEMA = 1
LIMIT = 256 << 20  # bytes of saved evidence

Document = dict[str, Any]


def look(
    spec: RunSpec, cluster: Cluster, run: RunDirectory, checks: Sequence[Check], told: Callable[[str, int, int], None]
) -> Document:
    """Looks at the cluster and saves evidence/preflight.json in the run directory."""
    setting = make_setting(spec, cluster, os.environ, os.getcwd(), run, tuple(checks))
    pairs = not spec.local and any(c.needs in ("pairs", "peer_names") for c in checks)
    found = asyncio.run(Inspection(spec, cluster, setting, told, pairs).run())
    document = evidence_document(spec, cluster, setting, found, [c.name for c in checks])
    save(run, document)
    return document


def evidence_document(
    spec: RunSpec, cluster: Cluster, setting: Setting, found: Evidence, names: Sequence[str]
) -> Document:
    """All that a judgement needs, without secrets."""
    request = judge_request(spec, setting, cluster)
    request = {**request, "environ": redact_env(request["environ"]), "gate": found.gate}
    pairs = any("pairs" in facts for facts in found.nodes.values())
    return {
        "schema": SCHEMA, "t": round(time.time(), 3), "checks": list(names), "request": request, "nodes": found.nodes,
        "unreachable": [f.to_json() for f in found.unreachable],
        "covered": covered(len(found.nodes)) if pairs else "",
    }  # fmt: skip


def save(run: RunDirectory, document: Document) -> Path:
    """evidence/preflight.json of a run directory."""
    evidence = run.path / "evidence"
    evidence.mkdir(mode=0o700, exist_ok=True)
    RunDirectory(evidence).write_document("preflight.json", document)
    return evidence / "preflight.json"


def read(path: Path) -> Document:
    """Saved evidence; raises ConfigError with what is wrong with it."""
    try:
        if path.is_dir():
            path = path / "evidence" / "preflight.json"
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


def judge_evidence(document: Mapping[str, Any], checks: Iterable[Check], allow: Sequence[str]) -> list[Finding]:
    """Unreachable nodes, then what the checks say of the others."""
    lost = [_finding(f) for f in document.get("unreachable") or ()]
    return lost + judge(document.get("request") or {}, document["nodes"], checks, allow)


def _finding(document: Mapping[str, Any]) -> Finding:
    where = document.get("where") or {}
    return Finding(
        str(document.get("id")), document.get("status", "fail"), str(document.get("message")),
        str(document.get("remedy") or ""), Where(node=where.get("node"), peer=where.get("peer")),
        tuple(document.get("evidence") or ()), "reached",
    )  # fmt: skip
