"""allranks status: what every node and rank of a run is doing."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from allranks.engines import engine_of, settle
from allranks.exitcodes import DONE
from allranks.protocol.codec import decode_parts, document_line, omit_empty, spread
from allranks.report.nodetable import MOST_PRINTED, group_line, grouped, heading, styled, widest_label, without_clock
from allranks.report.runtable import NO_CONTROLLER
from allranks.report.terminal import clean, paint_line, redraw_lines, shown_length, shows_colour
from allranks.runs.brief import lease_end
from allranks.runs.directory import RunCondition, RunDirectory
from allranks.runs.documents import (
    GOING_ON,
    ORPHANED,
    OVER,
    LeaseEnd,
    NodeStatus,
    RankStatus,
    RunProgress,
    RunReport,
    at_rest,
    silent_after,
)
from allranks.text import count_of, format_percent

from .chosen_run import find_run


@dataclass(frozen=True)
class RankReport(RankStatus):
    """A rank; `last_output_s` is seconds since its last output."""

    last_output_s: float | None = None


@dataclass(frozen=True)
class JobReport:
    """What Slurm says of the job that has the controller; `why` it waits, soon ends, or why Slurm says nothing."""

    id: str = ""
    state: str = ""
    why: str = ""


@omit_empty()
@dataclass(frozen=True)
class EngineReport:
    """What an engine says of a run: the line of a job, or of pods and machines; `engine_error`: why it says nothing."""

    job: JobReport | None = None
    engine: str = ""
    engine_error: str = ""


class Silence(NamedTuple):
    """Since when a living controller has written nothing (unix seconds); `stopped`: its pid, where it is stopped."""

    t: float
    stopped: int | None = None


@spread("engine")
@omit_empty("lease_end", "silence")
@dataclass(frozen=True)
class StatusReport(RunReport):
    """What `status` prints."""

    engine: EngineReport = EngineReport()
    lease_end: LeaseEnd | None = None
    silence: Silence | None = None


def command(run: str | None, on: str | None, watch: bool, quiet: bool, runs_dir: str | None, json_: bool) -> int:
    """Describe a run, once or every second until it ends."""
    run_dir = find_run(run, runs_dir, on)
    redraws = watch and sys.stdout.isatty()
    rows = 0
    while True:
        report = describe(run_dir, time.time())
        if json_:
            print(document_line(report), flush=True)
        else:
            colour = shows_colour(sys.stdout)
            shown = [report.state] if quiet else lines(report, colour)
            if redraws:
                shown = _fit_window(shown)
            redraw_lines(sys.stdout, rows, shown, colour)
            rows = len(shown) if redraws else 0
        if not watch or report.state in (*OVER, ORPHANED):
            return DONE
        time.sleep(1.0)


def _fit_window(text: Sequence[str]) -> list[str]:
    """Cut lines to the terminal's window, so that the next lines can be drawn over all of them."""
    import shutil  # imported late: it loads the compression libraries, and only --watch on a terminal needs it

    columns, rows = shutil.get_terminal_size()
    most = columns - 1
    fitting = text[: max(1, rows - 1)]
    return [line if shown_length(line) <= most else clean(line, colour=False)[:most] for line in fitting]


def describe(run: RunDirectory, now: float) -> StatusReport:
    """Read run, state, nodes and ranks. `now`: unix seconds."""
    settle(run, now)
    condition = run.condition()
    ended = lease_end(run, condition, now)
    report = condition.report(run, now)
    nodes = report.nodes if ended is None else at_rest(condition.status).nodes
    shown = tuple(replace(node, ranks=tuple(_with_age(rank, now) for rank in node.ranks)) for node in nodes)
    engine = decode_parts(EngineReport, engine_of(run).condition(run, condition.state))
    return StatusReport(
        **vars(replace(report, nodes=shown)), engine=engine, lease_end=ended, silence=silence(run, condition, now)
    )


