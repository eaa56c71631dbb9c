"""All clocks agree with the controller's within a second.

Logs of several nodes can't be read in order otherwise, and tokens and leases of other tools fail. allranks
itself corrects times by the measured offset.
"""

from __future__ import annotations

from typing import List

from allranks.findings import Finding
from allranks.text import count_of, plural

from ..compare import Nodes, part, place, remote
from ..host import Record, Request

ID = "clock"
GROUP = "network"
LEVEL = "quick"
NEEDS = "clock"
BETWEEN_MACHINES = True
LIMIT = 1.0  # seconds


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """clock-skew: a warning for each odd node; where most nodes are off together, the controller is."""
    clocks = {n: part(f, ID) for n, f in facts_by_node.items()}
    off = {n: float(c["offset"]) for n, c in clocks.items() if _is_off(c)}
    if not off:
        return []
    if len(off) > 1 and len(off) == len(facts_by_node) and max(off.values()) - min(off.values()) < LIMIT:
        message = f"the clock of this machine is {_by(-off[min(off)])} all {count_of(len(off), 'node')}'"
        remedy = "set this machine's clock: timedatectl set-ntp true"
        return [Finding("clock-skew", "warn", message, remedy, place(list(off)))]
    others = [n for n in facts_by_node if n not in off]
    rest = f"; the other {len(others)} {plural(len(others), 'is', 'are')} within {LIMIT:g} s" if others else ""
    findings = []
    for node, offset in off.items():
        message = f"the clock of {node} is {_by(offset)} the controller's{rest}"
        remedy = remote(node, "sudo", "timedatectl", "set-ntp", "true") + " (or chronyc makestep)"
        findings.append(Finding("clock-skew", "warn", message, remedy, place([node])))
    return findings


def _is_off(clock: Record) -> bool:
    """Beyond the limit by more than the uncertainty of the measurement, half the round trip."""
    return bool(clock) and abs(float(clock["offset"])) > LIMIT + float(clock.get("delay") or 0) / 2


def _by(offset: float) -> str:
    amount = abs(offset)
    text = f"{amount:.1f} s" if amount < 120 else f"{amount / 60:.0f} minutes"
    return f"{text} {'ahead of' if offset > 0 else 'behind'}"
