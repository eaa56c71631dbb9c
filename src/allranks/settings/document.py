"""RunSpec to the `spec` of run.json and back. Secrets are hidden on the way out and stay hidden."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..cluster.names import show
from ..errors import ConfigError
from .fields import READERS, flag
from .runspec import RunSpec
from .secrets import redact_argv, redact_env, redact_text
from .variables import check_name

SCHEMA = 1
_REDACTED_TEXTS = ("prelude", "wrap")


def to_document(spec: RunSpec) -> dict[str, Any]:
    """A JSON-able dict of all fields, with `"schema": 1`."""
    document: dict[str, Any] = {"schema": SCHEMA}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        document[field.name] = list(value) if isinstance(value, tuple) else value
    document["env"] = redact_env(spec.env)
    document["command"] = redact_argv(spec.command)
    for name in _REDACTED_TEXTS:
        if document[name] is not None:
            document[name] = redact_text(document[name])
    return document


def from_document(document: Mapping[str, Any], source: str = "run.json: spec") -> RunSpec:
    """The spec of a document; fields it lacks have their defaults, fields of a newer allranks are ignored."""
    schema = document.get("schema")
    if schema != SCHEMA:
        raise ConfigError(f"{source}: schema {show(schema)}; this allranks reads schema {SCHEMA}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(RunSpec):
        if field.name in document and document[field.name] != _default(field):
            values[field.name] = _value(field.name, document[field.name], source)
    return RunSpec(**values)


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _value(name: str, value: object, source: str) -> object:
    where = f"{source}: {name}"
    if name == "env":
        return _env(value, where)
    try:
        if name == "forward":
            words = READERS["command"](value)
            return tuple(check_name(w, where, ConfigError) for w in words) if isinstance(words, tuple) else ()
        return READERS.get(name, flag)(value)
    except ValueError as error:
        raise ConfigError(f"{where}: found {show(value)}, set {error}") from None


def _env(value: object, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in value.items() if isinstance(value, Mapping) else [("", None)]:
        if not isinstance(text, str) or "\0" in text:
            raise ConfigError(f"{where}: found {show(value)}, set an object of names and texts")
        found[check_name(str(name), where, ConfigError)] = text
    return found
