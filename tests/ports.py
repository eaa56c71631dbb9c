"""A port for a test that runs beside others."""

import contextlib
import random
import socket


def free_port() -> int:
    """Return a port that no program has, outside the range that the kernel hands out by itself."""
    while True:
        port = random.randint(11000, 30000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("0.0.0.0", port))
            return port
