"""The training program on this node: its words, its interpreter, torch's version without importing it."""

import os
import re
import shutil
import signal
import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

INTERPRETER_SECONDS = 20.0
MARK = "ALLRANKS-PYTHON"
_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?\Z")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")

# Runs as the user would run it, in any Python from 2.7 on; no module of the working directory is
# imported. torch/version.py is read as text: importing torch takes seconds, importlib.metadata 30 ms.
QUESTION = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import os, re
out = {"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable}
try:
    from importlib.util import find_spec
    spec = find_spec("torch")
    if spec is not None and spec.origin:
        out["torch"] = "?"
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as f:
            text = f.read()
        for key, name in (("__version__", "torch"), ("cuda", "cuda"), ("hip", "hip")):
            m = re.search(r"(?m)^%s(?:\s*:[^=]+)?\s*=\s*'([^']+)'" % re.escape(key), text)
            if m:
                out[name] = m.group(1)
except Exception:
    pass
if out.get("torch") == "?":
    try:
        from importlib.metadata import version
        out["torch"] = version("torch")
    except Exception:
        pass
sys.stdout.write("\nALLRANKS-PYTHON\t%s\n" % "\t".join("%s=%s" % i for i in out.items()))
"""


class Program(NamedTuple):
    """`kind` is python-script, python-module, python-other or program; `target` the script, module or
    program; `python` the word the user wrote for the interpreter."""

    kind: str
    python: Optional[str]
    target: Optional[str]


def read_program(command: List[str], kind: Optional[str] = None) -> Program:
    """The words after `--`; `kind`, where the controller has said it, decides."""
    if not command:
        return Program(kind or "program", None, None)
    python, rest = None, command
    if _PYTHON.match(command[0]):
        python, rest = command[0], _without_flags(command[1:])
    if len(rest) > 1 and rest[0] == "-m":
        return Program(kind or "python-module", python, rest[1])
    if rest and rest[0].endswith((".py", ".pyw")):
        return Program(kind or "python-script", python, rest[0])
    if python is not None:
        return Program(kind or "python-other", python, None)
    return Program(kind or "program", None, command[0])


def _without_flags(words: List[str]) -> List[str]:
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-m", "-c", "-", "--"):
        index += 2 if words[index] in _WITH_VALUE else 1
    return words[index:]


def find_target(program: Program, workdir: str, environ: Mapping[str, str]) -> Dict[str, Any]:
    """Whether the script or the program is there."""
    target = program.target
    if target is None:
        return {"kind": program.kind}
    if program.kind == "python-module":
        return {"kind": program.kind, "module": target}
    if program.kind == "program":
        path = lookup(target, workdir, environ)
        return {"kind": program.kind, "name": target, "path": path or target, "exists": path is not None}
    path = os.path.join(workdir, target)
    exists = os.path.isfile(path) or (os.path.exists(path) and not os.path.isdir(path))
    return {"kind": program.kind, "path": path, "exists": exists, "readable": os.access(path, os.R_OK)}


def lookup(name: str, workdir: str, environ: Mapping[str, str]) -> Optional[str]:
    """A program by path (relative to the working directory) or on the PATH the ranks will have."""
    name = os.path.expanduser(name)
    if "/" in name:
        path = os.path.join(workdir, name)
        return path if os.path.isfile(path) and os.access(path, os.X_OK) else None
    return shutil.which(name, path=environ.get("PATH", os.defpath))


def choose_interpreter(
    request: Mapping[str, Any], program: Program, workdir: str, environ: Mapping[str, str]
) -> Tuple[Optional[str], str]:
    """Path (None: absent) and which rule chose it: --python, the command's first word, the caller's
    VIRTUAL_ENV or CONDA_PREFIX where it is on this node too, python3 on the PATH after the prelude."""
    for word, how in ((request.get("python"), "--python"), (program.python, "the command")):
        if word:
            return lookup(str(word), workdir, environ), "%s: %s" % (how, word)
    for key, how in (("virtual_env", "VIRTUAL_ENV"), ("conda_prefix", "CONDA_PREFIX")):
        prefix = request.get(key)
        if prefix:
            path = lookup(os.path.join(str(prefix), "bin", "python"), workdir, environ)
            if path is not None:
                return path, "%s: %s" % (how, prefix)
    return lookup("python3", workdir, environ), "python3 on PATH"


def interpreter(
    request: Mapping[str, Any], program: Program, workdir: str, environ: Mapping[str, str]
) -> Dict[str, Any]:
    """The training interpreter: path, version, torch (None: absent), how; or error. Not for programs."""
    if program.kind == "program" and not request.get("python"):
        return {"kind": program.kind, "skipped": "the command is no Python program"}
    path, how = choose_interpreter(request, program, workdir, environ)
    found = {"kind": program.kind, "how": how}  # type: Dict[str, Any]
    if path is None:
        searched = environ.get("PATH", os.defpath)
        return {**found, "error": "not found or not executable", "missing": True, "searched": searched}
    return {**found, "path": path, **ask(path, workdir, environ)}


def ask(path: str, workdir: str, environ: Mapping[str, str], seconds: float = INTERPRETER_SECONDS) -> Dict[str, Any]:
    """Starts an interpreter once and reads what it says of itself."""
    try:
        process = subprocess.Popen(
            [path, "-c", QUESTION],
            env=dict(environ), cwd=workdir if os.path.isdir(workdir) else "/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return {"error": "could not be started: %s" % error}
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return {"error": "did not answer within %g s" % seconds}
    return _answer(out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), process.returncode)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Its whole session, so that a shim's child does not stay; never waits for long."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(1)
    except (OSError, subprocess.TimeoutExpired):
        pass


def _answer(out: str, err: str, code: int) -> Dict[str, Any]:
    for line in out.splitlines():
        words = line.split("\t")
        if words[0] == MARK:
            found = dict(w.split("=", 1) for w in words[1:] if "=" in w)  # type: Dict[str, Any]
            found.setdefault("torch", None)
            return found
    last = (err.strip().splitlines() or ["no output"])[-1]
    return {"error": "ended with code %d: %s" % (code, last[:300])}
