"""The settings as tables: rows by name, by variable, by command, by engine (pure)."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable

from .parsers import FLAG
from .runspec import GROUP_OF, RunSpec
from .setting import LAUNCH, OPTIONS, PREFLIGHT, WHERE, SettingRow

# The panel of a group of RunSpec; a row may name another one.
PANEL_OF = {
    "target": WHERE,
    "launch": LAUNCH,
    "rendezvous": "Network",
    "preflight": PREFLIGHT,
    "tests": "Collective tests",
    "limits": "Limits",
    "places": "Output",
    "recovery": "Fault tolerance",
    "output": "Output",
    "cloud": "Kubernetes",
}

# Engines by the setting that names them, and by what `render` calls them.
RENDERERS = {"k8s": "kubernetes", "sky": "skypilot", "slurm": "slurm"}


def _read_fields() -> dict[str, SettingRow]:
    """Give the row of each field its name, its default and, unless it names one, the panel of its group."""
    rows = {}
    spec = RunSpec()
    for group in dataclasses.fields(spec):
        usual = getattr(spec, group.name)
        for field in dataclasses.fields(usual):
            row: SettingRow | None = field.metadata.get("row")
            if row is not None:  # else it has no name for users
                panel = PANEL_OF[group.name] if row.panel == OPTIONS else row.panel
                default = getattr(usual, field.name)
                rows[field.name] = dataclasses.replace(row, name=field.name, default=default, panel=panel)
    return rows


SETTINGS: dict[str, SettingRow] = _read_fields()
VARIABLES: dict[str, str] = {name: row.name for row in SETTINGS.values() for name in row.variables}
OPTION_ONLY = ("node-rank", "allow-exec", "dry-run", "json", "config")  # refused in allranks.toml
# A target is one of two values, or a flag of its group, which names an engine.
ENGINE_FLAGS = tuple(row.name for row in SETTINGS.values() if GROUP_OF[row.name] == "target" and row.parser is FLAG)
TARGETS = ("local", "hosts", *ENGINE_FLAGS)


def settings_of(command: str) -> tuple[SettingRow, ...]:
    """Return the rows that a command takes; `rendered` is one that only a rendered command has a use for."""
    return tuple(row for row in SETTINGS.values() if command in row.commands.split())


def engine_of(renderer: str) -> str:
    """Return the engine that a renderer writes for; empty where it writes for hosts."""
    return next((engine for engine, name in RENDERERS.items() if name == renderer), "")


def option_name(name: str) -> str:
    """Return the option that sets a field."""
    if name == "command":
        return "the training command"
    row = SETTINGS.get(name)
    return row.option if row is not None else "--" + name.replace("_", "-")


def suggestion(word: str, candidates: Iterable[str], least: float = 0.6) -> str:
    """Return the word that was meant, if one is near; else an empty text. `least`: how near, from 0 to 1."""
    near = difflib.get_close_matches(word, list(candidates), n=1, cutoff=least)
    return next(iter(near), "")
