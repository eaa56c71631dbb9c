"""Lets every test say `from tests.… import …`, wherever pytest was started; Ctrl-C works in all of them."""

import signal
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

# Directories whose files take minutes come first: what comes last should be short, as the other workers then idle.
LONG = ("slurm", "hosts", "collectives_pairs", "collectives", "examples", "data", "node", "sky")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which xdist hands out files."""
    place = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.relative_to(HERE).parts[0], len(LONG)))

# Started in the background by a shell, everything below would ignore SIGINT: the tests of Ctrl-C could not pass.
signal.signal(signal.SIGINT, signal.default_int_handler)
