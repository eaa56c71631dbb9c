"""Which role of a run is at fault, live and saved by the same rule (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from allranks.findings import Verdict
from allranks.settings.ray import RAY
from allranks.settings.runspec import Role

DONE = "roles-done"  # why a role is ended: all that end the run have
FAILED = "role-failed"
OWN = (DONE, FAILED)
LOST_SERVER = re.compile(
    r"Connect(?:ion)?(?:Refused|Reset|Aborted)?Error|Connection (?:refused|reset)|RemoteDisconnected"
)


class RoleEnd(NamedTuple):
    """How a role ended. `failed_t`: when its first failure came (unix seconds); `was_ready`: others could start."""

    role: Role
    verdict: Verdict | None
    failed_t: float | None
    stop_reason: str | None
    was_ready: bool

    @property
    def was_ended(self) -> bool:
        """Whether another role brought its end about."""
        return self.stop_reason in OWN and self.failed_t is None


def at_fault(ends: Sequence[RoleEnd]) -> RoleEnd | None:
    """Find the role whose failure is the run's: the first that failed.

    Where it only lost its connection to a server, and a role failed that does not end the run, that one is at fault.
    """
    roles = [end.role for end in ends]
    failed = [
        end
        for end in ends
        if end.verdict is not None and not end.was_ended and is_fatal(end.role, roles, end.was_ready)
    ]
    failed.sort(key=lambda end: end.failed_t or 0.0)
    first = next(iter(failed), None)
    ray = next((end for end in failed if end.role.launcher == RAY), None)
    if ray is not None and ray.failed_t is not None:
        return ray  # a driver sees the end of Ray before all else, and its own end is never that of Ray
    if first is None or first.verdict is None or not LOST_SERVER.search(first.verdict.finding.message):
        return first
    return next((end for end in failed if end.role.ends != "run"), first)


def is_fatal(role: Role, roles: Sequence[Role], was_ready: bool) -> bool:
    """Tell whether its failure is the run's: others wait in vain for a role that never was ready."""
    is_awaited = any(role.name in other.after for other in roles)
    return role.on_failure != "ignore" or (is_awaited and not was_ready)
