"""Every place that starts an interpreter or accepts a connection, by syntax tree: a new one has to be looked at."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from allranks.report.notifier import _SEND
from allranks.unpacked import own_command

PACKAGE = Path(__file__).resolve().parents[1] / "src/allranks"
ISOLATED = ("-I", "-P")
# What begins otherwise: it takes its own directory alone, or is the training program's.
LOOKED_AT = {
    ("api.py", "-c"): "sets sys.path[0] before its first import of a file",
    ("unpacked.py", "-c"): "Python 3.10 has no -P: removes sys.path[0]",
    ("unpacked.py", ""): "allranks.pyz: sys.path[0] is the archive",
    ("report/notifier.py", "-c"): "removes sys.path[0]: -I would leave out what pip --user installed",
    ("agent/runner_launched.py", ""): "the training interpreter, as the user started it",
}
ACCEPTS = {
    "agent/boot.py", "agent/door.py", "agent/peers.py", "agent/rendezvous_check.py", "agent/runner_recorder.py",
    "engines/calls.py", "engines/dialled.py", "fabric/ranks/pairs_suite.py", "fabric/ranks/wire.py",
    "report/metrics_out.py",
}  # fmt: skip
SERVERS = ("accept", "listen", "start_server", "start_unix_server", "create_server")


def trees():
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def starts(tree):
    """The first flag of each list of words with this interpreter in it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [ast.unparse(word) for word in node.elts]
            if "sys.executable" in words:
                flag = [*node.elts[words.index("sys.executable") + 1 :], None][0]
                is_flag = isinstance(flag, ast.Constant) and str(flag.value).startswith("-")
                yield str(flag.value) if is_flag else ""


def test_every_interpreter_that_we_start_is_isolated():
    found = {(name, flag) for name, tree in trees().items() for flag in starts(tree) if flag not in ISOLATED}
    assert found == set(LOOKED_AT)


def test_every_place_that_accepts_a_connection_is_known():
    found = {
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SERVERS
    }
    assert found == ACCEPTS


def test_no_module_of_the_working_directory_is_imported(tmp_path):
    for name in ("json", "logging", "signal", "secrets", "socket", "runpy", "asyncio", "apprise"):
        (tmp_path / f"{name}.py").write_text(f"print('planted {name}', flush=True)\nraise SystemExit(3)\n")
    environment = {**os.environ, "PYTHONPATH": ""}
    for argv in ([*own_command(), "--version"], [sys.executable, "-c", _SEND]):
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, input='{"addresses": {}}', capture_output=True, text=True
        )
        assert "planted" not in done.stdout + done.stderr
