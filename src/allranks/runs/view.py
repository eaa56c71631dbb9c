"""What a person or a program sees of a run while it goes on."""

from __future__ import annotations

from allranks.protocol.run_facts import Fact, Stamped

from .documents import ResultDocument, RunOpened, StatusDocument


class View:
    """Shows nothing: for a run that is looked at, and not followed. `report/` has the views that show something."""

    def say(self, label: str, text: str) -> None:
        """Show a line of the start, before there is a run. It may come from another thread."""

    def opening(self, opened: RunOpened) -> None:
        """Begin: what the run is."""

    def event(self, stamped: Stamped[Fact]) -> None:
        """Show a fact, where it is one for this view."""

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Show bytes of a rank, as they came."""

    def status(self, status: StatusDocument, now: float) -> None:
        """Show the states of all ranks, about once a second."""

    def tick(self, now: float) -> None:
        """Let time pass; called several times a second."""

    def pause(self) -> None:
        """Show nothing until `resume`: a question is on the screen."""

    def resume(self) -> None:
        """Show again."""

    def closing(self, result: ResultDocument) -> None:
        """End: how the run ended, and why."""
