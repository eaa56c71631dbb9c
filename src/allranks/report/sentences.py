"""Events, findings, verdicts and the end of a run in words (pure)."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allranks.exitcodes import CTRL_C, DONE, TERMINATED
from allranks.findings import Finding, Verdict, Where, explain_command
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.messages import EndedMessage, ExitMessage, FaultMessage
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.run_facts import (
    AllInitialised,
    AttemptStart,
    EndingBegun,
    Fact,
    FirstStep,
    GateProved,
    HangSuspected,
    JobProgress,
    JoinProgress,
    LauncherPaused,
    NodeAdded,
    NodeAwaited,
    NodeBack,
    NodeLeft,
    NodeLost,
    NodeReachedAgain,
    NodeReplaced,
    NodeSilent,
    NodeTakenIn,
    OutputDropped,
    PlainNote,
    RegrowBegun,
    RetryDecided,
    RoleReady,
    SaveAgreed,
    SaveAsked,
    SaveDone,
    SignalPassed,
    SpareReady,
    Stamped,
    StepsResumed,
    SuitePassed,
    WorkingTree,
    WorldChanged,
    on,
)
from allranks.runs.documents import TEMPORARY, Left, NodeEntry, OpenedRole, ResultDocument, RunOpened
from allranks.settings.secrets import redact_text
from allranks.text import (
    count_of,
    cut,
    format_duration,
    format_ranks,
    format_size,
    join_words,
    list_first,
    name_with,
    plural,
)

from .ledgerwords import goodput_line
from .terminal import one_line

NODES_SHOWN = 8  # by name in the opening lines
FILES_SHOWN = 4
RUNNER_UP_WIDTH = 160  # characters of what else it may be
# Who asked for the end, as a terminal has it.
_OWN_OUTPUTS = re.compile(r"/node_\d+(?:_\d+)?/outputs$")  # in a node directory: no --output-dir was given
_ASKED = {
    "ctrl-c": "Ctrl-C",
    "sigterm": "SIGTERM or `allranks stop`",
    "roles-done": "the roles that end the run are done",
    "role-failed": "another role has failed",
}


def opening_lines(opened: RunOpened) -> list[str]:
    """Write what `run` opens with."""
    names = list_first([_node(node) for node in opened.nodes], NODES_SHOWN)
    command = shlex.join(opened.command)
    if opened.launcher != "direct":
        command += f"   ({opened.launcher})"
    lines = [
        f"run       {opened.run}",
        f"directory {opened.directory}",
        f"command   {command}",
        f"nodes     {names}   (from {opened.source})",
    ]
    if opened.roles:
        lines[2:3] = map(_role, opened.roles)
    if opened.spares:
        lines.append("spares    " + ", ".join(map(_node, opened.spares)))
    if opened.environment:
        lines.append(f"variables {opened.environment}")
    return lines


def _role(role: OpenedRole) -> str:
    after = f"   (after {', '.join(role.after)})" if role.after else ""
    return f"{role.name:<9} {list_first(role.nodes, NODES_SHOWN)}: {shlex.join(role.command)}{after}"


def _node(node: NodeEntry) -> str:
    host = node.host or ""
    name = name_with(node.name, "" if host == "localhost" else host)
    return f"{name} slots={node.slots}" if node.slots else name


def event_line(stamped: Stamped[Fact], nodes: int) -> str | None:
    """Write the line for a fact that a person wants to see; None for the others.

    `nodes` are in the run; who follows a run from elsewhere may not know them yet.
    """
    write = _WRITERS.get(type(stamped.fact))
    if write is None and not isinstance(stamped.fact, GateProved):
        return None
    stamped = on_one_line(stamped)
    if isinstance(stamped.fact, GateProved):
        return _rendezvous_line(stamped.node, stamped.fact, nodes, stamped.role)
    line = None if write is None else write(stamped)
    return f"{stamped.role}: {line}" if line and stamped.role else line


def on_one_line(value: Any) -> Any:
    """Put every text of a fact on one line, where it stands in a sentence of ours: nodes and programs write in it.

    A remedy is of ours, and has as many lines as commands.
    """
    if isinstance(value, str):
        return one_line(value)
    if hasattr(value, "_fields"):
        fields = value._asdict().items()
        return value._replace(**{name: item if name == "remedy" else on_one_line(item) for name, item in fields})
    if isinstance(value, Mapping):
        return {name: on_one_line(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_one_line, value))
    return value


def _rendezvous_line(node: str, proved: GateProved, nodes: int, role: str) -> str:
    count = len(proved.ranks) or nodes
    who = f"all {count} nodes" if count > 1 else "the node"
    place = f"{node} {proved.address}:{proved.port}"
    if role:
        return f"{role:<9} {place}, reached by {who} in {proved.seconds:.2f} s"
    return f"master    {place}, reached by {who} in {proved.seconds:.2f} s\nranks     {counts_text(proved.ranks)}"


def counts_text(ranks: Mapping[str, int]) -> str:
    """Write the world size, with the ranks of each node where they differ."""
    total = sum(ranks.values())
    each = set(ranks.values())
    if len(each) == 1:
        return f"{total} in all, {each.pop()} a node"
    return f"{total} in all: " + ", ".join(f"{name} {count}" for name, count in ranks.items())


def _initialised_line(stamped: Stamped[AllInitialised]) -> str:
    ranks = stamped.fact.ranks
    who = f"all {ranks} ranks" if ranks > 1 else "the rank"
    seconds = f"{stamped.fact.seconds:.1f} s"
    if stamped.attempt:
        return f"{who} initialised {seconds} after the start of the run"
    return f"{who} initialised in {seconds}"


def _dropped_line(stamped: Stamped[OutputDropped]) -> str | None:
    """Warn once of each source: how much it was in the end stands in the closing lines."""
    dropped = stamped.fact
    if dropped.bytes < dropped.total:
        return None
    why = "it finds no room there"
    if dropped.why == "bound":
        why = "what waits there has its share of the disk"
    return f"rank {dropped.rank}'s output on {stamped.node} is being dropped: {why}"


def _paused_line(stamped: Stamped[LauncherPaused]) -> str:
    paused = stamped.fact
    seconds = f"{paused.seconds:.0f} s"
    if paused.waited:
        return f"note: a disk perhaps held this process for {seconds}. Ranks went on, their output waited on the nodes"
    how = "this machine slept" if paused.slept else "this process did not run"
    if paused.ended:
        how = "the run had no controller"
    return f"note: {how} for {seconds}"


def _tree_line(stamped: Stamped[WorkingTree]) -> str:
    tree = stamped.fact
    line = f"sync      {tree.files:,} {plural(tree.files, 'file')}, {format_size(tree.bytes)} of {tree.root}"
    if tree.left_out:
        over = f", over {format_size(tree.limit)}" if tree.limit else ""
        return f"{line}\nnot shipped{over}: {list_first(tree.left_out, FILES_SHOWN)}"
    return line


def _ending_line(stamped: Stamped[EndingBegun]) -> str | None:
    """Say how long the ranks have to save, or that those that still run are ended after a failure."""
    ranks = stamped.fact.ranks
    reason = stamped.fact.reason
    if reason == "done" or (reason == "failure" and not ranks):
        return None
    if reason == "failure":
        return f"ending the remaining {ranks} ranks" if ranks != 1 else "ending the remaining rank"
    asked = _ASKED.get(reason, reason)
    if ranks == 0:
        return f"{asked}: ending the run"
    who = "all ranks" if ranks is None else count_of(ranks, "rank")
    if not stamped.fact.grace:
        return f"{asked}: ending {who} at once"
    line = f"{asked}: ending {who}, with {stamped.fact.grace:g} s to save"
    if reason == "ctrl-c":
        line += ". Ctrl-C again ends them at once"
    return line


def _exit_line(stamped: Stamped[ExitMessage]) -> str | None:
    end = stamped.fact
    if not end.failed_by_itself:
        return None
    how = f"code {end.code}" if end.signal is None else f"signal {end.signal}"
    return f"rank {end.rank} on {stamped.node} ended with {how}"


def _clean_line(stamped: Stamped[EndedMessage]) -> str | None:
    if not stamped.fact.left:
        return None
    left = [f"pid {process.pid} in state {process.state} ({process.command})" for process in stamped.fact.left]
    return f"processes on {stamped.node} could not be ended: {', '.join(left)}"


def _resumed_line(stamped: Stamped[StepsResumed]) -> str:
    attempt = stamped.attempt
    step, reached, lost, starts_over = stamped.fact
    if starts_over:
        return (
            f"warning: attempt {attempt} begins at step {step} although step {reached} was reached. No checkpoint was "
            "loaded"
        )
    return f"attempt {attempt} {_resumed_after(step, lost)}"


def _resumed_after(step: int, lost: int) -> str:
    """Say where an attempt that goes on at `step` took up what those before it had done."""
    where = f"resumed after step {step - 1}" if step > 0 else f"began again at step {step}"
    return f"{where}, {count_of(lost, 'step')} lost"


def _awaited_line(stamped: Stamped[NodeAwaited]) -> str:
    waited, left, message = stamped.fact
    limit = format_duration(round(waited + left))
    return f"waiting for {stamped.node}, {waited:.0f} s of {limit} (--node-wait): {message}"


def _asked_line(stamped: Stamped[SaveAsked]) -> str:
    return f"{stamped.fact.reason}: all ranks that call should_save are asked to save at one step"


def _passed_line(stamped: Stamped[SuitePassed]) -> str:
    count = count_of(stamped.fact.ranks, "rank")
    return f"collective tests passed on {count} in {stamped.fact.seconds:.1f} s: starting the program"


def _suspected_line(stamped: Stamped[HangSuspected]) -> str:
    line = f"nothing has moved for {stamped.fact.quiet:.0f} s: taking stack samples of every rank"
    if stamped.fact.limit is None:
        return line
    return f"{line}. Their process group gives up after {stamped.fact.limit:.0f} s"


def _ready_line(stamped: Stamped[RoleReady]) -> str | None:
    if not stamped.fact.test:
        return None
    return f"ready after {stamped.fact.seconds:.1f} s: {stamped.fact.test} ({stamped.fact.answer})"


def _world_line(stamped: Stamped[WorldChanged]) -> str:
    world = stamped.fact
    nodes = f"{world.nodes} of {count_of(world.most, 'node')}: {count_of(world.world_size, 'rank')}"
    if not world.former:
        return f"world     the run starts with {nodes}"
    change = f"{world.former} before, so a global batch is {world.world_size / world.former:.0%} of what it was"
    return f"world     attempt {stamped.attempt} goes on with {nodes} ({change}, unless your program keeps it)"


def finding_line(finding: Finding) -> str:
    """Write a finding as one or two lines."""
    sign = {"fail": "FAIL", "warn": "warning", "unknown": "unknown"}.get(finding.status, "note")
    line = f"{sign}: {one_line(finding.message)}"
    if finding.remedy and sign == "warning":
        return f"{line}\n    {finding.remedy}"
    return line


_WRITERS: dict[type, Callable[[Stamped[Any]], str | None]] = dict(
    (
        on(SuitePassed, _passed_line),
        on(HangSuspected, _suspected_line),
        on(RoleReady, _ready_line),
        on(FirstStep, lambda stamped: f"first step after {stamped.fact.seconds:.1f} s"),
        on(FaultMessage, lambda stamped: f"note: {stamped.node}: {stamped.fact.message}"),
        on(SignalPassed, lambda stamped: f"{stamped.fact.signal} sent to {count_of(stamped.fact.ranks, 'rank')}"),
        on(SaveAsked, _asked_line),
        on(SaveAgreed, lambda stamped: f"{count_of(stamped.fact.ranks, 'rank')} save at step {stamped.fact.step}"),
        on(SaveDone, lambda stamped: f"{stamped.fact.saved.sentence} in {stamped.fact.seconds:.1f} s"),
        on(JobProgress, lambda stamped: f"job       {stamped.fact.job}: {stamped.fact.message}"),
        on(JoinProgress, lambda stamped: f"join      {stamped.fact.message}"),
        on(PlainNote, lambda stamped: f"note: {stamped.fact.message}"),
        on(NodeSilent, lambda stamped: f"{stamped.node} is silent: reconnecting"),
        on(NodeBack, lambda stamped: f"{stamped.node} is back"),
        on(NodeLost, lambda stamped: f"{stamped.node} is lost: nothing heard for the whole lease"),
        on(SpareReady, lambda stamped: f"spare     {stamped.node} is ready"),
        on(NodeReplaced, lambda stamped: f"{stamped.fact.by} takes the place of {stamped.node}"),
        on(NodeAdded, lambda stamped: f"{stamped.node} is in the host list now"),
        on(NodeLeft, lambda stamped: f"{stamped.node} has no place: {one_line(stamped.fact.why)}"),
        on(NodeTakenIn, lambda stamped: f"{stamped.node} has a place again"),
        on(RegrowBegun, lambda stamped: f"regrow    the attempt ends for {join_words(stamped.fact.nodes)}"),
        on(WorldChanged, _world_line),
        on(NodeAwaited, _awaited_line),
        on(NodeReachedAgain, lambda stamped: f"reaching {stamped.node} again"),
        on(WorkingTree, _tree_line),
        on(AllInitialised, _initialised_line),
        on(AttemptStart, lambda stamped: f"attempt   {stamped.attempt}" if stamped.attempt else None),
        on(Finding, lambda stamped: finding_line(stamped.fact)),
        on(OutputDropped, _dropped_line),
        on(LauncherPaused, _paused_line),
        on(RetryDecided, lambda stamped: "\n".join(["", *verdict_lines(stamped.fact.verdict), ""])),
        on(EndingBegun, _ending_line),
        on(ExitMessage, _exit_line),
        on(StepsResumed, _resumed_line),
        on(EndedMessage, _clean_line),
    )
)


def verdict_lines(verdict: Verdict, with_runners_up: bool = False) -> list[str]:
    """Write cause and culprit in a sentence, its process, evidence, fix, victims, its page.

    Of the evidence stand at most three lines, and none whose words the sentence has already.
    """
    doubt = ""
    if 0 < verdict.confidence < 0.9:
        doubt = f" (confidence {verdict.confidence:.0%})"
    message = one_line(verdict.finding.message)
    lines = [f"VERDICT   {message}", f"  cause   {verdict.cause}{doubt}"]
    where = verdict.finding.where
    if where.pid is not None:
        gpu = f", GPU {where.gpu}" if where.gpu is not None else ""
        lines.append(f"  culprit rank {where.rank} on {where.node or '?'}, pid {where.pid}{gpu}")
    lines += [f"  saw     {one_line(item)}" for item in verdict.finding.evidence[:3] if not _says(message, item)]
    fix = [line for line in verdict.finding.remedy.splitlines() if line.strip()]
    lines += [f"  {head:<8}{line}" for head, line in zip(["fix", *[""] * len(fix)], fix, strict=False)]
    if verdict.victims:
        lines.append(f"  victims {format_ranks(verdict.victims)} ended because of it")
    if verdict.decision:
        lines.append(f"  next    {verdict.decision}")
    if with_runners_up:
        lines += [
            f"  or      {other.id}: {cut(one_line(other.message), RUNNER_UP_WIDTH)}" for other in verdict.runners_up
        ]
    more = explain_command(verdict.cause)
    if more:
        lines.append(f"  more    {more}")
    return lines


def _says(message: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", message) is not None


def left_lines(left: Left) -> list[str]:
    """Say what is left on nodes; what has no process id is an object of an engine."""
    lines = []
    for place, items in left.items():
        if all(item.pid for item in items):
            processes = ", ".join(f"pid {item.pid} ({_command(item)})" for item in items)
            lines.append(f"LEFT on {place}: {processes}")
        else:
            lines.append(f"LEFT {place}: " + ", ".join(map(_command, items)))
    return lines


def _command(item: RemainingProcess) -> str:
    return one_line(redact_text(item.command))


def closing_lines(result: ResultDocument) -> list[str]:
    """Write the end of a run: the verdict first, the run directory last."""
    lines: list[str] = []
    if result.verdict is not None:
        lines += ["", *verdict_lines(result.verdict)]
    lines += [*data_lines(result.findings), *left_lines(result.left), *_lost_lines(result)]
    lines += _outputs_lines(result)
    if len(result.attempts) > 1:  # why no further one follows stands in the verdict above
        lines += map(_attempt, result.attempts)
    lines += _role_lines(result)
    if result.time_ledger is not None and (goodput := goodput_line(result.time_ledger, len(result.attempts))):
        lines.append(f"goodput   {goodput}")
    after = f"after {result.timing.total or 0.0:.1f} s"
    if len(result.attempts) > 1:
        after += f", {count_of(len(result.attempts), 'attempt')}"
    logs = f", logs in {result.directory}/logs"
    if not result.directory:
        logs = ". Its run directory was removed, and the logs with it"
    return [*lines, f"{end_word(result.exit, 'done')} {after} (exit {result.exit}){logs}"]


def end_word(code: int, success: str) -> str:
    """Say how a run or a test has ended, by its exit code: `stopped by Ctrl-C`, `failed`, or what a success is."""
    return {DONE: success, CTRL_C: "stopped by Ctrl-C", TERMINATED: "stopped"}.get(code, "failed")


def _outputs_lines(result: ResultDocument) -> list[str]:
    """Say where files of the program lie that are not in the run directory, and which of them may be lost."""
    top = os.path.abspath(result.directory)
    outputs = {node: path for node, path in result.outputs.items() if not (result.directory and path.startswith(top))}
    if not outputs:
        return []
    lines = ["outputs   " + list_first([f"{node}:{path}" for node, path in outputs.items()], FILES_SHOWN)]
    if any(path.startswith(TEMPORARY) and _OWN_OUTPUTS.search(path) for path in outputs.values()):
        lines.append("          such places are temporary: --output-dir PATH names a lasting one")
    return lines


def _lost_lines(result: ResultDocument) -> list[str]:
    lines = []
    for node, logs in result.unfetched.items():
        arrived = _bytes(sum(logs.fetched_bytes.values()))
        lines.append(f"{node}'s logs end early ({arrived} arrived), what is left of the rest is in {logs.node_dir}")
    for node, ranks in result.dropped.items():
        for rank, count in ranks.items():
            lines.append(f"{_bytes(count)} of rank {rank}'s output on {node} were dropped: no room there")
    return lines


def _bytes(count: int) -> str:
    return f"{count:,} {plural(count, 'byte')}"


def _attempt(attempt: AttemptEnd) -> str:
    line = f"attempt {attempt.attempt}  {attempt.outcome} after {attempt.seconds or 0.0:.1f} s"
    if attempt.step is not None:
        line += f" at step {attempt.step}"
    if attempt.cause:
        culprit = attempt.culprit or Where()
        rank = f"rank {culprit.rank}" if culprit.rank is not None else ""
        place = culprit.node or ", ".join(culprit.nodes)
        who = " on ".join(word for word in (rank, place) if word)
        line += f": {attempt.cause}, {who}" if who else f": {attempt.cause}"
    if attempt.first_step is not None:
        line += f". {_resumed_after(attempt.first_step, attempt.lost_steps or 0).capitalize()}"
    if attempt.saved is not None:
        line += f". {attempt.saved.sentence.capitalize()}"
    if attempt.reason and attempt.decision == "retry":
        line += f". Tried again: {attempt.reason}"
    return line


def _role_lines(result: ResultDocument) -> list[str]:
    """Write a line for each further role that failed, or that was restarted."""
    main = next((name for name, role in result.roles.items() if role.attempts == result.attempts), "")
    lines = []
    for name, role in result.roles.items():
        failed = [attempt for attempt in role.attempts if attempt.outcome == "failed"]
        is_said = len(role.attempts) == 1 and result.verdict is not None and result.verdict.finding.where.role == name
        if failed and name != main and not is_said:
            lines += [f"{name}: {_attempt(attempt)}" for attempt in role.attempts]
    return lines


def data_lines(findings: Sequence[Finding]) -> list[str]:
    """Repeat what --audit-data warned of: in a long log the first warning is far away."""
    lines = []
    for finding in findings:
        if finding.check == "data-audit" and finding.status == "warn":
            lines.append(f"DATA      {finding.message}")
            if finding.remedy:
                lines.append(f"  fix     {finding.remedy}")
    return lines
