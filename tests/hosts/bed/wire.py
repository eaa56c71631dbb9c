"""A slow wire between two namespaces: `wire.py NETNS_A TAP_A NETNS_B TAP_B MS`; the TAPs live as long as this."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # run as a script
from relay import CLONE_NEWNET, open_tap, relay


def enter(netns: str) -> None:
    """The next device is made there."""
    with open(f"/run/netns/{netns}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {netns}")


if __name__ == "__main__":
    first, tap, second, other, ms = sys.argv[1:]
    enter(first)
    one = open_tap(tap)
    enter(second)
    relay(one, open_tap(other), float(ms) / 1000)
    os._exit(0)
