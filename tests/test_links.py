"""Links of the pages lead somewhere, and what checks them sees what does not."""

from pathlib import Path

import pytest
from tests.links import Link, anchors, broken, links, pages, slug_of


def test_every_link_leads_somewhere() -> None:
    assert {"README.md", "guide.md", "causes.md"} <= {page.name for page in pages()}
    assert broken() == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("causes.md", None),
        ("causes.md#causes", None),
        ("../index.md", None),
        ("https://example.org/nowhere", None),
        ("absent.md", "file not found"),
        ("causes.md#absent", "heading not found in docs/reference/causes.md"),
        ("../../../outside", "file not found"),
        ("../../..", "file outside the repository"),
    ],
)
def test_a_broken_link_is_named(target: str, problem: str | None) -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "causes.md"
    assert Link(page, target).problem() == problem


def test_links_and_headings_are_read_as_a_reader_sees_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`: three\n## Same\n## Same\n(label)=\n[a](b.md#c \"title\") `[no](code.md)` <https://x.org/y>\n"
        "```text\n# no heading\n[no](fence.md)\n```\n![picture](p.png)\n<img src=\"q.png\">\n"
        "[d][one] [e][absent]\n\n[one]: f.md\n"
    )
    targets = [link.target for link in links(page)]
    assert targets == ["b.md#c", "https://x.org/y", "p.png", "f.md", "[absent]", "q.png"]
    assert anchors(page) == {"one-two-three", "same", "same-1", "label"}
    assert slug_of("`run --audit-data N`") == "run---audit-data-n"
