"""Commands as functions: `launch` is `allranks run`, `check` is `allranks check`; each returns the JSON document.

A call starts the command in a process of its own: it works in any thread, in a notebook and beside a running event
loop, and it returns what the command prints with --json. Options are the command's, with `_` for `-`, or settings by
their keys in allranks.toml:

    result = allranks.launch(["train.py", "--epochs", "3"], hosts="hosts.txt", nproc=8, retries=2)
    if result["verdict"]:
        print(result["verdict"]["message"])
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from allranks.errors import AllranksError, Interrupted, NodeError, UsageError
from allranks.protocol.codec import DecodeError, read_json
from allranks.settings.secrets import is_secret_name
from allranks.settings.table import SETTINGS, option_name

OURS = ("json", "detach", "dry_run")
LARGEST_DOCUMENT = 1 << 30  # bytes

Document = dict[str, Any]  # JSON, as the command prints it


def launch(command: Sequence[str], **options: object) -> Document:
    """Run a training command on every node of the target, to its end, and return the document of `run --json`.

    The document's `exit` says how the run ended: a program that failed raises nothing. Training output goes to this
    process's standard error. Ctrl-C ends the run in order. Raises UsageError where the options are wrong, else
    AllranksError where the command prints no document. Values of `env` with secret names travel in the environment.

    >>> import allranks                                                         # doctest: +SKIP
    >>> allranks.launch(["train.py"], local=2, nproc=2, env={"SEED": "1"})["exit"]    # doctest: +SKIP
    0
    """
    if callable(command):
        name = getattr(command, "__name__", "…")
        raise UsageError(f"launch({name}): a function has no command. Put it into a script, and give ['train.py']")
    if isinstance(command, str) or not command:
        raise UsageError(f"launch({command!r}): give the command as a list of words, such as ['train.py']")
    return _call("run", options, command)


def check(command: Sequence[str] = (), **options: object) -> Document:
    """Check every node of the target and compare them. Return the document of `check --json`.

    `ok` is False where a check failed, which raises nothing. `command` is what a run would have, so that its script
    and imports are checked too.

    >>> import allranks                                                         # doctest: +SKIP
    >>> [f["message"] for f in allranks.check(hosts="h1,h2")["findings"] if f["status"] == "fail"]  # doctest: +SKIP
    []
    """
    return _call("check", options, command)


def words(verb: str, options: Mapping[str, object], command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and what goes into its environment: the values of secrets, which argv must not hold.

    >>> words("run", {"nproc": 8, "sync": True, "check": False, "env": {"A": "1", "HF_TOKEN": "x"}}, ["train.py"])
    (['run', '--nproc=8', '--sync', '--no-check', '--env=A=1', '--env=HF_TOKEN', '--json', '--', 'train.py'], \
{'HF_TOKEN': 'x'})
    """
    line = [verb]
    secret = {}
    for name, value in options.items():
        option = option_name(name)
        if name in OURS:
            raise UsageError(f"{name}={value!r}: use the command line, allranks {verb} {option}")
        if value is None:
            continue
        if isinstance(value, bool):
            usual = name in SETTINGS and SETTINGS[name].default is True
            line += [option] if value != usual else []
        elif isinstance(value, Mapping):
            for key, text in value.items():
                hidden = is_secret_name(str(key))
                line.append(f"{option}={key}" if hidden else f"{option}={key}={text}")
                if hidden:
                    secret[str(key)] = str(text)
        elif isinstance(value, (list, tuple)):
            for part in value:
                line.append(f"{option}={part}")
        else:
            line.append(f"{option}={value}")
    line.append("--json")
    if command:
        line += ["--", *map(str, command)]
    return line, secret


def _call(verb: str, options: Mapping[str, object], command: Sequence[str]) -> Document:
    """Run the command; return its document, or raise the error that it printed."""
    line, secret = words(verb, options, command)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # ranks inherit no PYTHONPATH of ours
    start = f"import sys\nsys.path[0] = {here!r}\nsys.argv[0] = 'allranks'\nfrom allranks.__main__ import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, *line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, **secret},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:  # Ctrl-C, or an exception of a signal handler: the run must not go on without us
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    return _read(verb, output, process.returncode)


def _read(verb: str, output: bytes, code: int) -> Document:
    try:
        document = read_json(output, LARGEST_DOCUMENT)
    except DecodeError:
        raise NodeError(f"allranks {verb} ended with {code} and no document. Its standard error says why") from None
    if not isinstance(document, dict):
        raise NodeError(f"allranks {verb} gave no document")
    error = document.get("error")
    if error is None:
        return document
    if code == UsageError.exit_code:
        raise UsageError(str(error))
    if code in (130, 143):
        raise Interrupted(str(error), code)
    raise AllranksError(str(error))
