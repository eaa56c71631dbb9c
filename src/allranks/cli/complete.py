"""What a shell offers for a word: runs, ranks, nodes, hosts, checks, choices, files.

Click asks when Tab is pressed. Nothing here starts a process or reaches a node, and an error offers nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem, shell_complete

from allranks.errors import AllranksError
from allranks.protocol.jsontext import Json
from allranks.settings.layers import NOTIFY, cluster_names
from allranks.settings.parsers import Parser

from .chosen_run import find_run, list_runs, runs_directory
from .config_files import read_user_config

MOST = 200
HELP_VERB = "help"
SSH_CONFIG_LIMIT = 1 << 20  # bytes
_HOST_LINE = re.compile(r"[ \t]*host[ \t=]+(?P<names>[^\n#]+)", re.IGNORECASE)


__all__ = ["Verbs", "offers", "shell_complete"]


class Verbs(click.Group):
    """All verbs, as completion walks through them; the module of the one that is typed is imported."""

    def __init__(self, verbs: Mapping[str, str], load: Callable[[str], click.Command]) -> None:
        super().__init__("allranks")
        self._verbs = verbs
        self._load = load

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command of a verb; verbs follow `help`, too."""
        if cmd_name == HELP_VERB:
            return self
        if cmd_name not in self._verbs:
            return None
        return self._load(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs with their help, without loading one."""
        offered = {**self._verbs, HELP_VERB: "options of a verb"}
        return [CompletionItem(name, help=text) for name, text in offered.items() if name.startswith(incomplete)]


def offers(kind: str, parser: Parser, incomplete: str, typed: Mapping[str, Json]) -> list[CompletionItem]:
    """List the words that a shell may offer, the newest run first."""
    items = [CompletionItem(word) for word in _words(kind, typed) or parser.choices if word.startswith(incomplete)]
    if parser.is_path and not items:
        return [CompletionItem(incomplete, type="dir" if parser.metavar == "DIR" else "file")]
    return items[:MOST]


def _words(kind: str, typed: Mapping[str, Json]) -> list[str]:
    try:
        if kind == "runs":
            runs = list_runs(runs_directory(_text(typed.get("option_runs_dir"))))
            return [run.name for run in reversed(runs)]
        if kind in ("ranks", "nodes"):
            nodes = _nodes(typed)
            if kind == "nodes":
                return list(nodes)
            return [str(rank) for ranks in nodes.values() for rank in ranks]
        if kind == "hosts":
            return ssh_hosts(Path.home() / ".ssh" / "config")
        if kind == "clusters":
            return cluster_names(read_user_config(os.environ).values)
        if kind == "notices":
            table = read_user_config(os.environ).values.get(NOTIFY)
            if not isinstance(table, dict):
                return []
            return [str(name) for name in table]
        if kind == "checks":
            from allranks.gang.plugins import all_checks  # imported late: it reads what is installed

            return list(all_checks())
        if kind == "pages":
            from allranks.diagnose.causes import CAUSES  # imported late: a table for one command
            from allranks.gang.plugins import all_checks  # imported late: it reads what is installed

            return [*CAUSES, *all_checks()]
    except (AllranksError, OSError, ValueError):
        return []
    return []


def _nodes(typed: Mapping[str, Json]) -> dict[str, list[int]]:
    """Return the ranks of each node, of the run that was named, else of the newest."""
    run = find_run(_text(typed.get("argument_run")), _text(typed.get("option_runs_dir")))
    return {node.name: [rank.rank for rank in node.ranks] for node in run.read_status().nodes}


def _text(value: Json) -> str | None:
    if not isinstance(value, str):
        return None
    return value


def ssh_hosts(config: Path) -> list[str]:
    """Hosts that an ssh configuration names, without patterns."""
    with config.open("rb") as file:
        text = file.read(SSH_CONFIG_LIMIT).decode("utf-8", "replace")
    names: list[str] = []
    for line in text.splitlines():
        match = _HOST_LINE.match(line)
        if match is not None:
            names += [name for name in match["names"].split() if not set("*?!") & set(name)]
    return list(dict.fromkeys(names))
