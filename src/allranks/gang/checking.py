"""`allranks check` from a spec to findings: looks, saves what it saw, judges; or judges what was saved (IO)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from allranks.cluster import Cluster
from allranks.findings import Finding
from allranks.preflight.check import Check
from allranks.preflight.judge import judge
from allranks.preflight.peer_pairs import covered
from allranks.protocol.codec import decode_each, encode
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.preflight import document, save
from allranks.settings import RunSpec

from .inspection import Inspection
from .places import judge_request
from .session import make_setting, names_of
from .tasks import run_loop
from .transport import Transport


def look(
    spec: RunSpec,
    cluster: Cluster,
    run: RunDirectory,
    checks: Sequence[Check],
    progress: Callable[[str, int, int], None],
    transport: Transport,
) -> Document:
    """Look at the cluster and save evidence/preflight.json in the run directory."""
    setting = make_setting(spec, cluster, os.environ, os.getcwd(), names_of(run), tuple(checks))
    pairs = not spec.target.local and any(c.needs in ("pairs", "peer_names") for c in checks)
    evidence = run_loop(Inspection(spec, cluster, setting, progress, pairs, transport).run)
    request = judge_request(spec, setting, cluster)
    if evidence.gate is not None:  # else no node was reached, and the rendezvous check was not tried
        request["gate"] = encode(evidence.gate)
    tried = covered(len(evidence.nodes)) if any("pairs" in facts for facts in evidence.nodes.values()) else ""
    saved = document(request, evidence.nodes, [c.name for c in checks], time.time(), evidence.unreachable, tried)
    saved["hosts"] = evidence.hosts
    save(run, saved)
    return saved


def judge_evidence(document: Mapping[str, Any], checks: Iterable[Check], allow: Sequence[str]) -> list[Finding]:
    """Unreachable nodes, then what the checks say of the others."""
    lost = decode_each(Finding, document.get("unreachable"))
    lost = [finding._replace(check="reached") for finding in lost]
    return lost + judge(document.get("request") or {}, document["nodes"], checks, allow)
