"""Versions of torch, as far as a plan depends on them (pure)."""

from __future__ import annotations


def older_than(version: str, limit: tuple[int, int]) -> bool:
    """False where the version is not known."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return False
    return (int(parts[0]), int(parts[1])) < limit
