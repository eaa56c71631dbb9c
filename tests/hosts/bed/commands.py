"""Running the system's tools, with an error that says which and why."""

import subprocess
import time

from tests.hosts.waiting import BOUND

BUSY = ("Device or resource busy", "Resource temporarily unavailable", "No buffer space available", "was interrupted")


class BedError(Exception):
    """The test bed itself failed: not a finding about what is tested."""


class Unavailable(BedError):
    """This machine lacks a part (a device, a kernel option): tests skip with this text."""


def call(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Standard output of a command; BedError with its standard error if it fails.

    Tried again where the kernel says that it is busy, unless it does not matter whether the command fails.
    """
    end = time.monotonic() + BOUND
    while True:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=BOUND, check=False)
        busy = done.returncode != 0 and any(words in done.stderr for words in BUSY)
        if not (check and busy) or time.monotonic() > end:
            break
        time.sleep(0.1)
    if check and done.returncode != 0:
        raise BedError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}\n{stdin or ''}")
    return done.stdout


def in_netns(netns: str, *argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Like `call`, in a network namespace only (`ip netns exec` would remount /sys)."""
    return call("nsenter", f"--net=/run/netns/{netns}", *argv, stdin=stdin, check=check)


def batch(*lines: str, netns: str | None = None, check: bool = True) -> None:
    """Many `ip` commands in one process; without `check` each may fail by itself."""
    where = ["-n", netns] if netns else []
    force = [] if check else ["-force"]
    call("ip", *where, *force, "-batch", "-", stdin="\n".join(lines) + "\n", check=check)
