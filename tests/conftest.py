"""Let every test say `from tests.… import …`, wherever pytest was started; settings that hold for all tests."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

# Directories whose files take minutes come first: what comes last should be short, as the other workers then idle.
LONG = ("slurm", "hosts", "collectives_pairs", "collectives", "examples", "data", "node", "sky")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which xdist hands out files."""
    place = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.relative_to(HERE).parts[0], len(LONG)))


# A busy machine makes examples slow, which is no finding: no deadline, no health check of speed. The examples are the
# same in every run. `HYPOTHESIS_PROFILE=search` looks for new ones.
ANY_SPEED = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow, HealthCheck.data_too_large)}
settings.register_profile("same", derandomize=True, database=None, **ANY_SPEED)
settings.register_profile("search", print_blob=True, **ANY_SPEED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Started in the background by a shell, everything below would ignore SIGINT: the tests of Ctrl-C could not pass.
signal.signal(signal.SIGINT, signal.default_int_handler)
