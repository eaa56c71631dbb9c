"""allranks init: a commented allranks.toml from what is found here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click

from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.protocol.codec import document_line
from allranks.runs.regular import ANYONE, replacing
from allranks.settings.config_template import commented_config

from .config_files import CONFIG_NAME

HOSTFILES = ("hosts.txt", "hostfile", "node_ip_list.txt", "hosts")


class InitReport(NamedTuple):
    """What `init --json` prints: the file's name."""

    written: str


def command(force: bool, json_: bool) -> int:
    """Write the file."""
    path = Path(CONFIG_NAME)
    hostfile = next((name for name in HOSTFILES if Path(name).is_file()), "")
    try:
        if not force and os.path.lexists(path):
            raise UsageError(f"{path} exists. --force replaces it")
        with replacing(path, ANYONE) as file:
            file.write(commented_config(hostfile).encode())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}. Start it where you may write") from None
    if json_:
        click.echo(document_line(InitReport(CONFIG_NAME)))
    else:
        click.echo(f"wrote {path}" + (f". Set hosts = {hostfile}, as found here" if hostfile else ""))
    return DONE
