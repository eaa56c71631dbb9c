"""Which directories have runs, and which runs are on another machine: short lists in the user's state directory (IO).

The one opener of runs adds the directory of a run when it begins, and who starts a controller elsewhere adds that run.
A line is a JSON object. The lists are a convenience: what cannot be read or written there is passed over, and no run
fails because of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.protocol.codec import SCHEMA, decode_parts, encode

from .regular import append, open_regular, read_objects, replacing

NAME = "runs-directories.jsonl"
ELSEWHERE = "runs-elsewhere.jsonl"
MOST = 64  # directories that are kept; the file may have twice as many lines before it is written again
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


def note_runs_directory(directory: Path, environ: Mapping[str, str]) -> None:
    """Add a directory to the list, unless it is there; nothing where the list cannot be written."""
    folder = state_directory(environ)
    if folder is None:
        return
    path = str(directory.absolute())
    with contextlib.suppress(OSError, ValueError):
        file = folder / NAME
        lines = _paths_of(_read(file))
        if path in lines:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(lines) >= 2 * MOST:
            _replace(file, [*_newest(lines), path])
            return
        append(file, _line(path))


def known_runs_directories(environ: Mapping[str, str]) -> list[Path]:
    """List the directories that have had runs, the newest last. Those that have vanished are dropped from the list."""
    folder = state_directory(environ)
    if folder is None:
        return []
    file = folder / NAME
    try:
        lines = _paths_of(_read(file))
    except OSError:
        return []
    paths = _newest(lines)
    if len(paths) < len(lines):
        with contextlib.suppress(OSError):
            _replace(file, paths)
    return [Path(path) for path in paths]


def _newest(paths: Iterable[str]) -> Sequence[str]:
    """Return the newest directories that are there, each once."""
    return [path for path in dict.fromkeys(paths) if os.path.isdir(path)][-MOST:]


def _read(file: Path) -> bytes:
    try:
        with open_regular(file) as stream:
            return stream.read(SIZE_LIMIT)
    except FileNotFoundError:
        return b""


def _paths_of(data: bytes) -> list[str]:
    """Return the absolute paths of the list."""
    named = [line.get("directory") for line in read_objects(data)]
    return [path for path in named if isinstance(path, str) and os.path.isabs(path) and "\0" not in path]


def _replace(file: Path, paths: Iterable[str]) -> None:
    with replacing(file) as stream:
        stream.writelines(_line(path) for path in paths)


def _line(path: str) -> bytes:
    return json.dumps({"schema": SCHEMA, "directory": path}).encode() + b"\n"


class RunElsewhere(NamedTuple):
    """A run that was started from here, and is on another machine: `host` as --on takes it, `directory` there.

    `started`: unix seconds. `runs_dir` is the runs directory here that would have it.
    """

    run: str = ""
    started: float = 0.0
    host: str = ""
    directory: str = ""
    runs_dir: str = ""
    ssh_options: tuple[str, ...] = ()


def note_run_elsewhere(run: RunElsewhere, environ: Mapping[str, str]) -> None:
    """Add a run to the list; nothing where the list cannot be written."""
    folder = state_directory(environ)
    if folder is None:
        return
    with contextlib.suppress(OSError, ValueError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [*runs_elsewhere(environ), run]
        if len(lines) > 2 * MOST:
            with replacing(folder / ELSEWHERE) as stream:
                stream.writelines(map(_line_of_run, lines[-MOST:]))
        else:
            append(folder / ELSEWHERE, _line_of_run(run))


def runs_elsewhere(environ: Mapping[str, str]) -> list[RunElsewhere]:
    """List the runs on other machines that were started from here, the newest last."""
    folder = state_directory(environ)
    if folder is None:
        return []
    try:
        data = _read(folder / ELSEWHERE)
    except OSError:
        return []
    runs = [decode_parts(RunElsewhere, line) for line in read_objects(data)]
    return [run for run in runs if run.run and run.host and os.path.isabs(run.directory)]


def _line_of_run(run: RunElsewhere) -> bytes:
    return json.dumps({"schema": SCHEMA, **encode(run)}).encode() + b"\n"
