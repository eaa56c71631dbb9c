"""The summary of a run to paste into an issue or a mail: Markdown, at most 60 lines (pure).

What comes from logs, programs and machines stands in code spans and fences, so that it stays text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from allranks.text import count_of, plural

from .machines import machine_groups, scheduler
from .record import Document, Record
from .redact import Hidden
from .text import ranges

MOST = 60  # lines
LONGEST = 300  # characters of a line
WORDS = {"done": "done", "failed": "FAILED", "stopped": "stopped", "orphaned": "its launcher is gone"}


def summary(record: Record, hidden: Sequence[Hidden], files: int) -> str:
    """`record` is without secrets; `files` is how many the bundle has."""
    lines = [
        f"# allranks: {code(record.name)}", "", *_verdict(record), "", "## Run", "", *_run(record), "", "## Nodes", "",
        *_nodes(record), *_findings(record), *_tests(record), "", "## This bundle", "", *_bundle(hidden, files),
    ]  # fmt: skip
    return "\n".join(lines[:MOST]) + "\n"


def code(value: object, longest: int = LONGEST) -> str:
    """A code span: one line, whatever is in it."""
    return f"`{_line(value, longest)}`"


def _line(value: object, longest: int = LONGEST) -> str:
    text = " ".join(str(value).split()).replace("`", "'")
    return (text if len(text) <= longest else text[: longest - 1] + "…") or " "


def _fence(lines: Sequence[object], most: int) -> list[str]:
    return ["```", *(_line(line) for line in lines[:most]), "```"] if lines else []


def _part(value: Document, key: str) -> Document:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _rows(value: Document, key: str) -> list[Any]:
    found = value.get(key)
    return list(found) if isinstance(found, (list, tuple)) else []


def _verdict(record: Record) -> list[str]:
    verdict = record.verdict
    state = WORDS.get(record.state, record.state)
    exit_ = f" (exit {_line(record.result['exit'], 20)})" if "exit" in record.result else ""
    if verdict.get("status") != "fail":
        return [f"**{state}**{exit_}: {code(verdict.get('message') or 'no verdict')}"]
    confidence = verdict.get("confidence")
    sure = f", confidence {confidence:.0%}" if isinstance(confidence, (int, float)) and 0 <= confidence <= 1 else ""
    lines = [f"**{state}**{exit_}, cause {code(verdict.get('cause'), 80)}{sure}", "", code(verdict.get("message")), ""]
    where = ", ".join(f"{k} {_line(v, 80)}" for k, v in _part(verdict, "where").items())
    victims = [v for v in _rows(verdict, "victims") if isinstance(v, int)]
    lines += [f"- culprit: {code(where)}"] if where else []
    lines += [f"- victims: {code(ranges(victims))}"] if victims else []
    lines += ["", *_fence(_rows(verdict, "evidence"), 3)] if verdict.get("evidence") else []
    fix = [line for line in str(verdict.get("remedy") or "").splitlines() if line.strip()]
    return lines + (["", "Fix:", *_fence(fix, 6)] if fix else [])


def _run(record: Record) -> list[str]:
    run, ranks = record.run, record.status.get("world_size")
    command = shlex.join(str(word) for word in _rows(run, "command"))
    attempts = len(_rows(record.result, "attempts"))
    nodes = count_of(len(_rows(run, "nodes")), "node")
    seconds = _part(record.result, "timing").get("total")
    versions = ", ".join(f"{k} {_line(v, 60)}" for k, v in _part(run, "versions").items())
    return [
        f"- {_line(ranks, 20)} {plural(1 if ranks == 1 else 2, 'rank')} on {nodes}, launcher "
        f"{code(_part(run, 'spec').get('launcher', 'direct'), 40)}, {count_of(attempts, 'attempt')}, "
        f"{_line(seconds, 20)} s",
        f"- command: {code(command)}",
        f"- scheduler: {code(scheduler(run, record.preflight))}",
        f"- launched with: {code(versions)}",
    ]


def _nodes(record: Record) -> list[str]:
    """A line for nodes that are alike."""
    groups = machine_groups(_part(record.preflight, "nodes"))
    wanted = ("system", "GPUs", "driver", "Python", "torch", "network", "RDMA ports")
    lines = [
        f"- {code(names, 80)}: " + "; ".join(f"{name} {code(value, 90)}" for name, value in rows if name in wanted)
        for names, rows in groups[:6]
    ]
    if len(groups) > 6:
        lines.append(f"- and {len(groups) - 6} more groups of nodes, see run/evidence/preflight.json")
    return lines or ["- not looked at (no evidence/preflight.json)"]


def _findings(record: Record) -> list[str]:
    rows = [f for f in _rows(record.result, "findings") if isinstance(f, Mapping) and f.get("message")]
    found = [f for f in rows if f.get("message") != record.verdict.get("message")]
    if not found:
        return []
    more = [f"- and {len(found) - 6} more"] if len(found) > 6 else []
    return ["", "## Findings", "", *(f"- {_line(f.get('status'), 20)}: {code(f['message'])}" for f in found[:6]), *more]


def _tests(record: Record) -> list[str]:
    if not record.tests:
        return []
    lines = [f"- {_line(t.result.get('suite'), 20)} {'passed' if t.result.get('ok') else 'FAILED'}: {code(t.name, 80)}"
             for t in record.tests[:5]]  # fmt: skip
    return ["", "## Tests and checks of these nodes", "", *lines]


def _bundle(hidden: Sequence[Hidden], files: int) -> list[str]:
    count, kinds = sum(h.count for h in hidden), ", ".join(sorted({h.kind for h in hidden}))
    were = plural(count, "was", "were")
    said = (
        f"{count_of(count, 'secret')} {were} hidden ({kinds}): see redactions.json"
        if count
        else "no secrets were found"
    )
    contents = f"{count_of(files, 'file')}, see contents.json"
    return [f"- {contents}; report.html is the page; large logs have beginning and end only", f"- {said}"]
