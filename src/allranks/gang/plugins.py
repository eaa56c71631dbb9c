"""The checks: ours, every module of `preflight/checks/`, and those that other packages bring.

An entry point of the group `allranks.checks` names a module as `allranks.preflight.check` describes it: one file,
standard library only.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from allranks.errors import ConfigError
from allranks.preflight import checks as package
from allranks.preflight.check import GROUPS, Check, read_check
from allranks.text import name_with

GROUP = "allranks.checks"


@cache
def installed() -> dict[str, tuple[Check, Path]]:
    """Load the checks of other packages, with their source files; raise ConfigError where one cannot be used."""
    checks = {}
    for point in entry_points(group=GROUP):
        try:
            check = read_check(point.load())
            source = Path(str(sys.modules[point.module].__file__))
        except Exception as error:  # whatever a foreign module does when it is imported
            raise ConfigError(f"the check {name_with(point.name, point.value)} cannot be used: {error}") from error
        if check.name in built_in():
            raise ConfigError(f"the check {name_with(point.name, point.value)} has the ID of a check of allranks")
        checks[check.name] = (check, source)
    return checks


def source_of(name: str) -> Path | None:
    """Return the file of a check of another package; None where it is one of ours."""
    if name in built_in():
        return None
    return installed()[name][1]


@cache
def all_checks() -> dict[str, Check]:
    """Ours and theirs, in order."""
    checks = in_order([*built_in().values(), *(check for check, _ in installed().values())])
    return {check.name: check for check in checks}


@cache
def built_in() -> dict[str, Check]:
    """All checks of allranks by name."""
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    checks = [read_check(importlib.import_module(f"{package.__name__}.{name}")) for name in names]
    return {check.name: check for check in in_order(checks)}


def in_order(checks: list[Check]) -> list[Check]:
    """By group, then name: the order of tables and findings."""
    return sorted(checks, key=lambda check: (GROUPS.index(check.group), check.name))
