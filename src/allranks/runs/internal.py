"""A defect of allranks itself: what is written down of it, and the verdict (IO)."""

from __future__ import annotations

import contextlib
import traceback

from allranks.agent.link import describe_error
from allranks.errors import REPORT_TO
from allranks.findings import Finding, Verdict

from .directory import RunDirectory
from .regular import replacing

CAUSE = "internal-error"
NAME = "internal-error.txt"
TRACE = 64 << 10  # characters of a traceback


def traceback_of(error: BaseException) -> str:
    """All of it, but the beginning of a very long one."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))[-TRACE:]


def save_traceback(run: RunDirectory, error: BaseException) -> None:
    """Into the evidence of a run; on a full disk it is left out."""
    with contextlib.suppress(OSError):
        folder = run.path / "evidence"
        folder.mkdir(mode=0o700, exist_ok=True)
        with replacing(folder / NAME) as file:
            file.write(traceback_of(error).encode("utf-8", "backslashreplace"))


def internal_verdict(error: BaseException, run: str) -> Verdict:
    """No node, rank or link is to blame, so it has no place."""
    message = f"allranks itself failed: {describe_error(error)}. The ranks were ended"
    remedy = f"report it {REPORT_TO}: allranks report {run} --bundle makes a zip without secrets, with evidence/{NAME}"
    return Verdict(Finding(CAUSE, "fail", message, remedy), CAUSE, 1.0)
