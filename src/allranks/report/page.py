"""Pages that are saved: one file each, nothing fetched from elsewhere, everything escaped (reads its templates)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from allranks.findings import Finding

from .table import WORDS, Rows, counts


@cache
def environment() -> Environment:
    """Templates that escape whatever stands in them, and fail on a name that they do not know."""
    templates = Environment(loader=PackageLoader("allranks.report"), autoescape=True, undefined=StrictUndefined)
    templates.filters["place"] = "{:.1f}".format  # in a drawing
    return templates


def drawing(template: str, plot: object) -> str:
    """Draw a plot as SVG text, to stand in a page."""
    return environment().get_template(template).render(plot=plot)


def check_page(
    name: str, seen: Mapping[str, Any], found: Sequence[Finding], rows: Rows, titles: Mapping[str, str],
    explained: Sequence[tuple[str, Sequence[Sequence[str]]]] = (),
) -> str:  # fmt: skip
    """The page of a check; `explained` are further tables, each with its title."""
    order = ("fail", "warn", "unknown")
    return environment().get_template("check.html").render(
        name=name, summary=counts(found, rows), covered=seen.get("covered") or "",
        findings=sorted((f.to_json() | {"check": f.check} for f in found), key=lambda f: order.index(f["status"])),
        nodes=list(seen["nodes"]), rows=rows, titles=titles, words=WORDS, explained=explained,
    )  # fmt: skip
