"""The little of a run that a list of runs shows, read from as few of its files as possible (IO).

A directory may have a thousand runs, so most are over: of these result.json and the start of run.json are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from allranks.protocol.codec import decode_parts, encode, omit_empty
from allranks.settings.runspec import Limits

from .directory import STATES, RunCondition, RunDirectory
from .documents import ORPHANED, OVER, RunDocument, RunProgress


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


class _RunNode(NamedTuple):
    """A node of run.json: without a rank among the nodes it is a spare."""

    node_rank: int | None = None
    role: str = ""


class _Beginning(NamedTuple):
    """The part of run.json that is read."""

    started: float = 0.0
    nodes: tuple[_RunNode, ...] = ()

    @property
    def gang_size(self) -> int:
        """Count the nodes with ranks; all of them where none says so."""
        ranked = [place for place in self.nodes if place.node_rank is not None]
        return len(ranked or self.nodes)

    @property
    def roles(self) -> dict[str, int]:
        """Count the nodes of each role; a plain run has none."""
        return dict(Counter(node.role for node in self.nodes if node.role))


class _Attempt(NamedTuple):
    step: int | None = None


class _Time(NamedTuple):
    total: float | None = None


class _End(NamedTuple):
    """The part of result.json that is read."""

    exit: int | None = None
    verdict: BriefVerdict | None = None
    attempts: tuple[_Attempt, ...] = ()
    timing: _Time = _Time()
    goodput: float | None = None


def is_over(run: RunDirectory) -> bool:
    """Tell whether a run has a result, from whether the file is there."""
    return (run.path / "result.json").is_file() or run.has_ended


def read_brief(run: RunDirectory) -> RunBrief:
    """Read what a list shows of a run."""
    beginning = run.read_part("run.json", _Beginning) or _Beginning()
    end = run.read_part("result.json", _End)
    if end is None or end.exit is None:  # there is none, or it is damaged and the events have the exit code
        result = run.read_result()
        if result is None:
            return _of_status(run, beginning)
        end = decode_parts(_End, encode(result))
    return RunBrief(
        run.name,
        str(run.path),
        STATES.get(end.exit or 0, "failed"),
        beginning.gang_size,
        step=end.attempts[-1].step if end.attempts else None,
        goodput=end.goodput,
        started=beginning.started,
        seconds=end.timing.total,
        exit=end.exit,
        verdict=end.verdict,
        roles=beginning.roles,
    )


def _of_status(run: RunDirectory, beginning: _Beginning) -> RunBrief:
    """Read a run without a result: its state may be that of a controller that has ended."""
    state, status, result = run.condition()
    if result is not None:  # it has ended in this moment
        return read_brief(run)
    progress = RunProgress.of(status.nodes)
    return RunBrief(
        run.name,
        str(run.path),
        state,
        beginning.gang_size,
        ranks=status.world_size,
        step=progress.step,
        total_steps=progress.total,
        rate=progress.rate if state not in (*OVER, ORPHANED) else None,
        goodput=status.goodput,
        started=beginning.started,
        roles=beginning.roles,
    )


# -- a run without a controller ---------------------------------------------------------------------


def saved_limit(run: RunDocument, name: str) -> float:
    """Return a time limit that a run was started with, in seconds; the default where run.json does not say."""
    seconds = run.spec.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        seconds = getattr(Limits(), name)
    return float(seconds)


class LeaseEnd(NamedTuple):
    """When the controller of a run ended, and by when the lease had ended its ranks (unix seconds)."""

    controller_t: float
    ranks_t: float


def lease_end(run: RunDirectory, condition: RunCondition, now: float) -> LeaseEnd | None:
    """Tell when a run without a controller was ended by its lease; None where it has one, or its ranks may go on.

    A controller writes status.json once a beat, and nothing of a run in pods or on cloud machines is known here.
    """
    if condition.state != ORPHANED or not condition.status.t:
        return None
    document = run.read_run()
    if document.engine or run.job_in(document) is not None:
        return None
    from allranks.diagnose.incident import beat_of  # imported late: few runs have lost their controller

    lease = saved_limit(document, "lease")
    ended = LeaseEnd(condition.status.t, condition.status.t + beat_of(lease) + lease + saved_limit(document, "grace"))
    return ended if now > ended.ranks_t else None
