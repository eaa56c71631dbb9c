"""Ctrl-C, SIGTERM and a lost terminal, while this process follows a run that goes on elsewhere."""

from __future__ import annotations

import signal
from types import FrameType

from allranks import exitcodes
from allranks.agent.processes import USER_SIGNALS
from allranks.errors import Interrupted

WORDS = {signal.SIGINT: "ctrl-c", signal.SIGTERM: "stop", signal.SIGHUP: "leave"}


class SignalWatch:
    """What SIGINT, SIGTERM and SIGHUP do to a command that others depend on. `first`: the one that came first, by name.

    asyncio's handlers go in its place while a loop has some, and leave the system's behind: so `install` puts this one
    in place again."""

    def __init__(self) -> None:
        self.first: str | None = None
        self.install(throws=False)

    def install(self, throws: bool) -> None:
        """Note signals from now on. `throws`: raise KeyboardInterrupt or Interrupted, also for one that has come."""
        self._throws = throws
        for number in WORDS:
            signal.signal(number, self._on_signal)
        if throws and self.first is not None:
            self._on_signal(signal.Signals[self.first], None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self.first = self.first or name
        if not self._throws:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Interrupted(f"ended by {name}", exitcodes.TERMINATED)


class Signals:
    """Keep what came to a follower: the last word that ends or leaves the run, and each signal meant for the ranks.

    A lost terminal is "leave": the run goes on.
    """

    def __init__(self, asks_at_ctrl_z: bool = False) -> None:
        self._seen: str | None = None
        self._for_the_ranks: list[str] = []
        self._words = {**WORDS, signal.SIGTSTP: "ctrl-z"} if asks_at_ctrl_z else WORDS
        self._names = {number: name for name, number in USER_SIGNALS.items()}
        self._before = {number: signal.signal(number, self._note) for number in (*self._words, *self._names)}

    def _note(self, number: int, frame: FrameType | None) -> None:
        arrived = signal.Signals(number)
        if arrived in self._names:
            self._for_the_ranks.append(self._names[arrived])
        else:
            self._seen = self._words[arrived]

    def take_for_the_ranks(self) -> list[str]:
        """Return USR1 or USR2 once for each arrival since the last call."""
        names = self._for_the_ranks
        self._for_the_ranks = []
        return names

    def take(self) -> str | None:
        """Return ctrl-c, ctrl-z, stop or leave, if it has come since the last call."""
        request = self._seen
        self._seen = None
        return request

    def restore(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
