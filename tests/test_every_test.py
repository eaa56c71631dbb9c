"""Every test asserts something: one that only calls what it is about can fail by an exception alone."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import tests.conftest

TESTS = Path(tests.conftest.__file__).parent
ASSERTING_CALLS = {"raises", "fail", "warns"}  # of pytest
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def asserts(function: Function, asserting: set[str]) -> bool:
    """Whether it has an assertion, or calls what has one (by its name alone)."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ASSERTING_CALLS or name in asserting:
                return True
    return False


def test_every_test_asserts_something() -> None:
    by_place = {
        f"{path.relative_to(TESTS)}::{function.name}": function
        for path in sorted(TESTS.rglob("*.py"))
        for function in functions(ast.parse(path.read_text()))
    }
    assert len(by_place) > 2000
    helpers = [function for function in by_place.values() if not function.name.startswith("test_")]
    asserting: set[str] = set()
    for _ in range(3):  # helpers that call helpers
        asserting |= {function.name for function in helpers if asserts(function, asserting)}
    tests_of = {place: function for place, function in by_place.items() if function.name.startswith("test_")}
    without = [place for place, function in tests_of.items() if not asserts(function, asserting)]
    assert without == []


IMPORT = re.compile(r"\s*from (allranks[\w.]*) import (\w+)|\s*import (allranks[\w.]*)")


def test_programs_in_texts_import_what_there_is() -> None:
    """A module that gets another name keeps it in texts too: mypy does not see them."""
    stale = []
    imports = 0
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            for match in filter(None, map(IMPORT.match, re.split(r"[;\n]", text))):
                imports += 1
                if not is_importable(match[1] or match[3], match[2]):
                    stale.append(f"{path.relative_to(TESTS)}:{node.lineno}: {match[0]}")
    assert stale == []
    assert imports > 20


def is_importable(module: str, name: str | None) -> bool:
    try:
        names = vars(importlib.import_module(module))
        if name is not None and name not in names:
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True
