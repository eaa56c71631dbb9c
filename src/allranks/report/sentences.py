"""Events, findings, verdicts and the end of a run in words (pure)."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allranks.exitcodes import CTRL_C, DONE, TERMINATED
from allranks.findings import Finding, Verdict, Where, explain_command
from allranks.protocol.codec import decode_parts
from allranks.runs.documents import (
    TEMPORARY,
    AttemptRecord,
    Left,
    ResultDocument,
    SavedStep,
)
from allranks.text import count_of, cut, format_ranks, list_first, name_with, plural

from .ledgerwords import goodput_line
from .terminal import one_line

Document = dict[str, Any]

NODES_SHOWN = 8  # by name in the opening lines
FILES_SHOWN = 4
RUNNER_UP_WIDTH = 160  # characters of what else it may be
# Events that one sentence tells.
_SENTENCES = {
    "test-passed": "collective tests passed on {count} in {seconds:.1f} s: starting the program",
    "hang-suspected": "nothing has moved for {quiet:.0f} s: taking stack samples of every rank",
    "first-step": "first step after {seconds:.1f} s",
    "fault": "note: {node}: {message}",
    "signal": "{signal} sent to {count}",
    "save-asked": "{reason}: all ranks that call should_save are asked to save at one step",
    "save-agreed": "{count} save at step {step}",
    "job": "job       {job}: {message}",
    "join": "join      {message}",
    "note": "note: {message}",
    "node-silent": "{node} is silent: reconnecting",
    "node-back": "{node} is back",
    "node-lost": "{node} is lost: nothing heard for the whole lease",
    "spare-ready": "spare     {node} is ready",
    "node-replaced": "{by} takes the place of {node}",
    "node-anew": "reaching {node} again",
}
# Who asked for the end, as a terminal has it.
_ASKED = {"ctrl-c": "Ctrl-C", "sigterm": "SIGTERM or `allranks stop`"}


def opening_lines(info: Document) -> list[str]:
    """Write what `run` opens with."""
    nodes = info["nodes"]
    names = list_first([_node(node) for node in nodes], NODES_SHOWN)
    command = shlex.join(info["command"])
    if info["launcher"] != "direct":
        command += f"   ({info['launcher']})"
    lines = [
        f"run       {info['run']}",
        f"directory {info['directory']}",
        f"command   {command}",
        f"nodes     {names}   (from {info['source']})",
    ]
    spares = info.get("spares")
    if spares:
        lines.append("spares    " + ", ".join(_node(node) for node in spares))
    if info.get("environment"):
        lines.append(f"variables {info['environment']}")
    return lines


def _node(node: Document) -> str:
    name = name_with(node["name"], "" if node["host"] == "localhost" else node["host"])
    if node.get("slots"):
        return f"{name} slots={node['slots']}"
    return name


def event_line(event: Document, nodes: int) -> str | None:
    """Write the line for an event that a person wants to see; None for the others.

    None also for an event that lacks a field, or has another type there: it comes from a file or from a pod, damaged
    or of another version, and stands in events.jsonl as it came.
    """
    try:
        return _line_of(event, nodes)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _line_of(event: Document, nodes: int) -> str | None:
    """Write the line; raise what a missing or wrong field makes of it."""
    event = on_one_line(event)
    kind = str(event.get("event"))
    if kind in _SENTENCES:
        ranks = event.get("ranks")
        count = ranks if isinstance(ranks, int) else 0
        values = {"job": None, "message": None, **event, "count": count_of(count, "rank")}
        return _SENTENCES[kind].format_map(values)
    writer = _WRITERS.get(kind)
    if kind == "gate-proved":
        return _rendezvous_line(event, nodes)
    if writer is not None:
        return writer(event)
    return None


def on_one_line(value: Any) -> Any:
    """Put every text of a document on one line, where it stands in a sentence of ours: nodes and programs write in it.

    A remedy is of ours, and has as many lines as commands.
    """
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {name: item if name == "remedy" else on_one_line(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [on_one_line(item) for item in value]
    return value


def _rendezvous_line(event: Document, nodes: int) -> str:
    ranks = event.get("ranks") or {}
    count = len(ranks) or nodes  # who follows a run from elsewhere may not know its nodes yet
    who = f"all {count} nodes" if count > 1 else "the node"
    place = f"{event['node']} {event['address']}:{event['port']}"
    return f"master    {place}, reached by {who} in {event['seconds']:.2f} s\nranks     {counts_text(ranks)}"


def counts_text(ranks: Mapping[str, int]) -> str:
    """Write the world size, with the ranks of each node where they differ."""
    total = sum(ranks.values())
    each = set(ranks.values())
    if len(each) == 1:
        return f"{total} in all, {each.pop()} a node"
    return f"{total} in all: " + ", ".join(f"{name} {count}" for name, count in ranks.items())


def _initialised_line(event: Document) -> str:
    ranks = event["ranks"]
    who = "the rank"
    if ranks > 1:
        who = f"all {ranks} ranks"
    seconds = f"{event['seconds']:.1f} s"
    if event.get("attempt"):
        return f"{who} initialised {seconds} after the start of the run"
    return f"{who} initialised in {seconds}"


def _attempt_line(event: Document) -> str | None:
    if not event.get("attempt"):
        return None
    return f"attempt   {event['attempt']}"


def _dropped_line(event: Document) -> str | None:
    """Warn once of each source: how much it was in the end stands in the closing lines."""
    if event["bytes"] < event.get("total", event["bytes"]):
        return None
    why = "it finds no room there"
    if event.get("why") == "bound":
        why = "what waits there has its share of the disk"
    return f"rank {event.get('rank')}'s output on {event.get('node')} is being dropped: {why}"


def _paused_line(event: Document) -> str:
    how = "this machine slept" if event["slept"] else "this process did not run"
    return f"note: {how} for {event['seconds']:.0f} s"


def _tree_line(event: Document) -> str:
    """Say what --sync ships, and what it leaves out."""
    files = f"{event['files']:,} {plural(event['files'], 'file')}"
    line = f"sync      {files}, {event['bytes'] / (1 << 20):.1f} MB of {event['root']}"
    left_out = event.get("left_out")
    if left_out:
        return f"{line}\nnote: left out as large {list_first(left_out, FILES_SHOWN)}"
    return line


def _retry_line(event: Document) -> str:
    verdict = decode_parts(Verdict, event["verdict"])
    return "\n".join(["", *verdict_lines(verdict), ""])


def _ending_line(event: Document) -> str | None:
    """Say how long the ranks have to save, or that those that still run are ended after a failure."""
    ranks = event.get("ranks")
    reason = event["reason"]
    if reason == "failure":
        if not ranks:
            return None
        if ranks > 1:
            return f"ending the remaining {ranks} ranks"
        return "ending the remaining rank"
    if reason == "done":
        return None
    asked = _ASKED.get(reason, reason)
    if ranks == 0:
        return f"{asked}: ending the run"
    who = "all ranks" if ranks is None else count_of(ranks, "rank")
    if not event["grace"]:
        return f"{asked}: ending {who} at once"
    line = f"{asked}: ending {who}, with {event['grace']:g} s to save"
    if reason == "ctrl-c":
        line += ". Ctrl-C again ends them at once"
    return line


def _exit_line(event: Document) -> str | None:
    if event.get("expected") or event.get("code") == 0:
        return None
    how = f"signal {event['signal']}" if "signal" in event else f"code {event.get('code')}"
    return f"rank {event['rank']} on {event.get('node')} ended with {how}"


def _clean_line(event: Document) -> str | None:
    if not event.get("left"):
        return None
    left = [f"pid {process['pid']} in state {process['state']} ({process['command']})" for process in event["left"]]
    return f"processes on {event.get('node')} could not be ended: {', '.join(left)}"


def _resumed_line(event: Document) -> str:
    """Say where a further attempt goes on, and warn of one that begins from nothing."""
    attempt = event["attempt"]
    step = event["step"]
    reached = event["reached"]
    if event["starts_over"]:
        return (
            f"warning: attempt {attempt} begins at step {step} although step {reached} was reached. No checkpoint was "
            "loaded"
        )
    lost = f"{count_of(event['lost'], 'step')} of those up to {reached} {plural(event['lost'], 'is', 'are')} done again"
    return f"attempt {attempt} goes on at step {step}, {lost}"


def _saved_line(event: Document) -> str:
    return f"{decode_parts(SavedStep, event).sentence} in {event['seconds']:.1f} s"


def finding_line(finding: Document) -> str:
    """Write a finding as one or two lines."""
    sign = {"fail": "FAIL", "warn": "warning", "unknown": "unknown"}.get(str(finding.get("status")), "note")
    line = f"{sign}: {one_line(str(finding.get('message')))}"
    remedy = finding.get("remedy")
    if remedy and sign == "warning":
        return f"{line}\n    {remedy}"
    return line


_WRITERS: dict[str, Callable[[Document], str | None]] = {
    "tree": _tree_line,
    "all-initialised": _initialised_line,
    "attempt-start": _attempt_line,
    "finding": finding_line,
    "dropped": _dropped_line,
    "launcher-paused": _paused_line,
    "retry": _retry_line,
    "ending": _ending_line,
    "rank-exit": _exit_line,
    "saved": _saved_line,
    "resumed": _resumed_line,
    "node-clean": _clean_line,
}


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
    """Tell whether a message has these words already."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", message) is not None


