"""RunSpec to the `spec` of run.json and back. Secrets are hidden on the way out and stay hidden.

`with_secrets` is what agents keep in memory for a controller that takes a run over; it is written nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cluster.names import show
from ..errors import ConfigError
from ..protocol.codec import SCHEMA, DecodeError, decode, encode
from ..protocol.jsontext import Json
from .parsers import FLAG, Parser, choice
from .runspec import Role, RunSpec
from .secrets import redact_argv, redact_env, redact_text
from .table import SETTINGS
from .variables import read_names, read_table

# Fields that the command line does not set as they are stored.
_STORED: dict[str, Parser] = {
    "test": choice("quick", "full"),
    "pg_timeout_forced": FLAG,
}


OF_ROLES = ("ray", "ray_start", "role", "roles", "roles_file")  # absent in a plain run


def to_document(spec: RunSpec) -> dict[str, Json]:
    """Return all settings by name, as JSON has them, with `"schema": 1`."""
    document = _hide(with_secrets(spec))
    if spec.launch.roles:
        document["roles"] = [_hide(encode(role)) for role in spec.launch.roles]
    return document


def _hide(document: dict[str, Any]) -> dict[str, Json]:
    texts = {row.name: document.get(row.name) for row in SETTINGS.values() if row.may_hold_secrets}
    hidden = {name: redact_text(text) for name, text in texts.items() if isinstance(text, str)}
    return {**document, "env": redact_env(document["env"]), "command": redact_argv(document["command"]), **hidden}


def with_secrets(spec: RunSpec) -> dict[str, Json]:
    """Return all settings by name as `from_document` reads them, with nothing hidden."""
    document: dict[str, Json] = {"schema": SCHEMA}
    for name, value in spec.values():
        if value or name not in OF_ROLES:
            document[name] = encode(value)
    return document


def from_document(document: Mapping[str, Json], source: str = "run.json: spec") -> RunSpec:
    """Read the spec of a document; what it lacks has its default, what a newer allranks added is left out."""
    schema = document.get("schema")
    if schema != SCHEMA:
        raise ConfigError(f"{source}: schema {show(schema)}. This allranks reads schema {SCHEMA}")
    values: dict[str, Json] = {}
    for name, default in RunSpec().values():
        if name in document and document[name] != default and name != "roles":
            values[name] = _value(name, document[name], source)
    spec = RunSpec.of(**values)
    if "roles" not in document:
        return spec
    try:
        return spec.with_roles(decode(tuple[Role, ...], document["roles"]))
    except DecodeError as error:
        raise ConfigError(f"{source}: roles: {error}") from None


def _value(name: str, value: Json, source: str) -> Json:
    where = f"{source}: {name}"
    if name == "env":
        return read_table(value, where)
    if name == "forward":
        return read_names(value, where)
    try:
        parser = _STORED.get(name) or SETTINGS[name].parser
        return parser.read(value)
    except ValueError as error:
        raise ConfigError(f"{where}: found {show(value)}, set {error}") from None
