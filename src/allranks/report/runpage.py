"""The page of a run: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

The only script is a fixed one that filters log lines; the page's policy lets run what has that script's hash and
nothing else. Data stand in no script. All lists have an end: see `BUDGET`.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from allranks.text import count_of, plural

from .linkmaps import LinkMap, link_maps
from .machines import addresses, machine_groups, scheduler
from .page import environment
from .record import Document, Excerpt, Record
from .redact import Hidden
from .table import WORDS
from .testpage import NOT_TEXT
from .text import ranges
from .timeline import timeline
from .timeplot import duration, legend, timeline_plot

BUDGET = 2_000_000  # characters of all excerpts, as they stand in the page
TEXTS = 600_000  # of stacks, dumps, kernel logs
LINE = 1000  # characters of a log line
LONGEST = 2000  # of any other text
LINES = 40
FINDINGS = 200
NODES = 64
ORDER = ("fail", "warn", "unknown")
STATES = {"done": "ok", "failed": "fail", "orphaned": "fail", "stopped": "warn"}


def run_page(record: Record, hidden: Sequence[Hidden] = ()) -> str:
    """The page as HTML text; `record` is without secrets already, `hidden` says what was hidden."""
    templates = environment()
    script = search_script(templates)
    where = _part(record.verdict, "where")
    culprit = where.get("rank")
    nodes, aliases = _nodes(record)
    line = timeline(record.events, nodes, aliases)
    plot = timeline_plot(line, [culprit] if isinstance(culprit, int) else [])
    text = templates.get_template("run.html").render(
        script=Markup(script), script_hash=script_hash(script),  # noqa: S704  (a file of ours)
        name=_text(record.name), state=record.state, level=STATES.get(record.state, "unknown"),
        summary=_summary(record), verdict=_verdict(record), findings=_findings(record), attempts=_attempts(record),
        plot=plot, legend=legend(line), began=_moment(line.start),
        maps=_maps(record, list(nodes)), tests=_tests(record), checks=_checks(record),
        texts=_texts(record.texts), logs=_logs(record.excerpts), logs_left_out=record.logs_left_out,
        environment=_environment(record), machines=_machines(record), hosts=_hosts(record),
        hidden=[(h.file, h.kind, h.count, ", ".join(map(str, h.places))) for h in hidden],
    )  # fmt: skip
    return NOT_TEXT.sub("\ufffd", text)


def search_script(templates: Environment) -> str:
    """The text of the page's script."""
    return templates.get_template("search.js").render().strip()


def script_hash(script: str) -> str:
    """As a Content-Security-Policy names a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _part(value: Document, key: str) -> Document:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(value: Document, key: str) -> list[Any]:
    found = value.get(key)
    return list(found) if isinstance(found, (list, tuple)) else []


def _text(value: object, longest: int = LONGEST) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _moment(seconds: object) -> str:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e11:
        return ""
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


# -- the head --------------------------------------------------------------------------------------


def _nodes(record: Record) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Nodes with the ranks that they have, and names of those listed by address."""
    found: dict[str, list[int]] = {}
    aliases = {}
    for node in _list(record.run, "nodes"):
        if isinstance(node, Mapping) and isinstance(node.get("name"), str):
            found[node["name"]] = []
            if isinstance(node.get("address"), str):
                aliases[node["address"]] = node["name"]
    for node in _list(record.status, "nodes"):
        if isinstance(node, Mapping) and isinstance(node.get("name"), str):
            ranks = [r.get("rank") for r in _list(node, "ranks") if isinstance(r, Mapping)]
            found[node["name"]] = [r for r in ranks if isinstance(r, int)]
    return found, aliases


def _summary(record: Record) -> str:
    ranks, nodes = record.status.get("world_size"), len(_list(record.run, "nodes"))
    seconds = _part(record.result, "timing").get("total")
    parts = [
        f"{_text(ranks, 20)} {plural(ranks, 'rank')} on {count_of(nodes, 'node')}" if ranks else "",
        f"started {_moment(record.run.get('started'))}" if _moment(record.run.get("started")) else "",
        f"took {duration(seconds)}" if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else "",
        f"exit {_text(record.result['exit'], 20)}" if "exit" in record.result else "",
    ]
    return "; ".join(p for p in parts if p)


