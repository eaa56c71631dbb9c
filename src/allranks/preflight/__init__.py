"""The quick look before ranks start: one file a check, each judges the facts of all nodes. Pure.

A check module has `ID` and `judge(request, facts_by_node) -> list[Finding]`; finding ids are cause labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from allranks.findings import Finding

from . import (
    interpreter,
    limits,
    logind,
    nodedir,
    own_name,
    same_machine,
    script,
    shm,
    slots,
    workdir,
)

Judge = Callable[[Mapping[str, Any], Mapping[str, Mapping[str, Any]]], list[Finding]]

# In the order of their findings: what is absent first, then what differs, then what is small.
CHECKS: dict[str, Judge] = {
    module.ID: module.judge
    for module in (workdir, script, interpreter, same_machine, slots, nodedir, limits, shm, own_name, logind)
}
# Checks about what several machines must have in common say nothing of virtual nodes of one machine.
BETWEEN_MACHINES = (same_machine.ID, own_name.ID)


def judge_quick(request: Mapping[str, Any], facts_by_node: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """All findings of the quick look; an ok check says nothing.

    `request` is what the nodes were asked to look at, with "nproc" (None: auto), "virtual" (all nodes are
    on this machine) and, where known, "slots" ({node: number}), "wrap" and "launcher".
    """
    facts = dict(facts_by_node)
    found: list[Finding] = []
    for name, judge in CHECKS.items():
        if request.get("virtual") and name in BETWEEN_MACHINES:
            continue
        one = bool(request.get("virtual")) and name != slots.ID  # one machine: one finding
        found += judge(request, dict(list(facts.items())[:1]) if one else facts)
    return found
