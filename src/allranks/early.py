"""Ctrl-C from the first moment of a command until its verb begins: a word and exit code 130, never a traceback.

It loads what is built in alone: everything else is loaded after `begin`.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False  # `typing` is 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def begin() -> None:
    """Take SIGINT, unless it is ignored (nohup, a background job)."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


def end() -> None:
    """From here on a verb cleans up behind itself: SIGINT raises KeyboardInterrupt again."""
    if _signal.getsignal(_signal.SIGINT) is _leave:
        take_back()


def over() -> None:
    """From here on the exit code stands and all output is written: a Ctrl-C while the interpreter ends changes nothing.

    Python would end by SIGINT, after the run's directory and standard output had said another code."""
    if _signal.getsignal(_signal.SIGINT) in (_leave, _signal.default_int_handler):
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


def give(handler: "Callable[..., None]") -> bool:
    """Give SIGINT to `handler` where Python handles it: not in another thread, and not where it is ignored (nohup)."""
    if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        return False
    try:
        _signal.signal(_signal.SIGINT, handler)
    except ValueError:  # another thread
        return False
    return True


def take_back() -> None:
    """Let SIGINT raise KeyboardInterrupt again."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


class HeldCtrlC:
    """Ctrl-C held back in a `with` block that must not be half done: KeyboardInterrupt comes at its end."""

    def __enter__(self) -> None:
        self._has_come = False
        self._is_given = give(self._note)

    def __exit__(self, kind: "type[BaseException] | None", *_: "Any") -> None:
        if self._is_given:
            take_back()
        if self._has_come and kind is None:
            raise KeyboardInterrupt

    def _note(self, *_: "Any") -> None:
        self._has_come = True


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
