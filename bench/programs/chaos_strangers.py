"""Strangers at the sockets of agents: chaos_strangers.py SECONDS. Half of them stay, and none says what is expected."""

import os
import socket
import sys
import time
from contextlib import suppress

WORDS = (b"", b"\0\0\0\5Jhello", os.urandom(200), b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 5)


def main() -> None:
    """Come again and again."""
    ends = time.monotonic() + float(sys.argv[1])
    staying = []
    while time.monotonic() < ends:
        for directory, _, names in os.walk("/tmp"):
            for name in names:
                if not name.endswith(".sock"):
                    continue
                for number, word in enumerate(WORDS):
                    stranger = socket.socket(socket.AF_UNIX)
                    stranger.settimeout(1.0)
                    with suppress(OSError):
                        stranger.connect(os.path.join(directory, name))
                        stranger.sendall(word)
                    if number % 2 and len(staying) < 200:
                        staying.append(stranger)
                    else:
                        stranger.close()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
