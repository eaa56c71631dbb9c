"""Every test asserts something: one that only calls what it is about can fail by an exception alone."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import NamedTuple

import tests.conftest

TESTS = Path(tests.conftest.__file__).parent
ASSERTING_CALLS = {"raises", "fail", "warns"}  # of pytest
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """What a file of the tests has."""

    path: Path
    nodes: list[ast.AST]

    @property
    def name(self) -> str:
        return self.path.relative_to(TESTS).as_posix()


@functools.cache
def sources() -> list[Source]:
    """Every file, read and walked once."""
    return [Source(path, list(ast.walk(ast.parse(path.read_text())))) for path in sorted(TESTS.rglob("*.py"))]


class Parts(NamedTuple):
    """What of a function asserts: itself, or what it calls (by its name alone)."""

    has_assertion: bool
    calls: set[str]

    def asserts(self, asserting: set[str]) -> bool:
        return self.has_assertion or not asserting.isdisjoint(self.calls)


def parts_of(function: Function) -> Parts:
    has_assertion = False
    calls = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            has_assertion = True
        elif isinstance(node, ast.Call):
            calls.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
    return Parts(has_assertion, calls)


def test_every_test_asserts_something() -> None:
    functions = [
        (f"{source.name}::{node.name}", node.name, parts_of(node))
        for source in sources()
        for node in source.nodes
        if isinstance(node, Function)
    ]
    assert len(functions) > 2000
    helpers = [(name, parts) for _, name, parts in functions if not name.startswith("test_")]
    asserting = set(ASSERTING_CALLS)
    for _ in range(3):  # helpers that call helpers
        asserting |= {name for name, parts in helpers if parts.asserts(asserting)}
    tests = [(place, parts) for place, name, parts in functions if name.startswith("test_")]
    assert [place for place, parts in tests if not parts.asserts(asserting)] == []


IMPORT = re.compile(r"\s*from (allranks[\w.]*) import (\w+)|\s*import (allranks[\w.]*)")


def test_programs_in_texts_import_what_there_is() -> None:
    """A module that gets another name keeps it in texts too: mypy does not see them."""
    stale = []
    imports = 0
    for source in sources():
        for node in source.nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or "import" not in node.value:
                continue
            for match in filter(None, map(IMPORT.match, re.split(r"[;\n]", node.value))):
                imports += 1
                if not is_importable(match[1] or match[3], match[2]):
                    stale.append(f"{source.name}:{node.lineno}: {match[0]}")
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
