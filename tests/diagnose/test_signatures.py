"""Every row: an example that it alone takes, a source, a cause; and nothing that the scan would lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.loose.lines import read_line
from allranks.diagnose.loose.rules import RULES, SOURCES
from allranks.diagnose.loose.scan import Filter
from allranks.diagnose.loose.signatures import BY_ID, ROWS, Role, row_of

HERE = Path(__file__).parent
EXAMPLES = [
    tuple(line.split(": ", 1)) for line in (HERE / "examples.txt").read_text().splitlines() if not line.startswith("#")
]


@pytest.mark.parametrize(("identity", "text"), EXAMPLES, ids=[f"{i}-{n}" for n, (i, _) in enumerate(EXAMPLES)])
def test_an_example_is_taken_by_its_row(identity: str, text: str) -> None:
    (line,) = read_line(text)
    found = row_of(line.text)
    assert found is not None
    assert found[0].id == identity


@pytest.mark.parametrize("text", [text for _, text in EXAMPLES])
def test_the_scan_keeps_every_example_among_lines_of_no_interest(text: str) -> None:
    dull = "".join(f"step {n} loss 0.{n:06d} lr 1e-4\n" for n in range(500))
    scan = Filter()
    scan.feed((dull + text + "\n" + dull).encode())
    assert (500, text.encode()) in scan.kept
    assert len(scan.kept) == 1


def test_every_row_has_an_example_and_a_source() -> None:
    assert {i for i, _ in EXAMPLES} == set(BY_ID)
    assert len(BY_ID) == len(ROWS)
    assert all(row.source for row in ROWS)


def test_every_row_that_decides_names_a_label() -> None:
    deciding = [r for r in ROWS if r.role in (Role.ROOT, Role.WEAK, Role.SYMPTOM)]
    assert {r.cause for r in deciding} <= set(CAUSES)
    assert {r.also for r in ROWS if r.also} <= set(CAUSES)


def test_every_rule_that_a_row_names_exists_and_has_a_source() -> None:
    assert {r.rule for r in ROWS if r.rule} <= set(RULES)
    assert all(SOURCES.values())
