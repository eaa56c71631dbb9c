"""docs/reference/causes.md, checks.md and a page for each cause and check, from the tables."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.reference.examples import checks_that_find, example_of, sentences_of
from tests.reference.settings_page import cell

from allranks.diagnose.causes import CAUSES, Cause
from allranks.exitcodes import MEANINGS
from allranks.gang.plugins import built_in
from allranks.preflight.check import GROUPS
from allranks.report.explained import ExplainedPage, cause_page, check_page

MARK = "<!-- below: make pages -->\n"
TOCTREE = """
```{{toctree}}
:hidden:
:glob:

{0}/*
```
"""


def causes_index(page: Path) -> str:
    """What is written by hand, up to the mark, and a row for each cause."""
    titles = "| cause | it is at fault when | charged to | exit code |\n|---|---|---|---|\n"
    rows = "".join(
        f"| [{c.id}](causes/{c.id}.md) | {cell(c.meaning)} | {c.charge.value} | {_codes(c)} |\n"
        for c in CAUSES.values()
    )
    return by_hand(page) + titles + rows + TOCTREE.format("causes")


def checks_index(page: Path) -> str:
    """What is written by hand, up to the mark, and a table for each group."""
    parts = [by_hand(page)]
    for group in GROUPS:
        checks = [check for check in built_in().values() if check.group == group]
        rows = "".join(f"| [{c.name}](checks/{c.name}.md) | {c.level} | {cell(c.title)} |\n" for c in checks)
        parts.append(f"## {group}\n| ID | level | passes when |\n|---|---|---|\n{rows}\n")
    return "".join(parts).rstrip() + "\n" + TOCTREE.format("checks")


def by_hand(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition(MARK)[0] + MARK


def _codes(cause: Cause) -> str:
    failed, not_failed = cause.ends.value
    return str(failed) if failed == not_failed else f"{failed}, {not_failed} where no rank failed"


def pages_of_causes() -> Iterator[tuple[str, str]]:
    """The name of each page below docs/reference, and its text."""
    for cause in CAUSES.values():
        text = _markdown(cause_page(cause)) + _found_by(cause.id) + _example(cause.id)
        yield f"causes/{cause.id}.md", text


def _markdown(page: ExplainedPage) -> str:
    parts = [f"# {page.name}\n{page.summary}\n"]
    for section in page.sections:
        if len(section.paragraphs) > 1 and section.heading in ("Compares", "Fix"):
            text = "\n".join(f"- {paragraph}" for paragraph in section.paragraphs)
        else:
            text = "\n\n".join(section.paragraphs)
        parts.append(f"\n## {section.heading}\n{text}\n")
    return "".join(parts)


def _found_by(cause: str) -> str:
    checks = checks_that_find(cause)
    if not checks:
        return ""
    rows = "".join(f"| [{name}](../checks/{name}.md) | {cell(built_in()[name].title)} |\n" for name in checks)
    return f"\n## Checks that find it before a run\n| check | passes when |\n|---|---|\n{rows}"


def _example(cause: str) -> str:
    example = example_of(cause)
    if example is None:
        return ""
    text = "\n## Example\n"
    if example.log:
        text += f"Lines of a log:\n{block(example.log)}`allranks diagnose` says of them:\n"
    if example.is_warning:
        text += "The warning of a run that goes on:\n"
    return f"{text}{block(example.lines)}<!-- proved: {example.source} -->\n"


def pages_of_checks() -> Iterator[tuple[str, str]]:
    """The name of each page below docs/reference, and its text."""
    for check in built_in().values():
        yield f"checks/{check.name}.md", _markdown(check_page(check)) + _says(check.name)


def _says(check: str) -> str:
    sentences = sentences_of(check)
    if not sentences:
        return ""
    lines = [line for said in sentences for line in (f"{said.status:<8}{said.message}", f"{'':<8}{said.remedy}")]
    named = [f"[{said.id}](../causes/{said.id}.md)" for said in sentences if said.id in CAUSES]
    causes = f"Causes: {', '.join(dict.fromkeys(named))}.\n" if named else ""
    return f"\n## What it says\n{block(lines)}{causes}"


def block(lines: Iterable[str]) -> str:
    return "".join(["```text\n", *(f"{line.rstrip()}\n" for line in lines), "```\n"])


def exit_codes_page() -> str:
    rows = "".join(f"| {code} | {cell(meaning)} |\n" for code, meaning in MEANINGS.items())
    return f"""# Exit codes
<!-- `make pages` writes this page from src/allranks/exitcodes.py. -->

Every command has the same codes. Of a run that fails, the cause of the verdict decides, and [causes](causes.md) has the
code of each.

| code | meaning |
|---|---|
{rows}"""
