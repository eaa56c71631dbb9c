"""allranks init: a commented allranks.toml from what is found here."""

from __future__ import annotations

import os
from pathlib import Path

import click

from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.runs.regular import ANYONE, replacing
from allranks.settings.config_template import commented_config

from .config_files import CONFIG_NAME

HOSTFILES = ("hosts.txt", "hostfile", "node_ip_list.txt", "hosts")


def command(force: bool) -> int:
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
    click.echo(f"wrote {path}" + (f". Set hosts = {hostfile}, as found here" if hostfile else ""))
    return DONE
