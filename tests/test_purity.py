"""What the design says about the code itself, read from its syntax trees.

Pure modules import the standard library and each other only, and touch no file, socket, clock, chance or
environment. All modules are small and documented.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allranks.gang import controller
from allranks.gang.gang import Gang

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SOURCE / "allranks"
PURE_PACKAGES = ("protocol", "cluster", "settings", "plan", "preflight", "diagnose", "fabric/analysis", "overlap")
GANG = ("gang", "roster", "clocks", "gate", "states", "members", "places", "hangwatch", "gathering",
        "changing_world", "spares", "connections", "ending", "preloading", "rendezvous", "resuming", "running",
        "policy", "history", "groups", "passed_signals", "saving", "steps", "pace", "stragglers",
        "ready_test", "roles")  # fmt: skip
REPORT = ("record", "redact", "timeline", "timeplot", "machines", "ledgerwords")
PURE_FILES = (*(f"gang/{name}.py" for name in GANG), *(f"report/{name}.py" for name in REPORT),
              "runs/documents.py", "runs/timeledger.py", "findings.py",
              "errors.py", "exitcodes.py", "text.py", "xid.py", "kernel_lines.py", "fabric/metric_rows.py")  # fmt: skip


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BANNED_MODULES = words(
    "os posix posixpath ntpath genericpath pathlib io shutil tempfile glob fileinput mmap fcntl pty tty termios "
    "socket ssl select selectors socketserver http urllib ftplib smtplib asyncio threading _thread queue "
    "concurrent multiprocessing subprocess signal time sched random secrets uuid platform getpass pwd grp "
    "resource ctypes importlib runpy sqlite3 dbm shelve pickle logging webbrowser builtins"
)
BANNED_CALLS = words("open input print exec eval compile __import__ breakpoint globals")
BANNED_ATTRIBUTES = {
    "sys": words("argv stdin stdout stderr exit modules path platform"),
    "datetime": words("now utcnow today"),
    "date": frozenset({"today"}),
}
MAX_FILE = 1000
MAX_FUNCTION = 60
USUAL_FUNCTION = 25

Function = ast.FunctionDef | ast.AsyncFunctionDef


def pure_files() -> list[Path]:
    """The pure modules that exist."""
    found = [path for name in PURE_PACKAGES for path in sorted((PACKAGE / name).rglob("*.py"))]
    return found + [PACKAGE / name for name in PURE_FILES]


def all_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def is_pure_module(parts: list[str]) -> bool:
    """Whether `allranks.<parts>` is a pure module, or a name inside one."""
    if not parts:
        return False
    places = (parts[0], "/".join(parts[:2]))
    return any(name in PURE_PACKAGES or f"{name}.py" in PURE_FILES for name in places)


def imported(tree: ast.AST, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and full dotted name of all that is imported, relative imports resolved."""
    inside = ["allranks", *path.relative_to(PACKAGE).with_suffix("").parts]
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield node.lineno, [*module, alias.name]


# Finding the modules of its own package is what an import does; nothing else is read. PyYAML turns a document into
# its text, as json does; manifests never ship to a node. A handshake's nonce is chance by its purpose.
# A path is joined as text: what asks a file system is called nowhere there.
EXCEPTIONS = {
    ("settings/paths.py", "posixpath"),
    ("protocol/secure.py", "os"),
    ("plan/render/yamltext.py", "yaml"),
}


def import_faults(tree: ast.AST, path: Path) -> Iterator[str]:
    for line, name in imported(tree, path):
        shown = f"line {line}: imports {'.'.join(name)}"
        if name[0] == "allranks":
            if not is_pure_module(name[1:]):
                yield f"{shown}, which is not pure"
        elif name[0] in BANNED_MODULES and (name_of(path), name[0]) not in EXCEPTIONS:
            yield f"{shown}: a pure module has no use for it"
        elif name[0] not in sys.stdlib_module_names and (name_of(path), name[0]) not in EXCEPTIONS:
            yield f"{shown}: not in the standard library"


def use_faults(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            yield f"line {node.lineno}: calls {node.func.id}()"
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
            if node.attr in BANNED_ATTRIBUTES.get(owner, ()) or node.attr == "environ":
                yield f"line {node.lineno}: uses {owner}.{node.attr}"


def functions(tree: ast.AST) -> list[Function]:
    return [node for node in nodes_of(tree) if isinstance(node, Function)]


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def faults_of(files: list[Path], judge: Callable[[Path], Iterator[str]]) -> list[str]:
    return [f"{name_of(path)}: {fault}" for path in files for fault in judge(path)]


def test_pure_modules_import_the_standard_library_and_each_other() -> None:
    files = pure_files()
    assert {"cluster/hostfile.py", "runs/documents.py", "errors.py"} <= {name_of(path) for path in files}
    assert faults_of(files, lambda path: import_faults(tree_of(path), path)) == []


def test_pure_modules_touch_no_file_clock_or_environment() -> None:
    assert faults_of(pure_files(), lambda path: use_faults(tree_of(path))) == []


@pytest.mark.parametrize("package", ["gang", "runs", "plan", "diagnose", "preflight", "report"])
def test_what_lies_below_the_engines_imports_none(package: str) -> None:
    """The gang takes a Transport and a Reach, runs/ takes a question: neither knows which engine it has."""
    paths = sorted((PACKAGE / package).rglob("*.py"))
    above = {("allranks", "engines"), ("allranks", "cli")}
    faults = [
        f"{name_of(path)}:{line}" for path in paths for line, parts in imported(tree_of(path), path)
        if tuple(parts[:2]) in above
    ]  # fmt: skip
    assert paths and not faults


def test_files_are_short() -> None:
    long = {name_of(p): n for p in all_files() if (n := len(p.read_text("utf-8").splitlines())) > MAX_FILE}
    assert long == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{name_of(path)}:{node.lineno} {node.name}": length(node)
        for path in all_files()
        for node in functions(tree_of(path))
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION} == {}
    usual = sum(lines <= USUAL_FUNCTION for lines in lengths.values())
    longest = sorted((name for name, lines in lengths.items() if lines > USUAL_FUNCTION), key=lengths.__getitem__)
    assert usual >= 0.9 * len(lengths), f"more than one function in ten is long: {longest}"


