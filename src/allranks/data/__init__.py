"""Is the data really split? The audit of what each rank reads, and the plan of steps an epoch.

probe ships into the ranks and notes samples; rows and judge (pure) compare the ranks; virtual plays all ranks on
this machine; steps (pure) counts steps and predicts times. `audit` is for programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .auditing import Audit

__all__ = ["audit"]


def audit(loader: Any, **more: Any) -> Audit:
    """See `allranks.data.auditing.audit`; imported on first use."""
    from .auditing import audit as act

    return act(loader, **more)
