"""Lets every test say `from tests.… import …`, wherever pytest was started; Ctrl-C works in all of them."""

import signal
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# Started in the background by a shell, everything below would ignore SIGINT: the tests of Ctrl-C could not pass.
signal.signal(signal.SIGINT, signal.default_int_handler)
