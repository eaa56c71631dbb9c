"""All clocks agree with the controller's within a second.

Logs of several nodes can't be read in order otherwise, and tokens and leases of other tools fail. Times
of a run are corrected by the measured offset.
"""

from __future__ import annotations

from allranks.text import count_of

from ..compare import Findings, Nodes, others, remote, values_of, warn
from ..typed_facts import Request

ID = "clock"
GROUP = "network"
LEVEL = "quick"
NEEDS = "clock"
BETWEEN_MACHINES = True
LIMIT = 1.0  # seconds
LABEL = "clock-skew"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """clock-skew: a warning for each odd node; where most nodes are off together, the controller is."""
    clocks = values_of(facts_by_node, lambda facts: facts.clock)
    # beyond the limit by more than the uncertainty of the measurement, half the round trip
    off = {node: one.offset for node, one in clocks.items() if abs(one.offset) > LIMIT + one.delay / 2}
    if len(off) > 1 and len(off) == len(facts_by_node) and max(off.values()) - min(off.values()) < LIMIT:
        message = f"the clock of this machine is {_by(-min(off.values()))} those of all {count_of(len(off), 'node')}"
        yield warn(LABEL, list(off), message, "set this machine's clock: timedatectl set-ntp true")
        return
    fine = [node for node in facts_by_node if node not in off]
    rest = others(fine, f"are within {LIMIT:g} s", f"is within {LIMIT:g} s")
    for node, offset in off.items():
        remedy = remote(node, "sudo timedatectl set-ntp true") + " (or chronyc makestep)"
        yield warn(LABEL, node, f"the clock of {node} is {_by(offset)} the controller's{rest}", remedy)


def _by(offset: float) -> str:
    amount = abs(offset)
    side = "ahead of" if offset > 0 else "behind"
    if amount < 120:
        return f"{amount:.1f} s {side}"
    return f"{amount / 60:.0f} minutes {side}"
