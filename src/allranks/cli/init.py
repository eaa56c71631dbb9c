"""allranks init: a commented allranks.toml from what is found here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allranks.errors import UsageError
from allranks.spec.template import commented_config

from .target import CONFIG_NAME

HOSTFILES = ("hosts.txt", "hostfile", "node_ip_list.txt", "hosts")


def command(
    force: Annotated[bool, typer.Option("--force", help="replace the file that is there")] = False,
    json_: Annotated[bool, typer.Option("--json", help="JSON on stdout")] = False,
) -> None:
    """Write a commented allranks.toml here: every setting with its default.

    Example: allranks init
    """
    path = Path(CONFIG_NAME)
    if path.exists() and not force:
        raise UsageError(f"{path} exists; --force replaces it")
    hostfile = next((name for name in HOSTFILES if Path(name).is_file()), None)
    found = {"hosts": hostfile} if hostfile else {}
    path.write_text(commented_config(found), encoding="utf-8")
    if json_:
        typer.echo(f'{{"schema": 1, "written": "{CONFIG_NAME}"}}')
    else:
        typer.echo(f"wrote {path}" + "".join(f"; {k} = {v} was found" for k, v in found.items()))
