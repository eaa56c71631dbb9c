"""The order of the pages: those with most commands first, as the other workers would else wait for the last of them."""

import pytest
from tests.docs.blocks import Page

LONGEST = "README.md"  # three runs of four ranks, each with torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the pages that are run; all else keeps its order."""
    items.sort(key=lambda item: -weight_of(item))


def weight_of(item: pytest.Item) -> int:
    """Count the commands of the page that a test runs; 0 for any other test."""
    callspec = getattr(item, "callspec", None)
    page = callspec.params.get("page") if callspec is not None else None
    if not isinstance(page, Page):
        return 0
    if page.name == LONGEST:
        return 1000
    consoles = [block for block in page.consoles if block.reason_not_run is None]
    return sum("allranks" in command.text for block in consoles for command in block.commands())
