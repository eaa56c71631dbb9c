"""Pages that are saved: one file each, nothing fetched from elsewhere, everything escaped (reads its templates).

Texts come from programs and other machines: each is cut as it is written, and what no page may hold is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from allranks.diagnose.words import utc
from allranks.findings import Finding
from allranks.runs.documents import PreflightDocument, SuiteResult
from allranks.text import cut, format_percent, format_rate, format_size_option, format_time

from .checks_table import WORDS, Rows, counts

LONGEST = 2000  # characters of a text; what may be longer is written line by line
LINES = 40  # of evidence
FINDINGS = 200
ORDER = ("fail", "warn", "unknown")
# What no page may hold: control characters, and halves of characters (they cannot be written as UTF-8).
NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@cache
def environment() -> Environment:
    """Make templates that escape and cut whatever stands in them, and fail on a name that they do not know."""
    templates = Environment(
        loader=PackageLoader("allranks.report"), autoescape=True, undefined=StrictUndefined, finalize=_cut
    )
    templates.filters.update(
        place="{:.1f}".format,  # in a drawing
        level=finding_level,
        moment=moment,
        time=format_time,
        percent=format_percent,
        rate=format_rate,
        size=format_size_option,
    )
    return templates


def _cut(value: object) -> object:
    """Cut a text; Markup is ours, and complete."""
    return cut(value, LONGEST) if type(value) is str else value


def render(template: str, **context: object) -> str:
    """Write a page, or a drawing to stand in one."""
    return NOT_TEXT.sub("\ufffd", environment().get_template(template).render(context))


def moment(seconds: float | None) -> str:
    """Write unix seconds; empty for a time that no clock shows."""
    if seconds is None or not 0 < seconds < 1e11:
        return ""
    return utc(seconds)


def capped(lines: Sequence[str]) -> list[str]:
    """Give the first lines, and how many more there are."""
    if len(lines) <= LINES:
        return list(lines)
    return [*lines[:LINES], f"and {len(lines) - LINES} more"]


def findings_of(findings: Iterable[Finding], except_for: str = "") -> list[Finding]:
    """List findings, failures first, without those whose message is shown elsewhere."""
    shown = [finding for finding in findings if finding.message not in ("", except_for)]
    return sorted(shown, key=lambda finding: ORDER.index(finding_level(finding)))[:FINDINGS]


def test_level(result: SuiteResult) -> str:
    """Say how a test or check ended: ok, warn or fail."""
    if not result.ok:
        return "fail"
    return "warn" if any(finding.status == "warn" for finding in findings_of(result.findings)) else "ok"


test_level.__test__ = False  # type: ignore[attr-defined]  # for pytest


def finding_level(finding: Finding) -> str:
    """Give a status that the style sheet has."""
    return finding.status if finding.status in ORDER else "unknown"


def check_page(
    name: str,
    saved: PreflightDocument,
    findings: Sequence[Finding],
    rows: Rows,
    titles: Mapping[str, str],
    explained: Sequence[tuple[str, Sequence[Sequence[str]]]] = (),
) -> str:
    """Write the page of a check; `explained` are further tables, each with its title."""
    return render(
        "check.html",
        name=name,
        summary=counts(findings, rows),
        covered=saved.covered,
        findings=findings_of(findings),
        nodes=list(saved.nodes),
        rows=rows,
        titles=titles,
        words=WORDS,
        explained=explained,
    )
