"""How many cores this process may use."""

import os


def usable_cores() -> int:
    """Cores of this process's affinity; all of the machine where the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