def test_every_module_has_a_docstring_and_a_name_that_says_something() -> None:
    assert [name_of(path) for path in all_files() if not ast.get_docstring(tree_of(path))] == []
    assert [name_of(path) for path in all_files() if {"utils", "util"} & {path.stem, *path.parts}] == []


HERE = PACKAGE / "settings" / "example.py"


def faults(text: str) -> list[str]:
    """What a module of settings/ that has this text would do wrong."""
    tree = ast.parse(text)
    return [*import_faults(tree, HERE), *use_faults(tree)]


@pytest.mark.parametrize(
    "text",
    [
        "import os", "import os.path as p", "from os import environ", "from time import sleep", "import numpy",
        "from ..node import agent", "from .. import engines", "from allranks.gang.controller import Controller",
        "from allranks import gang", "import allranks", "def f() -> None:\n    import socket",
        "from . import *; import io",
        "open('x')", "print(1)", "sys.argv", "x.environ['A']", "datetime.now()", "datetime.datetime.now()",
        "date.today()", "__import__('os')", "sys.stdout.write('')", "exec('')",
    ],
)  # fmt: skip
def test_what_is_forbidden_is_found(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "import re", "from dataclasses import dataclass", "from .runspec import RunSpec", "from . import units",
        "from ..cluster.names import show", "from allranks.gang.gang import Gang", "from ..errors import UsageError",
        "from allranks.settings import RunSpec", "from ..gang import states",
        "now = clock.now; re.compile('x'); environ = {}; sys.version_info",
    ],
)  # fmt: skip
def test_what_is_permitted_is_left_alone(text: str) -> None:
    assert faults(text) == []


# Where the clock of the wall is reckoned with: times that a person, a file or another process has given.
OF_THE_WALL = {
    "cli/logs.py command": "--since",
    "gang/links.py _lose": "when a node was last heard, as it is stored",
    "gang/session.py adopt": "since the controller before us wrote last, as it is stored",
    "gang/session.py resume": "since the controller before us began",
    "agent/sweep.py _age": "the age of a file",
    "runs/directory.py is_written_elsewhere": "since a controller on another machine wrote, as it is stored",
    "runs/logs.py _index": "how often the time of output is noted, as it is stored",
    "runs/result.py least_result": "since another process began",
}


def _is_wall(node: ast.AST) -> bool:
    """Whether it is `time.time()`."""
    function = node.func if isinstance(node, ast.Call) else None
    of_time = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    return of_time and (function.value.id, function.attr) == ("time", "time")


def _names_of_the_wall(function: ast.AST) -> set[str]:
    """Names that are given time.time(), alone or beside others: `now, t = time.monotonic(), time.time()`."""
    found = set()
    for node in nodes_of(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            found |= {to.id for to, value in pairs if isinstance(to, ast.Name) and _is_wall(value)}
    return found


def test_the_gang_is_given_the_clock_that_is_never_set() -> None:
    """`now` of its methods, by which all its limits go; `t` is what is stored."""
    calls = 0
    for function in functions(tree_of(Path(controller.__file__))):
        of_the_wall = _names_of_the_wall(function)
        for node in nodes_of(function):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name != "Gang" and not name.startswith("self.gang."):
                continue
            method = Gang if name == "Gang" else getattr(Gang, name.removeprefix("self.gang."), None)
            if method is None:  # of a part of the gang
                continue
            names = [word for word in inspect.signature(method).parameters if word != "self"]
            given = dict(zip(names, (ast.unparse(value) for value in node.args), strict=False))
            for word, text in given.items():
                is_wall = text == "time.time()" or text in of_the_wall
                assert is_wall == (word == "t"), f"{function.name}: {name}({word}={text})"
            calls += "now" in given
    assert calls >= 3


def test_no_limit_goes_by_the_clock_of_the_wall() -> None:
    """It may be set by hours: limits and durations go by time.monotonic(), what is shown or stored by time.time()."""
    found = set()
    for path in all_files():
        for function in functions(tree_of(path)):
            names = _names_of_the_wall(function)
            for node in nodes_of(function):
                if isinstance(node, ast.Compare | ast.BinOp):
                    right = node.comparators if isinstance(node, ast.Compare) else [node.right]
                    if any(_is_wall(n) or (isinstance(n, ast.Name) and n.id in names) for n in (node.left, *right)):
                        found.add(f"{name_of(path)} {function.name}")
    assert found == set(OF_THE_WALL)
