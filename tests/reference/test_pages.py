"""The generated pages of docs/reference are current, and say something."""

import pytest
from tests.reference.all_pages import GENERATED_FOLDERS, REFERENCE, generated
from tests.reference.examples import example_of

from allranks.diagnose.causes import CAUSES
from allranks.settings.table import SETTINGS


@pytest.fixture(scope="module", name="pages")
def generated_pages() -> dict[str, str]:
    return generated()


def test_every_page_is_current(pages: dict[str, str]) -> None:
    folders = [REFERENCE / folder for folder in GENERATED_FOLDERS]
    there = {path.relative_to(REFERENCE).as_posix() for folder in folders for path in folder.iterdir()}
    assert there == {name for name in pages if "/" in name}
    stale = [name for name, text in pages.items() if (REFERENCE / name).read_text(encoding="utf-8") != text]
    assert stale == [], "`make pages` writes them"


def test_every_cause_has_an_example() -> None:
    assert [cause for cause in CAUSES if example_of(cause) is None] == []


def test_every_setting_of_a_command_is_on_its_page(pages: dict[str, str]) -> None:
    for row in SETTINGS.values():
        for verb in set(row.commands.split()) - {"rendered"}:
            assert f"`{row.option}`" in pages[f"commands/{verb}.md"], (row.name, verb)