def left_lines(left: Left) -> list[str]:
    """Say what is left on nodes; what has no process id is an object of an engine."""
    lines = []
    for place, items in left.items():
        if all(item.pid for item in items):
            processes = ", ".join(f"pid {item.pid} ({one_line(item.command)})" for item in items)
            lines.append(f"LEFT on {place}: {processes}")
        else:
            lines.append(f"LEFT {place}: " + ", ".join(one_line(item.command) for item in items))
    return lines


def closing_lines(result: ResultDocument) -> list[str]:
    """Write the end of a run: the verdict first, the run directory last."""
    lines: list[str] = []
    if result.verdict is not None:
        lines += ["", *verdict_lines(result.verdict)]
    lines += [*data_lines(result.findings), *left_lines(result.left), *_lost_lines(result)]
    lines += _outputs_lines(result)
    lines += [*attempt_lines(result.attempts), *_goodput_lines(result)]
    word = {DONE: "done", CTRL_C: "stopped by Ctrl-C", TERMINATED: "stopped"}.get(result.exit, "failed")
    after = f"after {result.timing.total or 0.0:.1f} s"
    if len(result.attempts) > 1:
        after += f", {count_of(len(result.attempts), 'attempt')}"
    return [*lines, f"{word} {after} (exit {result.exit}), logs in {result.directory}/logs"]


