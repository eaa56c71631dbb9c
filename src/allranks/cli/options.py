"""Options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="run directory or name (default: the newest)")]
RunsDir = Annotated[str | None, typer.Option("--runs-dir", help="where run directories are (runs)")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout")]
