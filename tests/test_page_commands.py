"""Every `allranks …` that README, docs and examples show is one that the command line takes: no option was renamed.

Nothing is run: `--help` behind the verb ends it once all words are read. What a block prints is another test's.
"""

import re
import shlex
from pathlib import Path

import pytest
from tests.shell import Shell

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "reference"  # these pages are made from the tables of the command line
INLINE = re.compile(r"`(allranks [^`]+)`")
BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPERATORS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1"}
FEWEST = 250  # commands of all pages


def pages() -> list[Path]:
    docs = [page for page in sorted((ROOT / "docs").rglob("*.md")) if GENERATED not in page.parts]
    return [ROOT / "README.md", *docs, *sorted((ROOT / "examples").rglob("*.md"))]


def commands_of(text: str) -> list[str]:
    """What stands in backquotes, and the lines of blocks."""
    lines = [line.removeprefix("$ ") for block in BLOCK.findall(text) for line in block.splitlines()]
    inline = [command.replace("\\|", "|") for command in INLINE.findall(BLOCK.sub("", text))]
    return [*inline, *(line for line in lines if line.startswith("allranks "))]


def words_of(command: str) -> list[str]:
    """The words of the first command of a line, without `…` and comments."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if word in OPERATORS:
            break
        if word != "…":
            words.append(word)
    return words


def test_the_pages_have_commands() -> None:
    assert sum(len(commands_of(page.read_text("utf-8"))) for page in pages()) >= FEWEST


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_are_taken(page: Path, shell: Shell) -> None:
    refused = []
    for command in dict.fromkeys(commands_of(page.read_text("utf-8"))):
        _, *words = words_of(command)
        depth = 2 if words[0] in ("render", "data") and len(words) > 1 else 1
        answer = shell(*words[:depth], "--help", *words[depth:])
        if answer.code != 0:
            refused.append(f"{command}\n{answer.err or answer.out}")
    assert not refused, "\n".join(refused)
