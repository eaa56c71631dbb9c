"""Figures of a pasted launcher command against the settings, before any node is asked (pure)."""

from __future__ import annotations

from typing import Any

from allranks.cluster import Cluster
from allranks.findings import Finding
from allranks.preflight.checks.accelerate_config import COUNTS, judge_options
from allranks.preflight.figures import Ranks
from allranks.settings import RunSpec

from .launchers.settings import launcher_settings


def pasted_figures(spec: RunSpec, cluster: Cluster) -> list[Finding]:
    """What the check of these figures would find. Ranks of a node that only the node knows are not compared."""
    launching = launcher_settings(spec)
    slots = {node.name: node.slots for node in cluster.nodes}
    if spec.nproc is None and None in slots.values():
        options = launching["options"]
        launching = {**launching, "options": {k: v for k, v in options.items() if k not in COUNTS}}
    request: dict[str, Any] = {
        "launching": launching,
        "nproc": spec.nproc,
        "slots": slots,
        "master_port": spec.master_port,
    }
    return judge_options(request, Ranks(request, {}), {})
