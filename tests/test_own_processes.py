"""Every place that starts an interpreter, accepts a connection or opens a file for writing, by syntax tree.

A new one has to be looked at.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from allranks.agent.checks import WITHOUT_WORKDIR
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
# What gives code to another interpreter than this one, the ranks' own: it removes the working directory from its path.
OF_THE_RANKS = {
    "agent/checks.py": "WITHOUT_WORKDIR",
    "agent/node_check.py": "QUESTION",
}
ACCEPTS = {
    "agent/boot.py", "agent/door.py", "agent/peers.py", "agent/rendezvous_check.py", "agent/runner_recorder.py",
    "engines/calls.py", "engines/dialled.py", "engines/lent_ssh.py", "fabric/ranks/pairs_suite.py",
    "fabric/ranks/wire.py", "gang/questions.py",
}  # fmt: skip
# What opens a file for writing otherwise than by `replacing`, `append` (runs/regular.py), `open_left` or `create_file`
# (agent/files.py), which follow no link that others have planted.
WRITES = {
    "agent/boot.py": "a node directory that has just been made",
    "agent/prelude.py": "tempfile",
    "agent/files.py": "`open_left` and `create_file` (O_EXCL) themselves",
    "agent/asking.py": "O_EXCL and O_NOFOLLOW",
    "agent/receiver.py": "O_EXCL and O_NOFOLLOW",
    "agent/runner.py": "the rank itself, in its node directory",
    "agent/runner_recorder.py": "the rank itself, in its node directory",
    "agent/runner_ray.py": "the rank itself, in its node directory",
    "agent/runner_template.py": "/dev/null",
    "agent/outlet.py": "O_EXCL",
    "cli/main.py": "tempfile",
    "cli/streams.py": "/dev/null, and standard output",
    "data/probe.py": "the rank itself, in its node directory",
    "data/virtual.py": "a playing rank, in a directory of mkdtemp",
    "engines/joinsecret.py": "O_EXCL and O_NOFOLLOW",
    "engines/slurm/step.py": "tempfile, and a memfd",
    "engines/zipapp.py": "below a directory of mkdtemp, and `make dist`",
    "fabric/ranks/printing.py": "the rank itself: its file of metrics",
    "gang/agent_archive.py": "tempfile, and memory",
    "gang/working_tree.py": "tempfile",
    "program.py": "the rank itself",
    "report/bundle.py": "a zip into what `replacing` gives",
    "runs/directory.py": "O_EXCL",
    "runs/fetched.py": "O_NOFOLLOW and O_NONBLOCK",
    "runs/logs.py": "O_NOFOLLOW, in the run directory",
    "runs/nodeledger.py": "O_NOFOLLOW: a lock",
    "runs/regular.py": "`replacing` itself",
}
WRITING = {"write_text", "write_bytes", "NamedTemporaryFile", "TemporaryFile", "mkstemp", "copyfile", "copytree"}
MODE = re.compile(r"'[rb]*[wax][b+]*(\|[a-z]*)?'|'r[b]?\+b?'")
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


def starts_of_ranks(tree):
    """The code that each list of words gives to an interpreter whose path is not written there."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [ast.unparse(word) for word in node.elts]
            at = words.index("'-c'") if "'-c'" in words[1:-1] else 0
            if at and not isinstance(node.elts[at - 1], ast.Constant) and words[at - 1] != "sys.executable":
                yield words[at + 1]


def is_writing(call):
    """Whether a call opens a file for writing: by its name, its flags or its mode. One of a descriptor opens none."""
    name = ast.unparse(call.func)
    words = [ast.unparse(word) for word in [*call.args, *(keyword.value for keyword in call.keywords)]]
    if name == "os.open":
        return "O_RDONLY" not in words[1] or any(flag in words[1] for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
    if name.rpartition(".")[2] in ("open", "fdopen", "ZipFile"):
        of_a_descriptor = bool(words) and words[0].startswith(("open_left(", "create_file(", "log", "descriptor", "fd"))
        modes = [word for word in words[:2] + words[len(call.args) :] if MODE.fullmatch(word)]
        return bool(modes) and not of_a_descriptor
    return name.rpartition(".")[2] in WRITING


def test_every_place_that_opens_a_file_for_writing_is_known():
    found = {
        name: ast.unparse(node)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_writing(node)
    }
    unknown = {name: call for name, call in found.items() if name not in WRITES}
    assert (unknown, set(WRITES).difference(found)) == ({}, set())


def test_every_interpreter_that_we_start_is_isolated():
    found = {(name, flag) for name, tree in trees().items() for flag in starts(tree) if flag not in ISOLATED}
    assert found == set(LOOKED_AT)


def test_every_interpreter_of_the_ranks_that_we_give_code_to_leaves_the_working_directory_out():
    found = {name: code for name, tree in trees().items() for code in starts_of_ranks(tree)}
    assert {name: code.split()[0] for name, code in found.items()} == OF_THE_RANKS


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
    own = [sys.executable, "-c", WITHOUT_WORKDIR + "import json"]
    for argv in ([*own_command(), "--version"], [sys.executable, "-c", _SEND], own):
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, input='{"addresses": {}}', capture_output=True, text=True
        )
        assert "planted" not in done.stdout + done.stderr
