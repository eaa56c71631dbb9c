"""The blocks of the pages: their language, their text, and the comments above them that say what becomes of them.

A comment stands alone on its line, above a fence with nothing but other comments and blank lines between:

    <!-- run: local -->      local, hosts or slurm: where the commands of the page run
    <!-- not run: REASON -->
    <!-- file: NAME -->      the block is a file of the page's directory
    <!-- before: COMMAND --> run before the block, and shown nowhere; `after` likewise

Two more concern the page, and stand anywhere in it:

    <!-- files: PATH -->     the files of that page, or that directory, are there too
    <!-- slow: REASON -->    the page is run by `make test-slow`
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("local", "hosts", "slurm")
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^`\s]*)\s*$")
_COMMENT = re.compile(r"^ *<!-- *(?P<key>run|not run|file|files|before|after|slow): *(?P<value>.*?) *-->$")


@dataclass(frozen=True)
class Command:
    """One command of a console block and what the page shows below it; `line` counts from 1."""

    line: int
    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its fence."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Name the page and the line, as editors take it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        return self.marks.get("file")

    @property
    def reason_not_run(self) -> str | None:
        return self.marks.get("not run")

    def commands(self) -> list[Command]:
        """Split a console block at its `$ ` prompts; a line that ends with a backslash goes on."""
        found: list[Command] = []
        lines = self.text.splitlines()
        at = 0
        while at < len(lines):
            if not lines[at].startswith("$ "):
                raise ValueError(f"{self.page.name}:{self.line + 1 + at}: expected `$ `: {lines[at]!r}")
            start = at
            text = lines[at][2:]
            while text.endswith("\\") and at + 1 < len(lines):
                at += 1
                text += "\n" + lines[at].removeprefix("> ")
            at += 1
            shown = []
            while at < len(lines) and not lines[at].startswith("$ "):
                shown.append(lines[at].rstrip())
                at += 1
            found.append(Command(self.line + 1 + start, text, tuple(shown)))
        return found


@dataclass(frozen=True)
class Page:
    """A page with its blocks, and the comments that concern all of it."""

    path: Path
    blocks: tuple[Block, ...]
    files_of: tuple[Path, ...]
    slow: str | None

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def consoles(self) -> list[Block]:
        return [block for block in self.blocks if block.language == "console"]

    @property
    def runs(self) -> bool:
        """Tell whether a command of it is run."""
        return any(block.reason_not_run is None for block in self.consoles)

    @property
    def where(self) -> str:
        """Name the one place of the page; local where no block names another."""
        named = {block.marks["run"] for block in self.consoles if "run" in block.marks}
        for place in ("slurm", "hosts"):
            if place in named:
                return place
        return "local"


def pages() -> list[Page]:
    """Read the README, every page of the docs and those of the examples."""
    deeper = [path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")]
    return [read(path) for path in sorted([ROOT / "README.md", *deeper])]


@cache
def read(path: Path) -> Page:
    """Read a page."""
    text = path.read_text(encoding="utf-8")
    comments = list(_page_comments(text))
    return Page(
        path,
        tuple(_blocks(path, text)),
        tuple((path.parent / value).resolve() for key, value in comments if key == "files"),
        next((value for key, value in comments if key == "slow"), None),
    )


def _page_comments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        comment = _COMMENT.match(line)
        if comment and comment["key"] in ("files", "slow"):
            yield comment["key"], comment["value"]


def _blocks(path: Path, text: str) -> Iterator[Block]:
    marks: dict[str, str] = {}
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        comment = _COMMENT.match(lines[at])
        if fence:
            start = at
            close = fence["indent"] + fence["ticks"]
            at += 1
            while lines[at].rstrip() != close:
                at += 1
            body = [line.removeprefix(fence["indent"]) for line in lines[start + 1 : at]]
            yield Block(path, start + 1, fence["language"], "\n".join(body) + "\n", marks)
            marks = {}
        elif comment:
            marks[comment["key"]] = comment["value"]
        elif lines[at].strip():
            marks = {}
        at += 1
