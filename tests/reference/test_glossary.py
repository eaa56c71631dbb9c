"""A page for users explains a word of allranks where it first uses it: by a link to the glossary, or there."""

import re
from pathlib import Path

import pytest
from tests.links import slug_of
from tests.reference.all_pages import REFERENCE

GLOSSARY = REFERENCE / "glossary.md"
ORDINARY = {"agent", "attempt", "cause", "culprit", "engine", "finding", "launcher", "role", "verdict", "victim"}
ORDINARY |= {"run directory"}  # each page shows one
ROOT = REFERENCE.parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NO_PROSE = re.compile(r"^(?:#|\||<!--).*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
EXPLAINED = re.compile(r"!?\[[^\]]*\]\([^)]*\)|(?<!\*)\*(?!\*)[^*\n]+\*(?!\*)")


def terms() -> list[str]:
    return re.findall(r"^## (.+)$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)


def unexplained(text: str) -> list[str]:
    """List the terms whose first use in the prose of a page stands in no link and is not emphasised."""
    prose = CODE.sub("", NO_PROSE.sub("", FENCE.sub("", text)))
    explained = [match.span() for match in EXPLAINED.finditer(prose)]
    missing = []
    for term in terms():
        first = re.search(rf"\b{term}s?\b", prose, re.IGNORECASE)
        if term in ORDINARY or first is None:
            continue
        if not any(start <= first.start() < end for start, end in explained):
            missing.append(term)
    return missing


def test_the_terms_stand_in_order() -> None:
    assert terms() == sorted(terms())
    assert set(terms()) > ORDINARY


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_term_is_explained_at_its_first_use(page: Path) -> None:
    hints = [f"[{term}](…/reference/glossary.md#{slug_of(term)})" for term in unexplained(page.read_text("utf-8"))]
    assert not hints, f"{page.relative_to(ROOT)} uses these without a link: {', '.join(hints)}"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("The lease ends.", ["lease"]),
        ("`--lease` and a [lease](../reference/glossary.md#lease). The lease ends.", []),
        ("allranks calls that the *rendezvous check*.", []),
        ("| lease |\n# A lease\n```text\nlease\n```\nnothing", []),
        ("Hot spares wait.", ["hot spare"]),
    ],
)
def test_a_first_use_is_seen(text: str, missing: list[str]) -> None:
    assert unexplained(text) == missing
