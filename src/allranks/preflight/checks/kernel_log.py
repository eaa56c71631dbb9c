"""The kernel has logged no lockup, hung task, kill for memory, failing disk, adapter or AMD GPU, nor a like fault.

Which lines mean what: `allranks.kernel_lines`. NVIDIA's Xid is another check's.
"""

from __future__ import annotations

import re
from typing import Dict, Optional

from allranks.kernel_lines import KIND_BY_ID, KernelLineKind, kernel_line_kind
from allranks.protocol.records import NamedTuple
from allranks.text import format_ago, join_names, plural

from ..compare import Findings, Nodes, alike, by_item, collected, warn
from ..host import Host, kernel_lines, kernel_text, search_in, uptime
from ..typed_facts import Request

ID = "kernel_log"
GROUP = "host"
LEVEL = "full"
SECONDS = 30.0
DAY = 86400.0
DEVICE = re.compile(r"\b(nvme\d{1,4}|sd[a-z]{1,4})(?:n?\d{1,4})?(?:p\d{1,4})?\b")


class Logged(NamedTuple):
    """How many lines, the newest of them and how many seconds ago (None: the log has no times)."""

    count_: int
    line: str
    ago: Optional[float] = None


NONE = Logged(0, "")


def collect(host: Host) -> Dict[str, Logged]:
    """By kind."""
    logged: Dict[str, Logged] = {}
    for age, text in kernel_lines(kernel_text(host), uptime(host)):
        kind = kernel_line_kind(text)
        if kind is None:
            continue
        if not kind.days or age is None or age <= kind.days * DAY:
            logged[kind.id] = Logged(logged.get(kind.id, NONE).count_ + 1, text[:300], age)
    return {name: one for name, one in logged.items() if one.count_ >= KIND_BY_ID[name].least}


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of each kind; nodes with the same newest line (one kernel) stand together."""
    by_kind = by_item(collected(facts_by_node, ID, Dict[str, Logged]))
    for name, kind in KIND_BY_ID.items():
        logged = by_kind.get(name, {})
        for line, nodes in alike(logged, lambda one: one.line).items():
            message = f"the kernel of {join_names(nodes)} logged {kind.what}{_when(kind, logged[nodes[0]])}"
            yield warn(kind.label, nodes, message, _remedy(kind, nodes[0], line), [line])


def _remedy(kind: KernelLineKind, node: str, line: str) -> str:
    device = search_in(DEVICE, line)
    return kind.advice(node, f"-a /dev/{device}" if device else "--scan")


def _when(kind: KernelLineKind, one: Logged) -> str:
    lines = plural(one.count_, "", f": {one.count_} lines")
    if one.ago is None:
        return f"{lines} since boot"
    if not lines:
        return f" {format_ago(one.ago)}"
    period = "in the last day" if kind.days else "since boot"
    return f"{lines} {period}, the newest {format_ago(one.ago)}"
