"""Checks that other packages bring, by the entry point group `allranks.checks` (reads what is installed).

An entry point names a module as `allranks.preflight.check` describes it: one file, standard library only.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from allranks.errors import ConfigError
from allranks.preflight.check import Check, read_check
from allranks.preflight.registry import built_in, in_order
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
