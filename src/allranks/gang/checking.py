"""`allranks check` from a spec to findings: looks, saves what it saw, judges; or judges what was saved (IO)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from allranks.cluster import Cluster
from allranks.engines.transport import Transport
from allranks.findings import Finding, Where
from allranks.preflight.check import Check
from allranks.preflight.judge import judge
from allranks.preflight.schedule import covered
from allranks.runs.directory import RunDirectory
from allranks.runs.preflight import Document, document, save
from allranks.settings import RunSpec

from .inspection import Inspection
from .places import judge_request
from .session import make_setting, names_of


def look(
    spec: RunSpec,
    cluster: Cluster,
    run: RunDirectory,
    checks: Sequence[Check],
    told: Callable[[str, int, int], None],
    transport: Transport | None = None,
) -> Document:
    """Looks at the cluster and saves evidence/preflight.json in the run directory."""
    setting = make_setting(spec, cluster, os.environ, os.getcwd(), names_of(run), tuple(checks))
    pairs = not spec.target.local and any(c.needs in ("pairs", "peer_names") for c in checks)
    found = asyncio.run(Inspection(spec, cluster, setting, told, pairs, transport).run())
    request = {**judge_request(spec, setting, cluster), "gate": found.gate}
    tried = covered(len(found.nodes)) if any("pairs" in facts for facts in found.nodes.values()) else ""
    seen = document(request, found.nodes, [c.name for c in checks], time.time(), found.unreachable, tried)
    seen["hosts"] = found.hosts
    save(run, seen)
    return seen


def judge_evidence(document: Mapping[str, Any], checks: Iterable[Check], allow: Sequence[str]) -> list[Finding]:
    """Unreachable nodes, then what the checks say of the others."""
    lost = [_finding(f) for f in document.get("unreachable") or ()]
    return lost + judge(document.get("request") or {}, document["nodes"], checks, allow)


def _finding(document: Mapping[str, Any]) -> Finding:
    where = document.get("where") or {}
    return Finding(
        str(document.get("id")),
        document.get("status", "fail"),
        str(document.get("message")),
        str(document.get("remedy") or ""),
        Where(node=where.get("node"), peer=where.get("peer")),
        tuple(document.get("evidence") or ()),
        "reached",
    )
