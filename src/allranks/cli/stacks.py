"""allranks stacks: what every rank of a run does now, as its own thread and the kernel say it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.diagnose.hangs.doing import ActivityKind, Doing, doing, read_sample
from allranks.diagnose.hangs.recorder import RankRecording, read_recording
from allranks.diagnose.hangs.stacks import Frame, main_frames
from allranks.diagnose.words import name_by_node
from allranks.errors import UsageError
from allranks.exitcodes import NODE_FAILED, code_if
from allranks.gang.tasks import run_loop
from allranks.protocol.codec import document_line, omit_empty
from allranks.protocol.samples import StackSample
from allranks.report.terminal import DIM, clean, paint, shows_colour
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import RankStatus
from allranks.runs.questions import NodeStacks, StacksAnswer, StacksQuestion, ask, controller_here
from allranks.runs.regular import size_of
from allranks.text import (
    count_of,
    cut,
    format_elapsed,
    format_ranks,
    group,
    join_names,
    join_words,
    name_with,
    with_reason,
)

from .chosen_run import find_run

SHOWN_FRAMES = 12  # of each entry; --json has all of them
SHOWN_WIDTH = 116  # characters of a frame: names of C++ templates have thousands
FETCH_SECONDS = 10.0  # until what a dump has kept is here


@omit_empty("role", "error")
class SeenRank(NamedTuple):
    """What one rank does. `does` says it in words, `at` is the program's line, `step` null where none was seen.

    `collective` is the first of the rank's that is not done, or with `is_done` the newest. `stack` has the innermost
    call first. `error` says why its stack is missing, or lacks what is below Python.
    """

    rank: int
    node: str
    pid: int | None
    step: int | None
    does: str
    at: str
    collective: str
    is_done: bool
    stack: Sequence[str]
    role: str = ""
    error: str = ""


@omit_empty("role")
class SeenRanks(NamedTuple):
    """Ranks that stand at one place of the program; `stack` is the first one's."""

    ranks: Sequence[int]
    does: str
    at: str
    stack: Sequence[str]
    role: str = ""


@omit_empty("errors", "evidence")
class StacksReport(NamedTuple):
    """What `stacks --json` prints: ranks that do the same as one of `groups`, the odd ones first, and each rank.

    `seconds`: how long the look took. `errors` are of nodes that gave no answer. `evidence` is where a dump lies.
    """

    run: str
    t: float
    attempt: int
    seconds: float
    groups: Sequence[SeenRanks]
    ranks: Sequence[SeenRank]
    errors: Mapping[str, str] = {}
    evidence: str = ""


