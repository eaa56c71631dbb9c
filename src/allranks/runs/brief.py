"""The little of a run that a list of runs shows, read from as few of its files as possible (IO).

A directory may have a thousand runs, so most are over: of these result.json and the start of run.json are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from allranks.protocol.codec import omit_empty

from .directory import STATES, RunCondition, RunDirectory
from .documents import ORPHANED, OVER, LeaseEnd, RunProgress, StatusDocument, lease_end_of


class BriefVerdict(NamedTuple):
    """The verdict of a run, without its evidence. `cause` is None where the run has not failed."""

    cause: str | None = None
    message: str = ""
    confidence: float | None = None


@omit_empty("total_steps", "goodput", "roles")
class RunBrief(NamedTuple):
    """A run in a list.

    `nodes` counts those with ranks, `ranks` what is known of them. `step` is that of the slowest rank, of a run that is
    over the furthest of its last attempt. `rate` is in steps a second, `goodput` from 0 to 1. `started` is in unix
    seconds, `seconds` how long a run took that is over. `roles` counts the nodes of each.
    """

    run: str
    directory: str
    state: str
    nodes: int = 0
    ranks: int | None = None
    step: int | None = None
    total_steps: int | None = None
    rate: float | None = None
    goodput: float | None = None
    started: float = 0.0
    seconds: float | None = None
    exit: int | None = None
    verdict: BriefVerdict | None = None
    roles: Mapping[str, int] = {}


def is_over(run: RunDirectory) -> bool:
    """Tell whether a run has a result, from whether the file is there."""
    return (run.path / "result.json").is_file() or run.has_ended


def read_brief(run: RunDirectory) -> RunBrief:
    """Read what a list shows of a run."""
    beginning = run.read_run()
    roles = Counter(node.role for node in beginning.nodes if node.role)
    brief = RunBrief(
        run.name,
        str(run.path),
        "",
        len(beginning.gang),
        started=beginning.started or 0.0,
        roles=roles,
    )
    end = run.read_result()
    if end is None:
        condition = run.condition()
        end = condition.result
        if end is None:
            return _of_status(brief, condition.state, condition.status)
    verdict = end.verdict
    return brief._replace(
        state=STATES.get(end.exit, "failed"),
        step=end.attempts[-1].step if end.attempts else None,
        goodput=end.goodput,
        seconds=end.timing.total,
        exit=end.exit,
        verdict=None if verdict is None else BriefVerdict(verdict.cause, verdict.finding.message, verdict.confidence),
    )


def _of_status(brief: RunBrief, state: str, status: StatusDocument) -> RunBrief:
    """Add to a run without a result: its state may be that of a controller that has ended."""
    progress = RunProgress.of(status.nodes)
    return brief._replace(
        state=state,
        ranks=status.world_size,
        step=progress.step,
        total_steps=progress.total,
        rate=progress.rate if state not in (*OVER, ORPHANED) else None,
        goodput=status.goodput,
    )


def lease_end(run: RunDirectory, condition: RunCondition, now: float) -> LeaseEnd | None:
    """Tell when a run without a controller was ended by its lease; None where it has one, or its ranks may go on.

    Nothing of a run in pods or on cloud machines is known here.
    """
    if condition.state != ORPHANED or not condition.status.t:
        return None
    document = run.read_run()
    if not run.is_on_hosts(document):
        return None
    ended = lease_end_of(document, condition.status)
    return ended if now > ended.ranks_t else None
