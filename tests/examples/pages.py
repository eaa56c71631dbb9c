"""The commands that the pages of examples/ show."""

import shlex
from pathlib import Path

from tests.docs.blocks import read

ROOT = Path(__file__).resolve().parents[2]


def render_words(page: Path, output: Path) -> list[str]:
    """Give the one `allranks render …` of a page without its first word, with another --output."""
    commands = [command.text for block in read(page).consoles for command in block.commands()]
    (command,) = [command for command in commands if command.startswith("allranks render ")]
    words = shlex.split(command)[1:]
    words[words.index("--output") + 1] = str(output)
    return words
