"""The settings files: allranks.toml of this project, and the user's own, with a site's signatures (bounded)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from allranks.errors import ConfigError
from allranks.protocol.jsontext import Json

CONFIG_NAME = "allranks.toml"
FILE_LIMIT = 1 << 20  # bytes


class ConfigFile(NamedTuple):
    """A settings file: its keys as written, not yet checked, and its name for messages."""

    values: Mapping[str, Json]
    source: str


def read_config(path: str | None, environ: Mapping[str, str]) -> ConfigFile:
    """Read the TOML file named by --config or ALLRANKS_CONFIG, else allranks.toml here if there is one."""
    wanted = path or environ.get("ALLRANKS_CONFIG")
    file = Path(wanted or CONFIG_NAME)
    if not wanted and not file.is_file():
        return ConfigFile({}, CONFIG_NAME)
    return ConfigFile(_read_toml(file), str(file))


def with_roles(config: ConfigFile, path: str) -> ConfigFile:
    """Take the roles of another TOML file in the place of this one's; raise ConfigError where it has anything else."""
    values = _read_toml(Path(path))
    others = [key for key in values if key != "roles"]
    if others:
        raise ConfigError(f"{path}: {others[0]} is not a role. The file of --roles has tables such as [roles.trainer]")
    if "roles" not in values:
        raise ConfigError(f"{path}: no role is in it. It has tables such as [roles.trainer]")
    return ConfigFile({**config.values, "roles": values["roles"]}, config.source)


def read_user_config(environ: Mapping[str, str]) -> ConfigFile:
    """Read the user's settings for all projects, if there are any: ~/.config/allranks/config.toml."""
    file = _user_directory(environ) / "config.toml"
    if not file.is_file():
        return ConfigFile({}, "")
    return ConfigFile(_read_toml(file), str(file))


def use_signatures(path: str | None, environ: Mapping[str, str]) -> None:
    """Let this process know the signatures of --signatures, else those of ~/.config/allranks/signatures.toml."""
    file = Path(path) if path else _user_directory(environ) / "signatures.toml"
    if path or file.is_file():
        from allranks.diagnose.signatures import site  # imported late: every command reads settings, few diagnose

        site.use(*site.decode(_read_toml(file), str(file)))


def _user_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/nonexistent", ".config")
    return Path(base) / "allranks"


def _read_toml(file: Path) -> Mapping[str, Json]:
    if sys.version_info >= (3, 11):  # here: allranks.pyz has no tomli for Python 3.10
        import tomllib
    else:
        import tomli as tomllib
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise ConfigError(f"{file}: larger than 1 MiB. Is this an allranks.toml?")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
