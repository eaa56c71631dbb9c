"""The second part of docs/reference/python.md: signatures and docstrings of the public names."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.reference.explained_pages import by_hand

import allranks
import allranks.data
from allranks import errors


def python_page(page: Path) -> str:
    """What is written by hand, up to the mark, and an entry for each public name."""
    return by_hand(page) + "".join(_entries())


def _entries() -> Iterator[str]:
    yield "## Names\n"
    functions = {f"allranks.{name}": getattr(allranks, name) for name in allranks.__all__}
    functions |= {f"allranks.data.{name}": getattr(allranks.data, name) for name in allranks.data.__all__}
    for name, value in functions.items():
        signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(value)))  # annotations are texts
        yield f"\n### {name}\n```text\n{name}{signature}\n```\n{_prose(value)}"
    yield "\n## Errors\nThey stand in `allranks.errors`.\n\n| error | exit code | when |\n|---|---|---|\n"
    for kind in _below(errors.AllranksError):
        code = getattr(kind, "exit_code", "")
        yield f"| {kind.__name__} | {code} | {(kind.__doc__ or '').partition(chr(10))[0]} |\n"


def _below(kind: type) -> Iterator[type]:
    yield kind
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _below(one)


def _prose(value: object) -> str:
    """A docstring as Markdown: its examples as a block of code."""
    text = inspect.getdoc(value) or ""
    words, mark, examples = text.partition("\n>>> ")
    if mark:
        code = re.sub(r"\s+# doctest: \+SKIP", "", f">>> {examples}")
        return f"{words.strip()}\n\n```pycon\n{textwrap.dedent(code).strip()}\n```\n"
    return f"{words}\n"
