"""allranks profile: a trace of ranks that go on, by torch's profiler in the rank, and what `overlap` reads from it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.errors import NodeError, UsageError
from allranks.exitcodes import NODE_FAILED, code_if
from allranks.gang.tasks import run_loop
from allranks.overlap.measure import measure
from allranks.overlap.statement import OverlapDocument, document
from allranks.protocol.codec import document_line, omit_empty
from allranks.runs.questions import TRACE_SECONDS, ProfileAnswer, ProfiledRank, ProfileQuestion, ask, controller_here
from allranks.runs.regular import size_of
from allranks.text import format_ranks, format_size, format_time

from . import overlap
from .chosen_run import find_run

FETCH_SECONDS = 60.0  # until the next bytes of a trace are here
TOP = 10  # kinds of collectives: as `overlap` has it


@omit_empty("errors")
class ProfileReport(NamedTuple):
    """What `profile --json` prints: each rank with its trace, and what `overlap --json` says of these traces.

    `errors` says by rank why its trace is missing."""

    run: str
    ranks: Sequence[ProfiledRank]
    overlap: OverlapDocument
    errors: Mapping[str, str] = {}


def command(
    run: str | None,
    rank: Sequence[int],
    role: Sequence[str],
    steps: int,
    limit: float,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Profile ranks of a run that goes on. Return 4 where one of them gave no trace."""
    directory = find_run(run, runs_dir)
    controller = controller_here(directory, "profile")
    question = ProfileQuestion(tuple(rank), tuple(role), steps, limit)
    uid = directory.read_run().uid
    answer = run_loop(lambda: ask(uid, controller, question, ProfileAnswer, limit + 2 * TRACE_SECONDS))
    missing = sorted(set(rank) - {one.rank for one in answer.ranks})
    if missing or not answer.ranks:
        wanted = format_ranks(missing) if missing else "any rank"
        raise UsageError(f"{directory.name} does not run {wanted} now\nhint: allranks status {directory.name}")
    ranks = [_fetched(one) for one in answer.ranks]
    traced = [one for one in ranks if not one.error]
    errors = {_name(one): one.error for one in ranks if one.error}
    if not traced:
        raise NodeError("; ".join(f"{name} was not profiled: {why}" for name, why in errors.items()))
    traces, notes = overlap.read_traces([Path(one.trace) for one in traced])
    report = ProfileReport(directory.name, ranks, document(measure(traces, are_cut=True), TOP, notes), errors)
    if json_:
        print(document_line(report))
    else:
        print("\n".join([*_lines(traced), "", overlap.text(report.overlap)]), end="")
    for name, why in errors.items():
        print(f"{name} was not profiled: {why}", file=sys.stderr)
    return code_if(bool(errors), NODE_FAILED)


def _name(one: ProfiledRank) -> str:
    return f"{format_ranks([one.rank])} on {one.node}" + (f" of {one.role}" if one.role else "")


def _fetched(one: ProfiledRank) -> ProfiledRank:
    """Wait until a trace is here; it is given up where no more of it comes for FETCH_SECONDS."""
    if one.error or not one.trace:
        return one._replace(error=one.error or "it has written no trace")
    have = -1
    deadline = 0.0
    while have < one.size:
        now = size_of(Path(one.trace))
        if now > have:
            have = now
            deadline = time.monotonic() + FETCH_SECONDS
        elif time.monotonic() >= deadline:
            return one._replace(error=f"{format_size(now)} of {format_size(one.size)} of its trace have come")
        else:
            time.sleep(0.05)
    return one


def _lines(ranks: Sequence[ProfiledRank]) -> Iterator[str]:
    for one in ranks:
        steps = "no step was seen"
        if one.first_step is not None and one.last_step is not None:
            steps = f"from step {one.first_step} to {one.last_step}"
        early = f". It ended early: {one.note}" if one.note else ""
        stalled = f"It stood still for {format_time(one.stalled)} while the trace was made"
        yield f"{_name(one)}: {format_time(one.seconds)}, {steps}{early}. {stalled}"
        yield f"  {one.trace} ({format_size(one.size)})"