def command(
    run: str | None,
    rank: Sequence[int],
    role: Sequence[str],
    native: bool,
    dump: bool,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Look at the ranks of a run that goes on. Return 4 where a node gave no answer."""
    directory = find_run(run, runs_dir)
    document = directory.read_run()
    controller = controller_here(directory, "stacks")
    evidence = directory.path / "evidence"
    before = {path: size_of(path) for path in evidence.glob("stacks/*")} if dump else {}
    began = time.monotonic()
    question = StacksQuestion(tuple(rank), tuple(role), native, dump)
    answer = run_loop(lambda: ask(document.uid, controller, question, StacksAnswer))
    report = report_of(directory.name, answer, native)._replace(seconds=round(time.monotonic() - began, 3))
    if not report.ranks and not report.errors:
        name = directory.name
        wanted = f"{format_ranks(rank)} of {name} does not run" if rank else f"no rank of {name} runs"
        raise UsageError(f"{wanted}: the run is {answer.status.state}\nhint: allranks status {name}")
    if dump:
        _await_stacks(directory, before, len(report.ranks))
        report = report._replace(evidence=str(evidence))
    if json_:
        print(document_line(report))
    else:
        print("\n".join(lines_of(report, shows_colour(sys.stdout))))
    for error, nodes in group(report.errors, report.errors.__getitem__).items():
        print(f"no stacks of {join_names(nodes)}: {error}", file=sys.stderr)
    return code_if(bool(report.errors), NODE_FAILED)


def _await_stacks(run: RunDirectory, before: Mapping[Path, int], count: int) -> None:
    """Wait until the stacks of so many ranks have come after those that were there."""
    deadline = time.monotonic() + FETCH_SECONDS
    while time.monotonic() < deadline:
        grown = [path for path in run.path.glob("evidence/stacks/*") if size_of(path) > before.get(path, 0)]
        if len(grown) >= count:
            return
        time.sleep(0.05)


# -- reading the answer ----------------------------------------------------------------------------------


def report_of(run: str, answer: StacksAnswer, native: bool) -> StacksReport:
    """Make the report of what the nodes have answered."""
    status = answer.status
    known = {(node.role, rank.rank): rank for node in status.nodes for rank in node.ranks}
    seen: list[SeenRank] = []
    places: list[tuple[str, ...]] = []
    for node in answer.nodes:
        for number, document in sorted(node.ranks.items()):
            sample = read_sample(number, document)
            done = doing(sample, sample, 0.0)
            places.append((node.role, done.kind.value, *map(str, done.place())))
            seen.append(_seen(node, sample, done, known.get((node.role, number), RankStatus(number)), native))
    by_place = group(range(len(seen)), places.__getitem__)
    groups = []
    for indexes in sorted(by_place.values(), key=lambda indexes: (len(indexes), seen[indexes[0]].rank)):
        first = seen[indexes[0]]
        groups.append(SeenRanks([seen[i].rank for i in indexes], first.does, first.at, first.stack, first.role))
    errors = {node.node: node.error for node in answer.nodes if node.error}
    return StacksReport(run, status.t, status.attempt, 0.0, groups=groups, ranks=seen, errors=errors)


def _seen(node: NodeStacks, sample: StackSample, done: Doing, known: RankStatus, native: bool) -> SeenRank:
    frames: Sequence[Frame] = done.stack
    if native:
        frames = main_frames(sample.text) or frames
    recording = read_recording(sample.rank, sample.recorder)
    collective, is_done = newest_collective(recording)
    does = done.why or done.kind.value
    if done.kind in (ActivityKind.WAITING, ActivityKind.STARTING):
        does = f"in {done.call}"
    elif done.kind is ActivityKind.ELSEWHERE and not done.why:
        does = "runs" if sample.state == "R" else ""
    return SeenRank(
        sample.rank,
        node.node,
        known.pid,
        known.step,
        does,
        at=str(done.at or ""),
        collective=collective,
        is_done=is_done,
        stack=tuple(map(str, frames)),
        role=node.role,
        error="" if frames and not (native and sample.error) else sample.error,
    )


def newest_collective(recording: RankRecording) -> tuple[str, bool]:
    """Name the first call of a rank that is not done, else its newest, with the group; and whether it is done."""
    standing = recording.stands_at
    for of_group, transfers in recording.transfers.items():
        if standing in transfers:
            return f"{getattr(standing, 'name', '')}{of_group}", False
    newest = [(entries[-1], of_group) for of_group, entries in recording.entries.items() if entries]
    if standing is None and newest:
        entry, of_group = max(newest, key=lambda pair: pair[0].order)
        return f"{entry}{of_group}", True
    for of_group, entries in recording.entries.items():
        if standing in entries:
            return f"{standing}{of_group}", False
    return "", False


# -- for people ------------------------------------------------------------------------------------------


def lines_of(report: StacksReport, colour: bool) -> list[str]:
    """Write a line for the run, then each group with the step, the collective and the stack of its ranks."""
    steps = [rank.step for rank in report.ranks if rank.step is not None]
    head = [f"{report.run}: {count_of(len(report.ranks), 'rank')}", _span(steps)]
    lines = [", ".join(filter(None, [*head, f"seen in {format_elapsed(report.seconds)}"]))]
    for of_group in report.groups:
        lines += ["", *_group_lines(report, of_group, colour)]
    if report.evidence:
        lines += ["", f"stacks and flight recorders are in {report.evidence}"]
    return [clean(line, colour) for line in lines]


def _span(steps: Sequence[int]) -> str:
    if not steps:
        return ""
    return f"step {min(steps)}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"


def _group_lines(report: StacksReport, of_group: SeenRanks, colour: bool) -> Iterator[str]:
    members = [one for one in report.ranks if one.role == of_group.role and one.rank in of_group.ranks]
    nodes = {one.rank: one.node for one in members}
    named = name_by_node(of_group.ranks, nodes.__getitem__)
    if of_group.role:
        named += f" of {of_group.role}"
    yield with_reason(named, name_with(of_group.does, of_group.at) if of_group.does else of_group.at)
    details = [_span([one.step for one in members if one.step is not None])]
    for words, ones in group(members, _collective_words).items():
        if words:
            details.append(
                words if len(ones) == len(members) else f"{format_ranks([one.rank for one in ones])} {words}"
            )
    details += dict.fromkeys(one.error for one in members if one.error)
    if any(details):
        yield paint(f"  {join_words(list(filter(None, details)))}", DIM, colour)
    yield from (f"    {cut(frame, SHOWN_WIDTH)}" for frame in of_group.stack[:SHOWN_FRAMES])
    if len(of_group.stack) > SHOWN_FRAMES:
        yield f"    … and {len(of_group.stack) - SHOWN_FRAMES} more"


def _collective_words(one: SeenRank) -> str:
    if not one.collective:
        return ""
    return f"has called {one.collective}" if one.is_done else f"in {one.collective}"
