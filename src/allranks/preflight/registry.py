"""Finds the checks: every module of `checks/`, in the order of their groups and names."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from . import checks as package
from .check import GROUPS, Check, read_check


@cache
def built_in() -> dict[str, Check]:
    """All checks of allranks by name."""
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    checks = [read_check(importlib.import_module(f"{package.__name__}.{name}")) for name in names]
    return {check.name: check for check in in_order(checks)}


def in_order(checks: list[Check]) -> list[Check]:
    """By group, then name: the order of tables and findings."""
    return sorted(checks, key=lambda check: (GROUPS.index(check.group), check.name))
