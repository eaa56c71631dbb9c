"""Exit codes of the commands: those of `allranks.exitcodes`."""

from allranks.exitcodes import (
    CHECK_FAILED,
    CTRL_C,
    DONE,
    HANG,
    INTERNAL,
    NODE_FAILED,
    PROGRAM_FAILED,
    TERMINATED,
    USAGE,
)

__all__ = [
    "CHECK_FAILED",
    "CTRL_C",
    "DONE",
    "HANG",
    "INTERNAL",
    "NODE_FAILED",
    "PROGRAM_FAILED",
    "TERMINATED",
    "USAGE",
]
