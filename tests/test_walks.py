"""The walks of docs/architecture.md name files that are there, each joined by an import to one before it."""

import re
from pathlib import Path

import pytest
from tests.test_purity import PACKAGE, imported, tree_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Four walks\n")[2].partition("\n## ")[0]
WALKS = re.findall(r"^\d\. (.*(?:\n   - .*)*)", SECTION, re.MULTILINE)
FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")


def files_imported(file: str) -> set[str]:
    """The files of the package that a file imports, wherever in it."""
    found = set()
    for _, parts in imported(tree_of(PACKAGE / file), PACKAGE / file):
        for inside in ("/".join(parts[1:]), "/".join(parts[1:-1])):
            found.update(path for path in (f"{inside}.py", f"{inside}/__init__.py") if (PACKAGE / path).is_file())
    return found


def test_there_are_four() -> None:
    assert len(WALKS) == 4


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition("**")[2].partition("**")[0])
def test_each_file_of_a_walk_is_joined_to_one_before_it(walk: str) -> None:
    before: list[str] = []
    for stretch in walk.split("\u2016"):
        for number, file in enumerate(FILE.findall(stretch)):
            is_joined = any(file in files_imported(other) or other in files_imported(file) for other in before)
            assert is_joined or number == 0, f"{file} is joined to no file before it"
            before.append(file)


@pytest.mark.parametrize("file", sorted(set(FILE.findall(PAGE))))
def test_every_file_that_the_page_names_is_there(file: str) -> None:
    assert (PACKAGE / file).is_file() or (ROOT / file).is_file()
