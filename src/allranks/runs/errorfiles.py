"""Error files of ranks, kept as evidence: the exception that a rank's runner wrote down (IO)."""

from __future__ import annotations

import contextlib

from .directory import RunDirectory, attempt_folder
from .documents import Document


def save_error(run: RunDirectory, attempt: int, rank: int, error: Document | None) -> None:
    """Keep a rank's error file; on a full disk it is left out."""
    if not error:
        return
    folder = _folder(run, attempt)
    with contextlib.suppress(OSError):
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.write_document(f"rank_{rank:03d}.json", error)


def read_error(run: RunDirectory, attempt: int, rank: int) -> Document | None:
    """Read a rank's error file; None where it has none."""
    return _folder(run, attempt).read_document(f"rank_{rank:03d}.json")


def _folder(run: RunDirectory, attempt: int) -> RunDirectory:
    return RunDirectory(run.path / "evidence" / "errors" / attempt_folder(attempt))
