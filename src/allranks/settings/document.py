"""RunSpec to the `spec` of run.json and back. Secrets are hidden on the way out and stay hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cluster.names import show
from ..errors import ConfigError
from ..protocol.jsontext import Json
from .parsers import WORD, Parser, choice, read_flag, several
from .runspec import RunSpec
from .secrets import redact_argv, redact_env, redact_text
from .table import SETTINGS
from .variables import check_name

SCHEMA = 1
# Fields that the command line does not set as they are stored.
_STORED: dict[str, Parser] = {
    "test": choice("quick", "full"),
    "forward": several(WORD, "a list of names"),
}


def to_document(spec: RunSpec) -> dict[str, Any]:
    """Return all settings by name, as JSON has them, with `"schema": 1`."""
    document: dict[str, Any] = {"schema": SCHEMA}
    for name, value in spec.values():
        document[name] = list(value) if isinstance(value, tuple) else value
    document["env"] = redact_env(spec.launch.env)
    document["command"] = redact_argv(spec.launch.command)
    for row in SETTINGS.values():
        if row.may_hold_secrets and document[row.name] is not None:
            document[row.name] = redact_text(document[row.name])
    return document


def from_document(document: Mapping[str, Any], source: str = "run.json: spec") -> RunSpec:
    """The spec of a document; fields it lacks have their defaults, fields of a newer allranks are ignored."""
    schema = document.get("schema")
    if schema != SCHEMA:
        raise ConfigError(f"{source}: schema {show(schema)}. This allranks reads schema {SCHEMA}")
    values: dict[str, Json] = {}
    for name, default in RunSpec().values():
        if name in document and document[name] != default:
            values[name] = _value(name, document[name], source)
    return RunSpec.of(**values)


def _value(name: str, value: Json, source: str) -> Json:
    where = f"{source}: {name}"
    if name == "env":
        return _env(value, where)
    try:
        value = _read_stored(name, value)
        if name == "forward" and isinstance(value, tuple):
            return tuple(check_name(word, where, ConfigError) for word in value)
        return value
    except ValueError as error:
        raise ConfigError(f"{where}: found {show(value)}, set {error}") from None


def _read_stored(name: str, value: Json) -> Json:
    parser = _STORED.get(name)
    if parser is not None:
        return parser.read(value)
    return SETTINGS[name].parser.read(value) if name in SETTINGS else read_flag(value)


def _env(value: Json, where: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name, text in value.items() if isinstance(value, Mapping) else [("", None)]:
        if not isinstance(text, str) or "\0" in text:
            raise ConfigError(f"{where}: found {show(value)}, set an object of names and texts")
        variables[check_name(str(name), where, ConfigError)] = text
    return variables
