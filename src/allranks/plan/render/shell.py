"""Shell scripts of the renderers: environment, working directory, command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from allranks.spec.secrets import is_secret_name

from .request import Request


def script(request: Request, title: str, argv: Sequence[str], lines: Sequence[str] = ()) -> str:
    """A script for one node: `lines` come before the command."""
    spec = request.spec
    wrapped = [*shlex.split(spec.wrap or ""), *argv]
    parts = ["#!/bin/bash", f"# {title}", "set -e"]
    parts += [spec.prelude.rstrip("\n")] if spec.prelude else []
    parts += [f"cd {shlex.quote(spec.workdir or request.workdir)}", *exports(request), *lines]
    return "\n".join([*parts, "exec " + folded(wrapped)]) + "\n"


def exports(request: Request) -> list[str]:
    """The variables of --env and [env]. Secrets and forwarded names are asked of the shell, never written down."""
    spec = request.spec
    open_ones = {k: v for k, v in spec.env.items() if not is_secret_name(k)}
    asked = sorted({*spec.forward, *spec.env} - set(open_ones))
    lines = [f': "${{{name}:?set {name} in this shell}}"; export {name}' for name in asked]
    return lines + [f"export {name}={shlex.quote(value)}" for name, value in sorted(open_ones.items())]


def folded(words: Sequence[str]) -> str:
    """A command over several lines: an option each, so that two scripts compare at a glance."""
    return " \\\n  ".join(shlex.quote(word) for word in words)
