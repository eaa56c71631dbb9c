"""rich-click's look of a command's help: the only place that knows rich-click. `allranks.pyz` goes without it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import click


def rich_help(command: click.Command, ctx: click.Context, panels: Mapping[str, Sequence[click.Option]]) -> str:
    """Draw the help as rich-click does; empty where rich-click is missing or no person looks."""
    if not sys.stdout.isatty() or find_spec("rich_click") is None:
        return ""
    import rich_click  # imported late: it takes 150 ms, and only help needs it

    drawn = rich_click.RichCommand(
        name=command.name,
        params=command.params,
        help=command.help,
        context_settings=command.context_settings,
        panels=[
            rich_click.RichOptionPanel(name, options=[o.opts[0] for o in options]) for name, options in panels.items()
        ],
    )
    drawn_ctx = rich_click.RichContext(drawn, info_name=ctx.info_name, parent=ctx.parent)
    return drawn.get_help(drawn_ctx)
