"""allranks: start, check, watch, stop and explain multi-node training.

`import allranks` imports nothing else. The public names come when they are used:

    init_process_group, report_step, should_save, checkpoint_dir, world_changed    in a training script (program.py)
    launch, check                                                                  the commands as functions (api.py)
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` is 5 ms
if TYPE_CHECKING:
    from typing import Any

    from .api import check, launch
    from .program import checkpoint_dir, init_process_group, report_step, should_save, world_changed

__version__ = "0.1.0"
__all__ = ["check", "checkpoint_dir", "init_process_group", "launch", "report_step", "should_save", "world_changed"]
_PLACES = {**dict.fromkeys(__all__, "program"), "check": "api", "launch": "api"}


def __getattr__(name: str) -> Any:
    """Return a public name, on its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'allranks' has no attribute {name!r}")
    import importlib  # late: `import allranks` costs nothing

    value = getattr(importlib.import_module(f"allranks.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
