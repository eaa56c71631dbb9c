"""Which directories have runs, and which runs are on another machine: short lists in the user's state directory (IO).

The one opener of runs adds the directory of a run when it begins, and who starts a controller elsewhere adds that run.
A line is a JSON object. The lists are a convenience: what cannot be read or written there is passed over, and no run
fails because of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from allranks.protocol.codec import SCHEMA, decode_parts, encode
from allranks.protocol.jsontext import JsonObject

from .regular import append, open_regular, read_objects, replacing

NAME = "runs-directories.jsonl"
ELSEWHERE = "runs-elsewhere.jsonl"
MOST = 64  # lines that are kept; a file may have twice as many before it is written again
SIZE_LIMIT = 1 << 20  # bytes of the file that are read


def state_directory(environ: Mapping[str, str]) -> Path | None:
    """Return where allranks keeps what it has seen: XDG_STATE_HOME/allranks, else ~/.local/state/allranks.

    None where neither XDG_STATE_HOME nor HOME is set.
    """
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "allranks"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".local" / "state" / "allranks"
    return None


def _read(name: str, environ: Mapping[str, str]) -> list[JsonObject]:
    folder = state_directory(environ)
    if folder is None:
        return []
    with contextlib.suppress(OSError), open_regular(folder / name) as stream:
        return list(read_objects(stream.read(SIZE_LIMIT)))
    return []


def _add(name: str, environ: Mapping[str, str], record: JsonObject) -> None:
    """Add a line, and of a long list keep the newest; nothing where the list cannot be written."""
    folder = state_directory(environ)
    if folder is None:
        return
    lines = _read(name, environ)
    with contextlib.suppress(OSError, ValueError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(lines) < 2 * MOST:
            append(folder / name, _line({"schema": SCHEMA, **record}))
            return
        with replacing(folder / name) as stream:
            stream.writelines([*map(_line, lines[1 - MOST :]), _line({"schema": SCHEMA, **record})])


def _line(record: JsonObject) -> bytes:
    return json.dumps(record).encode() + b"\n"


def note_runs_directory(directory: Path, environ: Mapping[str, str]) -> None:
    """Add a directory to the list, unless it is there."""
    path = str(directory.absolute())
    if path not in _directories(environ):
        _add(NAME, environ, {"directory": path})


def known_runs_directories(environ: Mapping[str, str]) -> list[Path]:
    """List the directories that have had runs and are there, the newest last."""
    return [Path(path) for path in dict.fromkeys(_directories(environ)) if os.path.isdir(path)][-MOST:]


def _directories(environ: Mapping[str, str]) -> list[str]:
    named = [line.get("directory") for line in _read(NAME, environ)]
    return [path for path in named if isinstance(path, str) and os.path.isabs(path) and "\0" not in path]


class RunElsewhere(NamedTuple):
    """A run that was started from here, and is on another machine: `host` as --on takes it, `directory` there.

    `started`: unix seconds. `runs_dir` is the runs directory here that would have it. `hosts`: its host list, where
    ssh of this machine is lent to its controllers.
    """

    run: str = ""
    started: float = 0.0
    host: str = ""
    directory: str = ""
    runs_dir: str = ""
    ssh_options: tuple[str, ...] = ()
    hosts: str = ""


def note_run_elsewhere(run: RunElsewhere, environ: Mapping[str, str]) -> None:
    """Add a run to the list."""
    _add(ELSEWHERE, environ, encode(run))


def runs_elsewhere(environ: Mapping[str, str]) -> list[RunElsewhere]:
    """List the runs on other machines that were started from here, the newest last."""
    runs = [decode_parts(RunElsewhere, line) for line in _read(ELSEWHERE, environ)]
    return [run for run in runs if run.run and run.host and os.path.isabs(run.directory)]
