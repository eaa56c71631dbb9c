"""Every test asserts something: one that only calls what it is about can fail by an exception alone."""

import ast
import functools
import importlib
import re
from pathlib import Path

import tests.conftest

TESTS = Path(tests.conftest.__file__).parent
ASSERTS = frozenset({"assert", "raises", "fail", "warns"})  # the last three are calls of pytest
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources() -> dict[str, list[ast.AST]]:
    """The syntax nodes of every file of the tests, by its name."""
    files = sorted(TESTS.rglob("*.py"))
    return {path.relative_to(TESTS).as_posix(): list(ast.walk(ast.parse(path.read_text()))) for path in files}


def calls_of(function: Function) -> set[str]:
    """What a function calls, each by its name alone, and `assert` where it asserts itself."""
    calls = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            calls.add("assert")
        elif isinstance(node, ast.Call):
            calls.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
    return calls


def test_every_test_asserts_something() -> None:
    functions = [
        (f"{file}::{node.name}", node.name, calls_of(node))
        for file, nodes in sources().items()
        for node in nodes
        if isinstance(node, Function)
    ]
    assert len(functions) > 2000
    asserting = set(ASSERTS)
    for _ in range(3):  # helpers that call helpers
        asserting |= {name for _, name, calls in functions if not name.startswith("test_") and calls & asserting}
    assert [at for at, name, calls in functions if name.startswith("test_") and not calls & asserting] == []


IMPORT = re.compile(r"\s*from (allranks[\w.]*) import (\w+)|\s*import (allranks[\w.]*)")


def test_programs_in_texts_import_what_there_is() -> None:
    """A module that gets another name keeps it in texts too: mypy does not see them."""
    stale = []
    imports = 0
    for file, nodes in sources().items():
        for node in nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or "import" not in node.value:
                continue
            for match in filter(None, map(IMPORT.match, re.split(r"[;\n]", node.value))):
                imports += 1
                if not is_importable(match[1] or match[3], match[2]):
                    stale.append(f"{file}:{node.lineno}: {match[0]}")
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