def _verdict(record: Record) -> dict[str, Any]:
    """Cause, culprit, victims, evidence, fix; of a run without a failure the sentence alone."""
    verdict = record.verdict
    confidence, seconds = verdict.get("confidence"), verdict.get("detected_after_s")
    victims = [v for v in _list(verdict, "victims") if isinstance(v, int)]
    return {
        "message": _text(verdict.get("message")), "cause": _text(verdict.get("cause"), 100),
        "failed": verdict.get("status") == "fail",
        "confidence": f"{confidence:.0%}" if isinstance(confidence, (int, float)) and 0 <= confidence <= 1 else "",
        "where": [(k, _text(v, 200)) for k, v in _part(verdict, "where").items()],
        "victims": _text(ranges(victims)) if victims else "",
        "evidence": [_text(line) for line in _list(verdict, "evidence")[:LINES]],
        "remedy": _text(verdict.get("remedy"), 4000).splitlines(),
        "others": [(_text(o.get("id"), 100), _text(o.get("message"))) for o in _list(verdict, "runners_up")[:LINES]
                   if isinstance(o, Mapping)],
        "after": duration(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else "",
    }  # fmt: skip


def _findings(record: Record) -> list[dict[str, Any]]:
    """All but the verdict itself, failures first; those of the events where there is no result."""
    rows = _list(record.result, "findings") or [e for e in record.events if e.get("event") == "finding"]
    said = record.verdict.get("message")
    found = [f for f in rows if isinstance(f, Mapping) and f.get("message") and f.get("message") != said]
    found.sort(key=lambda f: ORDER.index(_status(f)))
    return [{"status": _status(f), "message": _text(f.get("message")), "remedy": _text(f.get("remedy")),
             "id": _text(f.get("id"), 80), "check": _text(f.get("check"), 80),
             "evidence": [_text(line) for line in _list(f, "evidence")[:LINES]]} for f in found[:FINDINGS]]  # fmt: skip


def _status(finding: Document) -> str:
    status = finding.get("status")
    return status if isinstance(status, str) and status in ORDER else "unknown"


def _attempts(record: Record) -> list[tuple[str, str, str]]:
    """(number, outcome, why and what followed) where there were several."""
    rows = [a for a in _list(record.result, "attempts") if isinstance(a, Mapping)]
    return [(_text(a.get("attempt"), 20), _text(a.get("outcome"), 40), _why(_part(a, "verdict")))
            for a in rows[:FINDINGS]] if len(rows) > 1 else []  # fmt: skip


def _why(verdict: Document) -> str:
    return "; ".join(_text(verdict[key]) for key in ("message", "decision") if verdict.get(key))


# -- tests, checks ---------------------------------------------------------------------------------


def _maps(record: Record, names: Sequence[str]) -> list[LinkMap]:
    """Heatmaps of links: of this run's tests, else of the newest test of links beside it."""
    own = list(record.rows.get("link") or [])
    if own:
        return link_maps(own, names)
    for tested in record.tests:
        maps = link_maps(tested.links, names)
        if maps:
            return [replace(link_map, title=f"{link_map.title} ({tested.name})") for link_map in maps]
    return []


def _tests(record: Record) -> list[dict[str, str]]:
    """This run's own tests, and those beside it, each as a line."""
    found = []
    own = {"": record.result} if "suite" in record.result else {}
    for name, result in [*own.items(), *((t.name, t.result) for t in record.tests)]:
        bad = [f for f in _list(result, "findings") if isinstance(f, Mapping) and f.get("status") == "fail"]
        more = f"; {len(bad)} in all" if len(bad) > 3 else ""
        said = "; ".join(_text(f.get("message"), 300) for f in bad[:3]) + more
        found.append({
            "name": _text(name or record.name, 100), "suite": _text(result.get("suite"), 40),
            "level": "ok" if result.get("ok") else "fail", "word": "PASS" if result.get("ok") else "FAIL",
            "nodes": _text(", ".join(_text(n, 60) for n in _list(result, "nodes")), 300),
            "when": _moment(result.get("started")), "said": said or _text(result.get("meaning"), 600),
        })  # fmt: skip
    return found


def _checks(record: Record) -> dict[str, Any]:
    """How many checks there were, and the rows that are not all ok."""
    rows = {check: row for check, row in record.checks.items() if row}
    bad = {check: row for check, row in rows.items() if not set(row.values()) <= {"ok", "skipped"}}
    nodes = list(next(iter(rows.values()), {}))
    worst = [n for n in nodes if any(row.get(n) not in ("ok", "skipped") for row in bad.values())]
    shown = nodes if len(nodes) <= NODES else worst[:NODES]
    return {"count": len(rows), "nodes": len(nodes), "columns": shown, "left_out": len(nodes) - len(shown),
            "rows": [(check, [(WORDS[row[n]], row[n]) for n in shown]) for check, row in bad.items()]}  # fmt: skip


# -- logs ------------------------------------------------------------------------------------------


def _texts(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Stacks and dumps, each cut to its share."""
    share = TEXTS // max(1, len(texts))
    return [(file, _text(text, share)) for file, text in texts.items()]


def _logs(excerpts: Sequence[Excerpt]) -> list[dict[str, Any]]:
    """Of each log its lines with their numbers; a number of 0 says how many lines are left out."""
    share = BUDGET // max(1, len(excerpts))
    return [
        {"file": e.file, "node": _text(e.node, 100), "rank": e.rank, "attempt": e.attempt, "size": _size(e.size),
         "total": e.lines, "lines": _lines(e, share)}
        for e in excerpts
    ]  # fmt: skip


def _lines(found: Excerpt, share: int) -> list[tuple[int, str]]:
    numbered = [(p.first + i, line) for p in found.pieces for i, line in enumerate(p.lines)]
    kept = _affordable(numbered, share)
    rows: list[tuple[int, str]] = []
    last = 0
    for number, line in [*kept, (found.lines + 1, "")]:
        if number > last + 1:
            rows.append((0, f"… {number - last - 1:,} lines are left out"))
        if number <= found.lines:
            rows.append((number, line))
        last = max(last, number)
    return rows


def _affordable(lines: Iterable[tuple[int, str]], share: int) -> list[tuple[int, str]]:
    """As many as fit, from both ends: what stands in the middle goes first."""
    found = [(number, _text(line, LINE)) for number, line in lines]
    costs = [len(escape(line)) + 60 for _, line in found]
    while found and sum(costs) > share:
        keep = max(1, int(len(found) * share / sum(costs) * 0.9))
        front = keep // 3
        found, costs = _ends(found, front, keep - front), _ends(costs, front, keep - front)
        if keep == 1:
            break
    return found


def _ends(items: list[Any], front: int, back: int) -> list[Any]:
    return items if front + back >= len(items) else items[:front] + items[len(items) - back :]


def _size(size: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size} bytes"
        size = size // 1000 if size >= 10_000 else round(size / 1000)
    return f"{size} GB"


# -- environment -----------------------------------------------------------------------------------


def _environment(record: Record) -> list[tuple[str, str]]:
    """Command, settings that are not the defaults, versions, places."""
    run = record.run
    command = [str(word) for word in _list(run, "command")]
    versions = ", ".join(f"{k} {v}" for k, v in _part(run, "versions").items())
    master = _part(record.status, "master")
    rows = [
        ("command", shlex.join(command)), ("scheduler", scheduler(run, record.preflight) if run else ""),
        ("working directory", run.get("workdir")), ("run directory" if run else "directory", record.directory),
        ("versions", versions), ("launched on", _part(run, "controller").get("host")),
        ("master", f"{master['address']}:{master.get('port')}" if master.get("address") else ""),
        *((f"setting {k}", v) for k, v in settings(run)),
    ]  # fmt: skip
    return [(_text(name, 100), _text(value)) for name, value in rows if value not in (None, "")]


_DEFAULT = re.compile(r"schema|command|name|hosts|local|dry_run|json|fold")


def settings(run: Document) -> list[tuple[str, str]]:
    """What the user set, as far as it differs from nothing: names and values."""
    from allranks.settings import RunSpec
    from allranks.settings.document import to_document

    usual = to_document(RunSpec())
    return [(name, str(value)) for name, value in _part(run, "spec").items()
            if not _DEFAULT.fullmatch(name) and usual.get(name) != value]  # fmt: skip


def _machines(record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
    return machine_groups(_part(record.preflight, "nodes"))[:NODES]


def _hosts(record: Record) -> list[tuple[str, str, str]]:
    return addresses(_part(record.preflight, "nodes"))[:NODES]
