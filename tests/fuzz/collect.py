"""Every regular expression of the package, with how it is used: found at import, and in the syntax trees.

Run as a program it prints them as JSON: where other tests run, modules are imported and their patterns compiled.
"""

import ast
import importlib.abc
import importlib.machinery
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import MagicMock

from allranks.protocol.orders import NAME

ROOT = Path(__file__).resolve().parents[2] / "src" / "allranks"
ANCHORED = frozenset({"match", "fullmatch"})
METHODS = ("compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer")
CALL = re.compile(r"\b(?:re\.\w+|like)\(")
# Files that put a pattern together as they run, and why that can't be known before.
BUILT = {
    "protocol/codec.py": "what `like` is given, which is collected where it is called",
    "cli/logs.py": "the user's own --grep",
    "report/redact.py": "the user's own, and values escaped",
    "report/sentences.py": "words escaped",
    "report/steps.py": "the user's own",
    "gang/matching.py": "the user's own, bounded by `regex`",
    "settings/parsers.py": "the user's own, and the table's words",
    "diagnose/signatures/site.py": "a site's own, bounded",
}


# Patterns that an object holds: what it does with them.
HELD = {
    "diagnose/signatures/row.py": "search",
    "kernel_lines.py": "search",
    "preflight/checks/kernel_log.py": "search",
}


class Used(NamedTuple):
    """A pattern, where it stands, and what the package does with it (empty: not known)."""

    pattern: str
    flags: int
    is_bytes: bool
    where: str
    methods: frozenset[str]

    def compiled(self) -> re.Pattern[str] | re.Pattern[bytes]:
        """As the package compiles it."""
        flags = self.flags & ~(re.UNICODE if not self.is_bytes else 0)
        return re.compile(self.pattern.encode("latin-1"), flags) if self.is_bytes else re.compile(self.pattern, flags)


def collect() -> tuple[list[Used], list[str]]:
    """All patterns of the package, and calls whose pattern is not known before they run, by a process of its own."""
    raw = subprocess.run([sys.executable, __file__], capture_output=True, check=True, timeout=120).stdout
    document = json.loads(raw)
    return [Used(p, f, b, w, frozenset(m)) for p, f, b, w, m in document["patterns"]], document["built"]


class _Call(NamedTuple):
    """One call of `re`."""

    file: str
    line: int
    method: str
    pattern: str | bytes | None  # None: no constant
    flags: int
    name: str  # what the compiled pattern is bound to
    constant: str = ""  # the name of the module that holds the pattern


def _calls(tree: ast.AST, file: str) -> Iterator[_Call]:
    """The calls of a file, and of programs that it holds as text."""
    nodes = list(ast.walk(tree))
    names: dict[int, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[id(node.value)] = node.targets[0].id
        elif isinstance(node, ast.Attribute):
            names[id(node.value)] = f".{node.attr}"
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CALL.search(node.value):
            try:
                inner = ast.parse(node.value)
            except SyntaxError:
                continue
            yield from _calls(inner, f"{file}:{node.lineno}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "like":
            pattern = eval(ast.unparse(node.args[0]), {"NAME": NAME})  # protocol/codec.py matches all of a text with it
            yield _Call(file, node.lineno, "fullmatch", pattern, 0, "")
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and node.func.attr in METHODS):
            continue
        first = node.args[0]
        while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Mod):
            first = first.left  # a program's pattern with a name in it
        known = first.value if isinstance(first, ast.Constant) and isinstance(first.value, (str, bytes)) else None
        constant = first.id if isinstance(first, ast.Name) else ""
        yield _Call(file, node.lineno, node.func.attr, known, _flags(node), names.get(id(node), ""), constant)


def _flags(call: ast.Call) -> int:
    at = {"split": 3, "sub": 4, "subn": 4, "compile": 1}.get(call.func.attr, 2)  # type: ignore[attr-defined]
    given = next((k.value for k in call.keywords if k.arg == "flags"), call.args[at] if len(call.args) > at else None)
    return int(eval(ast.unparse(given), {"re": re})) if given is not None else 0


