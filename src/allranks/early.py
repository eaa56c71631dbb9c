"""Ctrl-C from the first moment of a command until its verb begins: a word and exit code 130, never a traceback.

It loads what is built in alone: everything else is loaded after `begin`.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False  # `typing` is 5 ms
if TYPE_CHECKING:
    from typing import Any


def begin() -> None:
    """Take SIGINT, unless it is ignored (nohup, a background job)."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


def end() -> None:
    """From here on a verb cleans up behind itself: SIGINT raises KeyboardInterrupt again."""
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def over() -> None:
    """From here on the exit code stands and all output is written: a Ctrl-C while the interpreter ends changes nothing.

    Python would end by SIGINT, after the run's directory and standard output had said another code."""
    if _signal.getsignal(_signal.SIGINT) in (_leave, _signal.default_int_handler):
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


def _leave(*_: "Any") -> None:
    """Nothing is begun, so the process may end where it stands.

    An exception would be lost in some places (callbacks of the import system), and be a traceback in others."""
    words = sys.argv[1:]
    try:
        if "--json" in (words[: words.index("--")] if "--" in words else words):
            os.write(1, b'{"schema": 1, "error": "interrupted", "exit": 130}\n')
        os.write(2, b"allranks: interrupted\n")
    finally:
        os._exit(130)
