"""Shell scripts of the renderers: environment, working directory, command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from allranks.settings.secrets import is_secret_name

from ..launchers.training_command import launcher_words, read_training
from ..ranks import NodePlan
from .request import RenderRequest

# As agent/prelude.py tells them apart; here the status of a file that it sources counts, whatever it comes from.
PRELUDE = """\
# A command of the prelude that fails ends this script, one inside a file or function that it uses does not.
trap 'code=$? line=$LINENO
if [ ${#BASH_SOURCE[@]} = 1 ]
then
  echo "$0, line $line: a command of the prelude ended with code $code" >&2
  exit "$code"
fi' ERR
%s
trap - ERR"""


class Here(str):
    """A file beside the script, wherever that is put: its name."""


def script(
    request: RenderRequest,
    node: NodePlan,
    module: str,
    options: Sequence[str],
    left_out: Sequence[str],
    *,
    program: Sequence[str] | None = None,
    lines: Sequence[str] = (),
) -> str:
    """Write the script of a node that starts a launcher, a module of Python, with `options` behind the user's own.

    `program` stands in the place of the command's, and `lines` before the command.
    """
    spec = request.spec
    wrap = shlex.split(spec.launch.wrap or "")
    launcher = [*wrap, *launcher_words(spec, spec.launch.python, module, options, left_out)]
    if program is None:
        program = read_training(spec).program
    parts = ["#!/bin/bash", f"# {node.node.name}: start this here, and the other nodes' scripts there, in any order"]
    if spec.launch.prelude:
        parts.append(PRELUDE % spec.launch.prelude.rstrip("\n"))
    parts.append("set -e")
    if any(isinstance(word, Here) for word in (*launcher, *program)):
        parts.append('here="$(cd "$(dirname "$0")" && pwd)"')
    parts += [f"cd {shlex.quote(spec.launch.workdir or request.workdir)}", *exports(request), *lines]
    return "\n".join([*parts, f"exec {by_option(launcher)} \\\n  {shown(program)}"]) + "\n"


def exports(request: RenderRequest) -> list[str]:
    """Export the variables of --env and [env], and those that `run` hands on of the caller's environment.

    Secrets and names without a value (--env NAME) are asked of the shell, never written down.
    """
    spec = request.spec
    variables = {**request.forwarded, **spec.launch.env}
    open_ones = {name: value for name, value in variables.items() if not is_secret_name(name)}
    asked = sorted({*spec.launch.forward, *variables} - set(open_ones))
    lines = [f'export {name}="${{{name}:?set {name} in this shell}}"' for name in asked]
    return lines + [f"export {name}={shlex.quote(value)}" for name, value in sorted(open_ones.items())]


def folded(words: Sequence[str]) -> str:
    """Write a command over several lines, a word each."""
    return " \\\n  ".join(shlex.quote(word) for word in words)


def by_option(words: Sequence[str]) -> str:
    """Write a command over several lines, an option with its value each, so that two scripts compare at a glance."""
    lines = [quoted(words[0])]
    for word in words[1:]:
        if word.startswith("-") and not isinstance(word, Here):
            lines.append(quoted(word))
        else:
            lines[-1] += " " + quoted(word)
    return " \\\n  ".join(lines)


def shown(words: Sequence[str]) -> str:
    """Write a command on one line."""
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Quote a word as the shell takes it."""
    if isinstance(word, Here):
        return f'"$here/{word}"'
    return shlex.quote(word)
