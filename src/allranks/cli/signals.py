"""Ctrl-C, SIGTERM and a lost terminal, while this process follows a run that goes on elsewhere."""

from __future__ import annotations

import signal
from types import FrameType

WORDS = {signal.SIGINT: "ctrl-c", signal.SIGTERM: "stop", signal.SIGHUP: "leave"}


class Signals:
    """Keeps the last one that came, until `take`; a lost terminal is "leave": the run is let alone."""

    def __init__(self) -> None:
        self._seen: str | None = None
        self._before = {number: signal.signal(number, self._note) for number in WORDS}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen = WORDS[signal.Signals(number)]

    def take(self) -> str | None:
        """ctrl-c, stop or leave, if it has come since the last call."""
        seen, self._seen = self._seen, None
        return seen

    def restore(self) -> None:
        """As it was before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
