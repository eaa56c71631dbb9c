"""Options that several verbs share, and the panels of the help they stand in."""

from __future__ import annotations

from typing import Annotated, Any

import typer

TARGET, HOW, NETWORK, CHECKS, TIMES, PLACES, BEHAVIOUR = (
    "Target", "How", "Network", "Checks", "Times (500ms, 8s, 10m, 2h)", "Places", "Behaviour",
)  # fmt: skip
Text = str | None


def option(names: str, panel: str, text: str, metavar: str | None = None) -> Any:
    """An option in one of the help's panels."""
    return typer.Option(*names.split(), rich_help_panel=panel, help=text, metavar=metavar)


def split_words(values: list[str] | None) -> list[str]:
    """The words of an option that takes several, with commas or by repetition."""
    return [word for value in values or () for word in value.split(",") if word]


RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="run directory or name (default: the newest)")]
RunsDir = Annotated[str | None, typer.Option("--runs-dir", help="where run directories are (runs)")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout")]
