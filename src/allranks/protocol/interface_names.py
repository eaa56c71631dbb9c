"""NCCL's rule for the interface names of NCCL_SOCKET_IFNAME (pure, Python 3.8; travels with the collective tests)."""

from __future__ import annotations


def matches_interface(name: str, pattern: str) -> bool:
    """Tell whether a name fits: matchIfList with the signs of findInterfaces (NCCL src/misc/socket.cc).

    The pattern holds prefixes; `=` at its head asks for exact names, `^` for all but them. An empty list fits any name.
    """
    excludes = pattern.startswith("^")
    rest = pattern[int(excludes) :]
    exact = rest.startswith("=")
    words = [word.partition(":")[0] for word in rest[int(exact) :].split(",") if word]
    fits = not words or any(name == word if exact else name.startswith(word) for word in words)
    return fits != excludes
