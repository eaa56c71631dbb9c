"""allranks: start, prove, watch, stop and explain multi-node training.

General layout: spec (what was asked) → cluster (hosts) → plan (ranks, environments, addresses) → gang
(the state machine and its controller) → node (what ships: supervisor, agent, ranks) → runs (the run
directory) → diagnose (verdict) → report (text, live table). cli holds one thin file a verb; program is what a
training program may call, calls what a program may call in the place of the verbs.
Nothing is imported here on purpose: `import allranks` costs nothing. The public names come when they are used:

    init_process_group, report_step     in a training script (allranks.program)
    launch, check                       where the verbs `run` and `check` are wanted as functions (allranks.calls)
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` is 5 ms
if TYPE_CHECKING:
    from typing import Any

    from .calls import check, launch
    from .program import init_process_group, report_step

__version__ = "0.1.0"
__all__ = ["check", "init_process_group", "launch", "report_step"]
_PLACES = {"check": "calls", "launch": "calls", "init_process_group": "program", "report_step": "program"}


def __getattr__(name: str) -> Any:
    """The public names, on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'allranks' has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module(f"allranks.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
