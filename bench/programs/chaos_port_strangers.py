"""Strangers at the port of a join: chaos_port_strangers.py HOST PORT SECONDS. Half of them stay to the end."""

import os
import resource
import socket
import sys
import time
from contextlib import suppress

WORDS = (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(300), b"\xff" * 5, b"ALLRANKS")
STAYING = 500


def main() -> None:
    """Come as fast as the machine can, until the time is over."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * STAYING, 2 * STAYING))
    where = (sys.argv[1], int(sys.argv[2]))
    ends = time.monotonic() + float(sys.argv[3])
    staying: list[socket.socket] = []
    number = 0
    while time.monotonic() < ends:
        number += 1
        stranger = socket.socket()
        stranger.settimeout(1.0)
        with suppress(OSError):
            stranger.connect(where)
            stranger.sendall(WORDS[number % len(WORDS)])
        if number % 2 and len(staying) < STAYING:
            staying.append(stranger)
        else:
            stranger.close()
    print(number)


if __name__ == "__main__":
    main()
