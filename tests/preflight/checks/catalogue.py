"""The tables of docs/reference/checks.md out of the checks themselves; `make pages` writes them."""

from __future__ import annotations

from pathlib import Path

from allranks.preflight.check import GROUPS, Check
from allranks.preflight.registry import built_in

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "checks.md"
MARK = "<!-- below: make pages -->\n"


def page() -> str:
    """What is written by hand, up to the mark, and the tables."""
    parts = [PAGE.read_text(encoding="utf-8").partition(MARK)[0], MARK]
    for group in GROUPS:
        mine = [c for c in built_in().values() if c.group == group]
        parts.append(f"## {group}\n| ID | level | passes |\n|---|---|---|\n" + "".join(map(_row, mine)) + "\n")
    return "".join(parts).rstrip() + "\n"


def _row(check: Check) -> str:
    alone = ", by itself" if check.alone else ""
    return f"| {check.name} | {check.level}{alone} | {check.title.replace('|', '/')} |\n"