def _goodput_lines(result: ResultDocument) -> list[str]:
    """Say what share of the time was useful, and where the rest went."""
    if result.time_ledger is None:
        return []
    line = goodput_line(result.time_ledger, len(result.attempts))
    if not line:
        return []
    return [f"goodput   {line}"]


def _outputs_lines(result: ResultDocument) -> list[str]:
    """Say where files of the program lie that are not in the run directory, and which of them may be lost."""
    top = os.path.abspath(result.directory)
    outputs = {node: path for node, path in result.outputs.items() if not path.startswith(top)}
    if not outputs:
        return []
    lines = ["outputs   " + list_first([f"{node}:{path}" for node, path in outputs.items()], FILES_SHOWN)]
    if any(path.startswith(TEMPORARY) for path in outputs.values()):
        lines.append("          such places are temporary: --output-dir PATH names a lasting one")
    return lines


def _lost_lines(result: ResultDocument) -> list[str]:
    """Count output that did not arrive, and output that was dropped."""
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


def attempt_lines(attempts: Sequence[AttemptRecord]) -> list[str]:
    """Write a line an attempt, where there were several. Why no further one follows stands in the verdict above."""
    if len(attempts) < 2:
        return []
    return [_attempt(attempt) for attempt in attempts]


def _attempt(attempt: AttemptRecord) -> str:
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
        line += f". Went on at step {attempt.first_step}, {count_of(attempt.lost_steps or 0, 'step')} lost"
    if attempt.saved is not None:
        line += f". {attempt.saved.sentence.capitalize()}"
    if attempt.reason and attempt.decision == "retry":
        line += f". Tried again: {attempt.reason}"
    return line


def data_lines(findings: Sequence[Finding]) -> list[str]:
    """Repeat what --audit-data warned of: in a long log the first warning is far away."""
    lines = []
    for finding in findings:
        if finding.check == "data-audit" and finding.status == "warn":
            lines.append(f"DATA      {finding.message}")
            if finding.remedy:
                lines.append(f"  fix     {finding.remedy}")
    return lines
