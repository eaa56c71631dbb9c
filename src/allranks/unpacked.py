"""Where allranks.pyz has unpacked itself, who removes that, and the words that start this allranks again (IO)."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from pathlib import Path

PREFIX = "allranks-pyz-"  # of the directory; `engines.zipapp` makes it
HELD = "held"  # a file in it: another process than the one that unpacked it removes the directory
LISTENS = "ALLRANKS_LISTENS"  # set where ssh gives a command no terminal, by engines.elsewhere
HOME = Path(__file__).parent.parent
WITHOUT_THE_DIRECTORY = "import sys; del sys.path[0]; import runpy; runpy.run_module('allranks', {}, '__main__', True)"


def unpacked_archive() -> Path | None:
    """Return the directory into which allranks.pyz has unpacked this allranks; None for an installed one."""
    if not HOME.name.startswith(PREFIX):
        return None
    return HOME


def own_command() -> tuple[str, ...]:
    """Return the words that start this allranks in another process, or on another machine that has its files.

    `-m` alone would import from the working directory, where another user may have put a `secrets.py`.
    """
    script = os.path.realpath(sys.argv[0])
    if unpacked_archive() is not None or os.path.dirname(script) == str(HOME):  # the latter: engines.elsewhere
        return (sys.executable, script)
    if sys.version_info >= (3, 11):
        return (sys.executable, "-P", "-m", "allranks")
    return (sys.executable, "-c", WITHOUT_THE_DIRECTORY)


def hold_archive() -> None:
    """Keep what allranks.pyz has unpacked beyond this process, for a child that goes on: it calls `remove_archive`."""
    place = unpacked_archive()
    if place is not None:
        (place / HELD).touch()


def remove_archive() -> None:
    """Remove what allranks.pyz has unpacked."""
    place = unpacked_archive()
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)


def heed_signals_of_the_other_side() -> None:
    """Without a terminal, take the words of standard input as signals, and its end as a hangup."""
    if os.environ.pop(LISTENS, ""):
        threading.Thread(target=_heed, name="other-side", daemon=True).start()


def _heed() -> None:
    while words := os.read(0, 4096):
        for name in words.decode("ascii", "replace").split():
            os.kill(os.getpid(), signal.Signals[name])
    os.kill(os.getpid(), signal.SIGHUP)
