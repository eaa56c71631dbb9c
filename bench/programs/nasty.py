"""A rank with children that hide: nasty.py wait|raise [RANK]. Leaves up-RANK-PID, and child-RANK-KIND for each.

Ranks with an odd number ignore SIGTERM, so ending them takes the whole grace. At the file `go` the rank that is
named raises, and leaves the time of it in `fault`.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
RANK = int(os.environ["RANK"])
libc = ctypes.CDLL(None)

# Runs after execve with an empty environment and a false argv[0]; execve had reset name and dumpable flag.
HIDDEN = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.prctl(15, b"kworker/u8:2", 0, 0, 0)
libc.prctl(4, 0, 0, 0, 0)
open(%r, "w").close()
while True:
    time.sleep(100)
"""


def up(kind: str) -> str:
    return os.path.abspath(f"child-{RANK}-{kind}")


def daemon() -> None:
    """Double fork, own session, no descriptors, another name, not dumpable."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            libc.prctl(PR_SET_NAME, b"systemd-udevd", 0, 0, 0)
            libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
            open(up("daemon"), "w").close()
            os.closerange(0, 256)
            while True:
                time.sleep(100)
        os._exit(0)
    os.wait()


def hidden() -> None:
    """All of it: double fork, own session, empty environment, false argv, another name, not dumpable."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            os.execve(sys.executable, ["[kworker/u8:2]", "-I", "-S", "-c", HIDDEN % up("hidden")], {})
        os._exit(0)
    os.wait()


def stripped() -> None:
    """execve with an empty environment, in its own session."""
    if os.fork() == 0:
        os.setsid()
        open(up("stripped"), "w").close()
        os.execve("/bin/sleep", ["postgres: writer", "4000"], {})


def deaf() -> None:
    """A data loader's worker that ignores SIGTERM."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(up("deaf"), "w").close()
        while True:
            time.sleep(100)


KINDS: tuple[Callable[[], None], ...] = (daemon, hidden, stripped, deaf)


def main() -> None:
    if RANK % 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for kind in KINDS:
        kind()
    with open(f"up-{RANK}-{os.getpid()}", "w"):
        pass
    while not os.path.exists("go"):
        time.sleep(0.005)
    if sys.argv[1] == "raise" and int(sys.argv[2]) == RANK:
        with open("fault.part", "w") as file:
            file.write(repr(time.time()))
        os.rename("fault.part", "fault")
        raise ValueError("bad batch")
    while True:
        time.sleep(1)


main()