def _methods(name: str, file: str, sources: dict[str, str]) -> frozenset[str]:
    """What is done with a compiled pattern of that name, wherever it is; empty where it is handed on."""
    found = set()
    for other, source in sources.items():
        module = Path(file).stem
        imported = rf"\b{module}\.{name}\b|from \S*\b{module} import (?:\([^)]*|[^\n]*)\b{name}\b"
        if name not in source or (other != file and not re.search(imported, source)):
            continue
        for match in re.finditer(rf"\b{name}\b(?!\s*=[^=])(?:\.(\w+)\()?", source):
            if match[1] in METHODS:
                found.add(match[1])
            elif "import" not in source[source.rfind("\n", 0, match.start()) + 1 : match.start()]:
                return frozenset()
    return frozenset(found)


def _constant(call: _Call) -> str | bytes | None:
    """The pattern that the call's module holds under that name."""
    module = sys.modules.get("allranks." + call.file.removesuffix(".py").replace("/", "."))
    value = getattr(module, call.constant, None)
    return value if isinstance(value, (str, bytes)) else None


def _main() -> None:
    sources = {str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.rglob("*.py"))}
    calls = [c for file, source in sources.items() if CALL.search(source) for c in _calls(ast.parse(source), file)]
    at_import = _at_import()
    calls = [call._replace(pattern=_constant(call)) if call.constant else call for call in calls]
    found: dict[tuple[str | bytes, int], tuple[str, set[str], bool]] = {}

    def note(pattern: str | bytes, flags: int, where: str, methods: frozenset[str]) -> None:
        flags = re.compile(pattern, flags).flags
        before = found.get((pattern, flags), (where, set(), True))
        found[(pattern, flags)] = (before[0], before[1] | methods, before[2] and bool(methods))

    names = {(call.file, call.line): call.name for call in calls}
    for (file, line), patterns in at_import.items():
        name = names.get((file, line), "")
        if name.startswith("."):
            methods = frozenset({name[1:]})
        else:
            methods = _methods(name, file, sources) if name else frozenset(HELD.get(file, "").split())
        for pattern, flags in patterns:
            note(pattern, flags, f"{file}:{line}", methods)
    built = []
    for call in calls:
        where = f"{call.file}:{call.line}"
        if call.pattern is not None and call.method != "compile":
            note(call.pattern, call.flags, where, frozenset({call.method}))
        elif call.pattern is not None and (call.file, call.line) not in at_import:
            note(call.pattern, call.flags, where, frozenset())
        elif (call.file, call.line) not in at_import and call.file not in BUILT:
            built.append(where)
    patterns = [
        (p if isinstance(p, str) else p.decode("latin-1"), f, isinstance(p, bytes), w, sorted(m) if known else [])
        for (p, f), (w, m, known) in found.items()
    ]
    json.dump({"patterns": patterns, "built": built}, sys.stdout)


def _at_import() -> dict[tuple[str, int], list[tuple[str | bytes, int]]]:
    """What is compiled as modules are imported, by file and line."""
    compiled: dict[tuple[str, int], list[tuple[str | bytes, int]]] = {}
    original = re.compile

    def noted(pattern: str | bytes, flags: int = 0) -> object:
        made = original(pattern, flags)
        frame = inspect.currentframe()
        assert frame is not None
        while frame.f_back is not None and frame.f_globals["__name__"] in (__name__, "re", "sre_compile"):
            frame = frame.f_back
        if Path(frame.f_code.co_filename).is_relative_to(ROOT):
            place = str(Path(frame.f_code.co_filename).relative_to(ROOT)), frame.f_lineno
            compiled.setdefault(place, []).append((made.pattern, made.flags))
        return made

    re.compile = noted  # type: ignore[assignment]
    sys.meta_path.insert(0, _Torch())  # half a minute otherwise; none of our patterns depends on it
    package = importlib.import_module("allranks")
    for module in pkgutil.walk_packages(package.__path__, "allranks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for row in sys.modules["allranks.diagnose.signatures"].ROWS:  # these are compiled when they are needed
        _ = row.compiled
        row.fits_traceback("")
    kernel_lines = sys.modules["allranks.kernel_lines"]
    for kind in kernel_lines.KINDS:
        kernel_lines.compiled(kind.pattern)
    values = sys.modules["allranks.diagnose.values"]
    for name in values.PATTERNS:
        values.compiled(name)
    re.compile = original
    return compiled


class _Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for every module of torch."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torch" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock()  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


if __name__ == "__main__":
    _main()
