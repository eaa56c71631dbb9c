"""The design's rules of prose over what users read: messages, hints and help in the source, and the pages in docs.

Over docstrings and comments of the source too, there for its banned words alone.

A text of the source is a string or f-string of four words or more; values in braces count as one word. Code in
backquotes, what follows `hint:`, and code blocks are not prose. Of a table the words count, not its sentences.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "allranks"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

RECORDED = [ROOT / "docs" / "benchmarks.md"]  # its tables are what `make bench` has measured

MOST_WORDS = 25
BANNED = re.compile(
    r"\b(?:is no|are no|nobody|somebody|anybody|told|gone|eats?|afar|anew|whole lot|lame|landing|leftovers?|guards?|"
    r"watchers?|come forward|in the open)\b",
    re.IGNORECASE,
)
FEWEST_WORDS = 4  # of a string that is taken for prose
# A regular expression that is kept as text, or alternatives of one.
_PATTERN = re.compile(r"\\[bswdS(]|\(\?|[^\s|]\|[^\s|]")
# A line that closes a block of a shell, or sets a trap.
_SHELL = re.compile(r"^\s*(?:(?:fi|done|esac|\})\s*(?:;|$)|trap ['-])", re.MULTILINE)
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_DOCTEST = re.compile(r"^\s*(?:>>>|\.\.\.) .*(?:\n\s*[^\s>].*)*", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK_TARGET = re.compile(r"^\[[^\]]+\]: \S+$", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z`\"(*\[])|\n")


@dataclass(frozen=True)
class Breach:
    """A sentence and the rule that it breaks."""

    place: str  # file and line of the source, or the page's name
    rule: str
    sentence: str


def breaches_of(sentence: str, place: str) -> Iterator[Breach]:
    """Each rule that a sentence breaks."""
    plain = _CODE.sub("CODE", sentence)
    if len(plain.split()) > MOST_WORDS:
        yield Breach(place, "words", sentence)
    if re.search(r";(?:\s|$)", plain):
        yield Breach(place, "semicolon", sentence)
    if len(re.findall(r":(?:\s|$)", plain)) > 1:
        yield Breach(place, "colons", sentence)
    if word := BANNED.search(plain):
        yield Breach(place, f'banned "{word.group()}"', sentence)


def source_breaches() -> list[Breach]:
    """All breaches of messages and help in the package."""
    found: list[Breach] = []
    for path in sorted(SOURCES.rglob("*.py")):
        for line, text in _texts(ast.parse(path.read_text())):
            for sentence in sentences(text.partition("hint:")[0]):
                found += breaches_of(sentence, f"{path.relative_to(ROOT)}:{line}")
    return found


def remark_breaches() -> list[Breach]:
    """The banned words in docstrings and comments of the package, by file."""
    breaches: list[Breach] = []
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text()
        for remark in (*_docstrings(ast.parse(source)), *_comments(source)):
            plain = " ".join(_CODE.sub("CODE", _DOCTEST.sub("", remark)).split())
            for word in BANNED.finditer(plain):
                around = plain[max(0, word.start() - 40) : word.end() + 40]
                breaches.append(Breach(f"{path.relative_to(ROOT)}", "banned", around))
    return breaches


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def page_breaches() -> list[Breach]:
    """All breaches of the pages."""
    found: list[Breach] = []
    for path in PAGES:
        text = path.read_text()
        for sentence in _page_sentences(text):
            found += breaches_of(sentence, path.name)
        if path not in RECORDED:
            found += [Breach(path.name, "banned", cell) for cell in _table_cells(text) if BANNED.search(cell)]
    return found


def _table_cells(text: str) -> Iterator[str]:
    """Give the cells of a page's tables, without code. A single word is a name."""
    for line in _FENCE.sub("", text).splitlines():
        if line.startswith("|"):
            plain = _LINK.sub(r"\1", _CODE.sub("CODE", line))
            yield from (cell.strip() for cell in plain.strip("|").split("|") if " " in cell.strip())


def sentences(text: str) -> list[str]:
    """A text as sentences; a line's end ends one too."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string of a module that reads like a sentence, with its line: four words or more, no docstring, pattern or
    template."""
    passed_over: set[int] = set()
    nodes = list(ast.walk(tree))
    lists = {_name(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "split"}
    for node in nodes:
        named = _name(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Expr) or (isinstance(node, ast.Assign) and named and named in lists):  # a docstring
            passed_over.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            passed_over.update(id(part) for part in node.values)
        elif isinstance(node, ast.Call) and _name(node.func).endswith("compile"):
            passed_over.update(id(part) for part in ast.walk(node))
    for node in nodes:
        if id(node) in passed_over or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        text = _text(node)
        if text is not None and len(text.split()) >= FEWEST_WORDS and not _PATTERN.search(text) and not is_code(text):
            yield node.lineno, text


def _name(named: ast.expr) -> str:
    """The last part of a name; empty for anything else."""
    return named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")


def is_code(text: str) -> bool:
    """Whether a text is a program: a shell's, by lines that only one has, or such as Python can read.

    >>> is_code("import os; os._exit(%d)"), is_code("case $a in\\n*) exit ;;\\nesac"), is_code("h1 is down; wait")
    (True, True, False)
    """
    if _SHELL.search(text):
        return True
    try:
        ast.parse(re.sub(r"%\w", "VALUE", text).strip())
    except SyntaxError:
        return False
    return True


def _text(value: ast.expr) -> str | None:
    """A literal's text, each value in it as one word; None for anything else."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return re.sub(r"\{\w*\}", "VALUE", value.value)
    if isinstance(value, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in value.values]
        return "".join(parts)
    return None


def _page_sentences(text: str) -> Iterator[str]:
    text = _FENCE.sub("", text)
    text = _LINK_TARGET.sub("", text)
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        begins_item = re.match(r"(?:[-*+]|\d+\.)\s", stripped)
        if not stripped or stripped.startswith(("#", "|", ">", "<")) or begins_item:
            yield from sentences(_LINK.sub(r"\1", " ".join(paragraph)))
            paragraph = []
        if stripped and not stripped.startswith(("#", "|", "<")):
            paragraph.append(re.sub(r"^(?:[-*+]|\d+\.)\s+", "", stripped))
