"""The page of `allranks test`: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

Texts and figures come from other machines: each is cut, each list has an end, and what isn't as expected is left out.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from allranks.text import format_rate, format_size_option, format_time

from .linkmaps import link_maps
from .page import environment
from .plot import busbw_plot, number
from .text import ranges

Document = Mapping[str, Any]
Row = Mapping[str, Any]

LONGEST = 2000  # characters of a text
FINDINGS = 200
LINES = 40  # of evidence, of details
ROWS = 500  # of a table
NODES = 64  # by name
WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "skip", "hang": "HANG"}
CLASSES = {"pass": "ok", "fail": "fail", "skip": "skipped", "hang": "fail"}
ORDER = ("fail", "warn", "unknown")
# What no page may hold: control characters, and halves of characters (they can't be written as UTF-8).
NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def test_page(document: Document) -> str:
    """The page as HTML text; any part of the document may be absent."""
    text = environment().get_template("test.html").render(
        run=_text(document.get("run") or "test"), passed=_passed(document), summary=_summary(document),
        findings=_findings(document), tests=_tests(_rows(document, "collectives")),
        plot=Markup(busbw_plot(_rows(document, "bandwidth"))),  # noqa: S704  (plot.py escapes)
        rates=_rates(_rows(document, "bandwidth")),
        maps=link_maps(_rows(document, "links"), [_text(n, 100) for n in _list(document, "nodes")]),
        stages=[_stage(row) for row in _rows(document, "stages")[:LINES]],
        statement=[_text(line) for line in _list(document, "statement")[:ROWS]],
        environment=_environment(document),
    )  # fmt: skip
    return NOT_TEXT.sub("\ufffd", text)


test_page.__test__ = False  # type: ignore[attr-defined]  # for pytest


def _list(document: Document, key: str) -> list[Any]:
    found = document.get(key)
    return list(found) if isinstance(found, (list, tuple)) else []


def _rows(document: Document, key: str) -> list[Row]:
    return [row for row in _list(document, key) if isinstance(row, Mapping)]


def _part(document: Document, key: str) -> Document:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: object, longest: int = LONGEST) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _seconds(value: object) -> str:
    found = number(value)
    return "" if found is None or found < 0 else format_time(found)


def _count(value: object, one: str) -> str:
    return f"{value} {one}" + ("" if value == 1 else "s")


def _capped(lines: Iterable[str], most: int = LINES) -> list[str]:
    """The first of them, and how many more there are."""
    found = list(lines)
    return found if len(found) <= most else [*found[:most], f"and {len(found) - most} more"]


# -- the head --------------------------------------------------------------------------------------


def _passed(document: Document) -> bool:
    return bool(document["ok"] if "ok" in document else document.get("exit") == 0)


def _summary(document: Document) -> str:
    """`suite sync; 4 ranks on 2 nodes; exit 0`."""
    nodes, ranks = len(_list(document, "nodes")), number(document.get("ranks"))
    on = f"{_count(int(ranks), 'rank')} on " if ranks else ""
    parts = [f"suite {_text(document['suite'], 40)}" if document.get("suite") else "",
             f"{on}{_count(nodes, 'node')}" if nodes else "", _started(document),
             f"exit {_text(document['exit'], 20)}" if document.get("exit") is not None else ""]  # fmt: skip
    return "; ".join(part for part in parts if part)


def _started(document: Document) -> str:
    seconds = number(document.get("started"))
    if seconds is None or not 0 < seconds < 1e11:
        return ""
    return f"started {datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _findings(document: Document) -> list[dict[str, Any]]:
    """Failures first; of each its sentence, its remedy, its evidence."""
    rows = sorted(_rows(document, "findings"), key=lambda f: ORDER.index(_status(f)))
    return [
        {"status": _status(f), "message": _text(f.get("message")), "remedy": _text(f.get("remedy")),
         "id": _text(f.get("id"), 80), "check": "",
         "evidence": _capped(_text(line) for line in _list(f, "evidence"))}
        for f in rows[:FINDINGS]
    ]  # fmt: skip


def _status(finding: Row) -> str:
    status = finding.get("status")
    return status if isinstance(status, str) and status in ORDER else "unknown"


# -- tests and rates -------------------------------------------------------------------------------


def _tests(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row a test, those that did not pass with all that is known of it."""
    found = []
    for row in rows[:ROWS]:
        status = str(row.get("status"))
        reason = _text(row.get("reason"))
        found.append({
            "test": _text(row.get("test"), 100), "ranks": _text(row.get("ranks"), 20),
            "word": WORDS.get(status, _text(status, 20)), "level": CLASSES.get(status, "unknown"),
            "seconds": _seconds(row.get("seconds")), "said": reason or _text(row.get("detail")),
            "more": _details(row),
        })  # fmt: skip
    return found


