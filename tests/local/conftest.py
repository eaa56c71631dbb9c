"""What tests of runs on virtual nodes share."""

from collections.abc import Iterator

import pytest
from tests.local.running import LocalRun


@pytest.fixture(autouse=True)
def no_run_outlives_its_test() -> Iterator[None]:
    """End what a test that failed has left: its controller ends the ranks."""
    yield
    LocalRun.end_all()