def silence(run: RunDirectory, condition: RunCondition, now: float) -> Silence | None:
    """Tell since when a controller that is there has written nothing, where it has missed three beats; else None."""
    written = condition.status.t
    if condition.state not in GOING_ON or not written:
        return None
    document = run.read_run()
    if not run.is_on_hosts(document):
        return None
    if now - written <= silent_after(document):
        return None
    from allranks.agent.processes import read_process  # imported late: few controllers stand still

    controller = document.controller
    is_here = controller is not None and controller.host == platform.node()
    process = read_process(controller.pid or 0) if controller is not None and is_here else None
    return Silence(written, process.pid if process is not None and process.is_stopped else None)


def _with_age(rank: RankStatus, now: float) -> RankReport:
    age = None if rank.last_output is None else round(max(0.0, now - rank.last_output), 1)
    return RankReport(**vars(rank), last_output_s=age)


def lines(report: StatusReport, colour: bool = False) -> list[str]:
    """Write for people: a line for the run, one a node, and of a run in progress the ranks' pids."""
    first = f"{report.run}: {_state(report)}"
    if report.world_size:
        first += f", {count_of(report.world_size, 'rank')}"
    if report.master is not None and report.master.address and report.master.port:
        first += f", master {report.master.address}:{report.master.port}"
    if report.goodput is not None:
        first += f", goodput {format_percent(report.goodput)}"
    described = [first, *_whereabouts(report)]
    width = widest_label(report.nodes)
    if report.nodes:
        described.append(heading(width))
    for group in grouped(report.nodes, MOST_PRINTED):
        shown = [without_clock(node) for node in group] if report.state in OVER else group
        described.append(styled(group[0], clean(group_line(shown, time.time(), width), colour=False), colour))
        warnings = [warning for node in group for warning in node.warnings]
        described += [f"  warning: {clean(warning, colour=False)}" for warning in warnings]
        if report.state not in OVER and report.lease_end is None and len(group) == 1:
            pids = ", ".join(f"{rank.rank}:{rank.pid}" for rank in group[0].ranks if rank.pid)
            if pids:
                described.append(f"{'':<{width}}  rank:pid {pids}")
    if report.verdict is not None:
        described.append(f"verdict: {report.verdict.finding.message}")
    return [paint_line(part, colour) for line in described for part in line.split("\n")]


def _state(report: StatusReport) -> str:
    """Name the state of a run; one whose job runs has left the queue, though its controller has not said so yet."""
    job = report.engine.job
    if report.state == "queued" and job is not None and job.state == "RUNNING":
        return "starting"
    return report.state


def _whereabouts(report: StatusReport) -> list[str]:
    job = report.engine.job
    if job is not None:
        line = f"Slurm job {job.id}: {job.state}"
        return [f"{line}, {job.why}" if job.why else line]
    if report.silence is not None:
        from allranks.diagnose.words import utc  # imported late, as below

        since = f"nothing was written since {utc(report.silence.t)}"
        if report.silence.stopped is not None:
            return [f"{since}: its controller is stopped. `kill -CONT {report.silence.stopped}` lets it go on"]
        return [f"{since}: its controller does not move, or cannot write into {report.directory}"]
    if report.state != ORPHANED:
        return []
    if report.engine.engine_error:
        return [f"no process follows it, and its state there is unknown: {report.engine.engine_error}"]
    if report.engine.engine:
        return [f"no process follows it: {report.engine.engine}. `allranks attach` does, `allranks stop` ends it"]
    if report.lease_end is not None:
        return [_lease_end_line(report.lease_end, report.nodes)]
    return [NO_CONTROLLER]


def _lease_end_line(ended: LeaseEnd, nodes: Sequence[NodeStatus]) -> str:
    from allranks.diagnose.words import utc  # imported late: few runs have lost their controller

    line = f"its controller ended at {utc(ended.controller_t)}"
    step = RunProgress.of(nodes).step
    if step is not None:
        line += f" with each rank at step {step} or further"
    line += f", and the lease had ended the ranks by {utc(ended.ranks_t)}"
    return f"{line}. `allranks attach` fetches their last output and says how the run ended"
