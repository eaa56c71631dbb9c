"""rich-click's look of a command's help: the only place that knows rich-click. `allranks.pyz` goes without it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import click

from allranks.report.terminal import shows_colour
from allranks.settings.setting import OPTIONS


def rich_help(command: click.Command, ctx: click.Context, panels: Mapping[str, Sequence[click.Option]]) -> str:
    """Draw the help as rich-click does; empty where rich-click is missing or no person looks."""
    if not (sys.stdout.isatty() or shows_colour(sys.stdout)) or find_spec("rich_click") is None:
        return ""
    import rich_click  # imported late: it takes 150 ms, and only help needs it

    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    options = [option for panel in panels.values() for option in panel]
    drawn = rich_click.RichCommand(
        name=command.name,
        params=[*arguments, *options],
        help=command.help,
        context_settings=command.context_settings,
        add_help_option=False,  # it is one of the options
        panels=[
            rich_click.RichOptionPanel(name, options=[option.opts[0] for option in options])
            for name, options in panels.items()
            if name != OPTIONS  # rich-click's own panel of that name takes the rest
        ],
    )
    drawn_ctx = rich_click.RichContext(drawn, info_name=ctx.info_name, parent=ctx.parent)
    return drawn.get_help(drawn_ctx)
