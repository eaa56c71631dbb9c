"""A RunSpec as the words of a command line that gives it again (pure). What is at its default is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from .fields import option_name
from .runspec import RunSpec
from .secrets import is_secret_name

# Settings of other verbs than `run`, and what is no setting: `command` comes last, after --.
_NOT_OF_RUN = frozenset({
    "command", "env", "forward", "level", "only", "suite", "backend", "size", "timeout", "min_bandwidth", "max_latency",
    "pg_timeout_forced",
})  # fmt: skip


def as_options(spec: RunSpec, without: Collection[str] = ()) -> list[str]:
    """Options of `run` and, after `--`, the command. Values of secret variables are never in it: their names are
    forwarded, so the environment of that command line must have them (`secret_values`)."""
    default = RunSpec()
    words: list[str] = []
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name in _NOT_OF_RUN or field.name in without or value == getattr(default, field.name):
            continue
        words += _option(field.name, value)
    open_ones = {name: value for name, value in spec.env.items() if not is_secret_name(name)}
    for name, value in sorted(open_ones.items()):
        words.append(f"--env={name}={value}")
    for name in sorted({*spec.forward, *secret_values(spec)}):
        words.append(f"--env={name}")
    return [*words, *(["--", *spec.command] if spec.command else [])]


def secret_values(spec: RunSpec) -> dict[str, str]:
    """What of `env` must not stand in any command line."""
    return {name: value for name, value in spec.env.items() if is_secret_name(name)}


def _option(field: str, value: object) -> list[str]:
    name = option_name(field)
    if isinstance(value, bool):
        return [name]  # a switch that differs from its default; for two of them the option's name says no-
    if isinstance(value, tuple):
        return [f"{name}={item}" for item in value]
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"]
