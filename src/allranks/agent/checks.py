"""Runs the `collect` of checks on this node, side by side, each within its own limit.

A check that hangs loses only itself: its thread is left behind and dies with this (forked) process.
"""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Iterable, List, Mapping, Optional, Sequence

from allranks.preflight.check import Check, read_check
from allranks.preflight.host import CouldNotLook, Host, Ran, Space
from allranks.preflight.typed_facts import Facts, Request
from allranks.protocol.jsontext import JsonObject

from .bounded_commands import FactPart, collect_parts, run_command
from .files import find_program, names_in, read_file, read_link

PACKAGE = "allranks.preflight.checks."
OUTPUT_LIMIT = 4 << 20
# "-c" puts the working directory first: its own `json.py` must not be taken. -P came with Python 3.11.
WITHOUT_WORKDIR = "import sys\nsys.path[:] = [path for path in sys.path if path]\n"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def collect_checks(names: Iterable[str], host: Host) -> JsonObject:
    """{name: what it found, or {"error": why not}}. Never raises."""
    facts: JsonObject = {}
    parts: List[FactPart] = []
    for name in names:
        try:
            check = read_check(importlib.import_module(PACKAGE + name))
        except Exception as error:
            facts[name] = {"error": "%s: %s" % (type(error).__name__, error)}
            continue
        if check.collect is not None:
            parts.append(FactPart(check.name, partial(collected, check, host), check.seconds))
    facts.update(collect_parts(parts))
    return facts


def collected(check: Check, host: Host) -> object:
    """Return what a check collects of a host, or an `error` that says why it could not look."""
    assert check.collect is not None
    try:
        return check.collect(host)
    except CouldNotLook as error:
        return {"error": str(error)}
    except OSError as error:
        text = error.strerror or str(error)
        if error.filename:
            text = "%s: %s" % (error.filename, text)
        return {"error": text}


class NodeHost:
    """What `allranks.preflight.host.Host` describes."""

    def __init__(self, request: JsonObject, env: Mapping[str, str], facts: JsonObject) -> None:
        self.request = Request(request)
        self.env = env
        self.facts = Facts(facts)

    def read(self, path: str, limit: int = 65536) -> str:
        """Read a file's text; raise OSError."""
        return read_file(path, limit).decode("utf-8", "replace")

    def text(self, path: str, limit: int = 65536) -> Optional[str]:
        """Read a file's text without surrounding blanks; None where it cannot be read."""
        try:
            return self.read(path, limit).strip()
        except OSError:
            return None

    def names(self, path: str) -> List[str]:
        """Sorted names in a directory."""
        return sorted(names_in(path))

    def glob(self, pattern: str) -> List[str]:
        """Sorted paths that match."""
        import glob  # late: few checks look for patterns

        return sorted(glob.glob(pattern))

    def exists(self, path: str) -> bool:
        """Whether there is anything."""
        return os.path.exists(path)

    def real(self, path: str) -> str:
        """Make a path without symbolic links."""
        return os.path.realpath(path)

    def link(self, path: str) -> Optional[str]:
        """Where a symbolic link leads."""
        return read_link(path) or None

    def which(self, name: str) -> Optional[str]:
        """Find a program on the ranks' PATH, or in the sbin directories that a user's PATH may lack."""
        return find_program(name, path=self.env.get("PATH", os.defpath) + ":" + SBIN)

    def run(self, argv: Sequence[str], seconds: float = 10.0, cwd: Optional[str] = None) -> Ran:
        """Run a command in the ranks' environment; a child that stays behind cannot hold us."""
        path = argv[0] if "/" in argv[0] else self.which(argv[0])
        if path is None:
            return Ran(None, "", "%s is not installed" % argv[0])
        try:
            ended = run_command([path, *argv[1:]], seconds, OUTPUT_LIMIT, {**self.env, "LC_ALL": "C"}, cwd)
        except OSError as error:
            return Ran(None, "", "%s: %s" % (argv[0], error.strerror))
        if ended.code is None:
            return ended._replace(err="%s gave no answer within %g s" % (argv[0], seconds))
        return ended

    def python(self, code: str, seconds: float = 20.0) -> Ran:
        """Run code in the training interpreter."""
        interpreter = self.facts.interpreter
        if not interpreter.path or interpreter.error:
            return Ran(None, "", interpreter.error or "the training interpreter is not known")
        where = self.request.asked.workdir or "/"
        words = [interpreter.path, "-c", WITHOUT_WORKDIR + code]
        return self.run(words, seconds, cwd=where if os.path.isdir(where) else None)

    def space(self, path: str) -> Space:
        """Of the file system that holds a path."""
        disk = os.statvfs(path)
        return Space(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize, disk.f_files, disk.f_favail)
