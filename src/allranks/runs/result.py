"""The end of a run as it is written down: verdict.json, result.json, the last event and the last state (IO)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allranks.exitcodes import CTRL_C
from allranks.findings import Finding, Verdict

from .directory import RunDirectory

Document = dict[str, Any]  # a JSON object, as a run directory keeps it


def untold_result(run: RunDirectory, code: int, verdict: Verdict | None, findings: Sequence[Finding] = ()) -> Document:
    """The result of a run whose controller told none: it did not begin, or its engine ended it."""
    return {
        "run": run.name,
        "directory": str(run.path),
        "exit": code,
        "program_exit": {"rank": None, "code": None, "signal": None},
        "verdict": verdict.to_json() if verdict is not None else None,
        "findings": [f.to_json() for f in findings],
        "attempts": [],
        "timing": {"total": round(time.time() - run.started, 3)},
        "left": {},
        "unfetched": {},
        "dropped": {},
        "undecodable": {},
        "outputs": {},
    }


@contextlib.contextmanager
def over_when_interrupted(run: RunDirectory) -> Iterator[None]:
    """Before a run has begun nobody else ends it: after Ctrl-C it is stopped, and not orphaned for ever. A directory
    that holds no run yet goes."""
    try:
        yield
    except KeyboardInterrupt:
        if run.read_document("run.json") is None:
            shutil.rmtree(run.path, ignore_errors=True)
        elif run.read_document("result.json") is None:
            write_result(run, untold_result(run, CTRL_C, None), stopped=True)
        raise


def write_result(
    run: RunDirectory, result: Mapping[str, Any], stopped: bool, status: Mapping[str, Any] | None = None
) -> None:
    """Writes all four; `status` is the last look at nodes and ranks, where the one on disk is older."""
    verdict = result.get("verdict")
    if isinstance(verdict, dict):
        run.write_document("verdict.json", verdict)
    replace_result(run, result)
    run.append_event({"t": time.time(), "event": "run-end", "exit": result["exit"]})
    last = status or run.read_document("status.json") or {"run": run.name, "t": time.time(), "nodes": []}
    if stopped:
        state = "stopped"
    elif result["exit"]:
        state = "failed"
    else:
        state = "done"
    run.write_document("status.json", {**last, "state": state})


def replace_result(run: RunDirectory, result: Mapping[str, Any]) -> None:
    """Write result.json alone: of a test, with what the ranks have measured."""
    run.write_document("result.json", dict(result))