def _details(row: Row) -> list[str]:
    """Who came late, what each rank found, where each rank was when it hung."""
    late, hang = _part(row, "late"), _part(row, "hang")
    lines = [f"rank {_text(late.get('rank'), 20)} came {_seconds(late.get('seconds'))} late"] if late else []
    return lines + _capped(map(_failure, _rows(row, "failures"))) + _hang_lines(hang)


def _failure(failure: Row) -> str:
    """`rank 1, round 0, float32, element 3, of rank 2's data: expected 5, found 0`."""
    parts = [f"{word}{_text(failure[key], 80)}" for key, word in
             (("rank", "rank "), ("round", "round "), ("kind", ""), ("index", "element "), ("source", "from rank "))
             if failure.get(key) is not None]  # fmt: skip
    said = _text(failure.get("reason"))
    if "expected" in failure:
        said = f"expected {_text(failure['expected'], 80)}, found {_text(failure.get('found'), 80)}"
    return ", ".join(parts) + (f": {said}" if said else "")


def _hang_lines(hang: Row) -> list[str]:
    """Who had arrived, who had not, who is silent; the stacks."""
    lines = []
    for key, word in (("arrived", "had arrived"), ("missing", "had not arrived"), ("silent", "gave no sign of life")):
        ranks = [r for r in _list(hang, key) if isinstance(r, int)]
        lines += [f"{word}: {_text(ranges(ranks))}"] if ranks else []
    stacks = _part(hang, "stacks")
    for rank in list(stacks)[:LINES]:
        calls = _capped(_text(line, 300) for line in _list(stacks, rank))
        lines += [f"stack of rank {_text(rank, 20)}:", *(f"    {line}" for line in calls)]
    return lines


def _rates(rows: Sequence[Row]) -> list[list[str]]:
    """collective, size, ranks, median, quartiles, algbw, busbw, rounds."""
    found = []
    for row in rows[:ROWS]:
        size, algbw, busbw = (number(row.get(key)) for key in ("size", "algbw", "busbw"))
        found.append([
            _text(row.get("collective"), 100), "" if size is None else format_size_option(int(size)),
            _text(row.get("ranks"), 20),
            *(_seconds(row.get(key)) for key in ("median", "q1", "q3")),
            *("" if value is None else format_rate(value) for value in (algbw, busbw)), _text(row.get("rounds"), 20),
        ])  # fmt: skip
    return found


# -- stages, environment ---------------------------------------------------------------------------


def _stage(row: Row) -> dict[str, Any]:
    """The groups that failed by name, before those that passed."""
    groups = sorted(_rows(row, "groups"), key=lambda group: bool(group.get("ok")))
    failed = sum(not group.get("ok") for group in groups)
    return {
        "name": _text(row.get("name"), 100), "meaning": _text(row.get("meaning")), "failed": failed,
        "passed": len(groups) - failed, "left_out": max(0, len(groups) - ROWS),
        "groups": [{"nodes": _names(_list(g, "nodes")), "ok": bool(g.get("ok")), "seconds": _seconds(g.get("seconds"))}
                   for g in groups[:ROWS]],
    }  # fmt: skip


def _names(nodes: Sequence[object]) -> str:
    """All names of a few, of many the ends."""
    if len(nodes) > NODES:
        return f"{_text(nodes[0], 100)}, {_text(nodes[1], 100)}, … {_text(nodes[-1], 100)} ({len(nodes)} nodes)"
    return ", ".join(_text(node, 100) for node in nodes)


def _environment(document: Document) -> list[tuple[str, str]]:
    """What was tested, where and when; then whatever the document says of it under `environment`."""
    more = list(_part(document, "environment").items())[:LINES]
    rows = [("run", document.get("run")), ("directory", document.get("directory")), ("suite", document.get("suite")),
            ("nodes", _names(_list(document, "nodes"))), ("ranks", document.get("ranks")),
            ("started", _started(document).removeprefix("started ")), ("exit", document.get("exit")),
            *more]  # fmt: skip
    return [(_text(name, 80), _text(value)) for name, value in rows if value not in (None, "")]
