"""Fixtures for tests with real ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fabric.gang import Gang


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts ranks; kills what is left of them."""
    started: list[Gang] = []

    def start(*words: Any, **more: Any) -> Gang:
        started.append(Gang(tmp_path, *words, **more))
        return started[-1]

    yield start
    for item in started:
        item.end()
