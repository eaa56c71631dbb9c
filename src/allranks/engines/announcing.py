"""A view that passes what it shows on to outlets: metrics for others, and notifications.

The view comes first. An outlet takes no longer than a moment, and an outlet that fails is left out from then on: the
run never depends on one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from allranks.protocol.run_facts import Fact, Stamped
from allranks.runs.documents import Document, ResultDocument, StatusDocument

from .following import FollowerView


class RunFollower(Protocol):
    """Something that goes out of a run while it is followed."""

    def event(self, stamped: Stamped[Fact]) -> None:
        """Take an event that people see."""

    def status(self, status: StatusDocument) -> None:
        """Take the states of all ranks, about once a second."""

    def tick(self) -> None:
        """Let time pass; called several times a second."""

    def closing(self, result: ResultDocument) -> None:
        """Take the end of the run, and end."""


class AnnouncingView:
    """Shows in `view`, and passes on to each outlet. `on_failure` gets the sentence about one that failed."""

    def __init__(self, view: FollowerView, outlets: Sequence[RunFollower], on_failure: Callable[[str], None]) -> None:
        self._view = view
        self._outlets = list(outlets)
        self._on_failure = on_failure

    def say(self, label: str, text: str) -> None:
        """Show a line of the start."""
        self._view.say(label, text)

    def opening(self, info: Document) -> None:
        """Begin: what the run is."""
        self._view.opening(info)

    def event(self, stamped: Stamped[Fact]) -> None:
        """Show an event, and pass it on."""
        self._view.event(stamped)
        self._pass_on(lambda outlet: outlet.event(stamped))

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Show bytes of a rank, as they came."""
        self._view.output(node_name, rank, data, now)

    def status(self, status: StatusDocument, now: float) -> None:
        """Show the states of all ranks, and pass them on."""
        self._view.status(status, now)
        self._pass_on(lambda outlet: outlet.status(status))

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._view.tick(now)
        self._pass_on(lambda outlet: outlet.tick())

    def pause(self) -> None:
        """Show nothing until `resume`."""
        self._view.pause()

    def resume(self) -> None:
        """Show again."""
        self._view.resume()

    def closing(self, result: ResultDocument) -> None:
        """End: how the run ended, and why."""
        self._view.closing(result)
        self._pass_on(lambda outlet: outlet.closing(result))

    def _pass_on(self, act: Callable[[RunFollower], None]) -> None:
        for outlet in list(self._outlets):
            try:
                act(outlet)
            except Exception as error:
                self._outlets.remove(outlet)
                self._on_failure(
                    f"{type(outlet).__name__} has ended ({type(error).__name__}: {error}). The run goes on"
                )
