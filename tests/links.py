"""Check the links of the Markdown pages: each file and each heading that a link names is there. Fetches nothing.

`python -m tests.links` prints what is broken, and how many links to other sites there are (`--list`: which).
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1`*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?:<([^>]*)>|([^)\s]*))(?:\s+\"[^\"]*\")?\)|<(https?://[^>\s]+)>")
_TARGET = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)  # of the links [words][label]
_LABELLED = re.compile(r"\[[^\]]+\]\[([^\]]+)\]")
_IMAGE = re.compile(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
_LABEL = re.compile(r"^\(([\w-]+)\)=$|<a (?:id|name)=\"([^\"]+)\"", re.MULTILINE)


@dataclass(frozen=True)
class Link:
    """What a page links to, as it is written there."""

    page: Path
    target: str

    @property
    def is_external(self) -> bool:
        return re.match(r"[a-z][a-z0-9+.-]*:", self.target) is not None

    def problem(self) -> str | None:
        """Say what the target lacks; None where it is there."""
        if self.is_external:
            return None
        path, _, anchor = unquote(self.target).partition("#")
        file = (self.page.parent / path).resolve() if path else self.page
        if not file.exists():
            return "file not found"
        if not file.is_relative_to(ROOT):
            return "file outside the repository"
        if anchor and file.suffix == ".md" and anchor not in anchors(file):
            return f"heading not found in {file.relative_to(ROOT)}"
        return None


def pages() -> list[Path]:
    """Every Markdown page of the project."""
    folders = ("docs", "examples", "bench", ".ci")
    deeper = [page for folder in folders for page in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *deeper])


def links(page: Path) -> Iterator[Link]:
    """Each link of a page, in order; what stands in code is none."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for match in _LINK.finditer(text):
        yield Link(page, match[1] or match[2] or match[3] or "")
    targets = dict(_TARGET.findall(text))
    for label in _LABELLED.findall(text):
        yield Link(page, targets.get(label, f"[{label}]"))
    for match in _IMAGE.finditer(text):
        yield Link(page, match[1])


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names by which a link can point into a page: GitHub's for headings, and labels."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    names: set[str] = set()
    for heading in _HEADING.findall(text):
        slug = slug_of(heading)
        copies = (slug if number == 0 else f"{slug}-{number}" for number in range(1000))
        names.add(next(name for name in copies if name not in names))
    return frozenset(names | {label or identifier for label, identifier in _LABEL.findall(text)})


def slug_of(heading: str) -> str:
    """Name a heading as GitHub and MyST do: lower case, no punctuation, hyphens for spaces."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip()
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def broken() -> list[str]:
    """Say which links of which pages lead nowhere."""
    return [
        f"{page.relative_to(ROOT)}: {link.target}: {problem}"
        for page in pages()
        for link in links(page)
        if (problem := link.problem()) is not None
    ]


def main() -> int:
    """Print broken links; 1 where there are any."""
    external = sorted({link.target for page in pages() for link in links(page) if link.is_external})
    if "--list" in sys.argv:
        print("\n".join(external))
    problems = broken()
    print("\n".join([*problems, f"{len(problems)} broken links, {len(external)} links to other sites, not followed"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
