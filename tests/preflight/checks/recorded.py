"""A host out of a recording: files, links, outputs of commands, as a case of a check holds them.

A text that starts with @ is the name of a file beside the case.
"""

import fnmatch
import os
import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

from allranks.preflight.host import Ran, Space
from allranks.preflight.typed_facts import Facts, Request


class RecordedHost:
    """What `allranks.preflight.host.Host` describes, from a dict."""

    def __init__(self, request: dict[str, Any], recording: dict[str, Any], folder: Path) -> None:
        self._recording, self._folder = recording, folder
        self.request = Request(request)
        self.env = recording.get("env", {})
        self.facts = Facts(recording.get("facts", {}))
        self._files = {path: self._whole(text) for path, text in recording.get("files", {}).items()}

    def _whole(self, text: str) -> str:
        return (self._folder / text[1:]).read_text() if text.startswith("@") else text

    @cached_property
    def _paths(self) -> set[str]:
        found = {*self._files, *self._recording.get("links", {}), *self._recording.get("directories", ())}
        return {p for path in found for p in (path, *map(str, Path(path).parents))}

    def read(self, path: str, limit: int = 65536) -> str:
        if path in self._recording.get("closed", ()):
            raise PermissionError(13, "Permission denied", path)
        if path not in self._files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self._files[path][:limit]

    def text(self, path: str, limit: int = 65536) -> str | None:
        try:
            return self.read(path, limit).strip()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        below = {p.removeprefix(start) for p in self._paths if p.startswith(start)}
        return sorted(name for name in below if name and "/" not in name)

    def glob(self, pattern: str) -> list[str]:
        depth = pattern.count("/")
        return sorted(p for p in self._paths if fnmatch.fnmatchcase(p, pattern) and p.count("/") == depth)

    def exists(self, path: str) -> bool:
        return path in self._paths

    def real(self, path: str) -> str:
        done = "/"
        for word in path.split("/"):
            done = os.path.normpath(os.path.join(done, word))
            target = self.link(done)
            if target is not None:
                done = self.real(os.path.join(os.path.dirname(done), target))
        return done

    def link(self, path: str) -> str | None:
        return self._recording.get("links", {}).get(path)

    def which(self, name: str) -> str | None:
        words = {line.split()[0] for line in self._recording.get("commands", {})}
        return f"/usr/bin/{name}" if name in words else None

    def run(self, argv: Any, seconds: float = 10.0, cwd: str | None = None) -> Ran:
        """The output recorded for the command line, by its exact words."""
        line = shlex.join(argv)
        commands = self._recording.get("commands", {})
        if line not in commands:
            known = self.which(argv[0]) is not None
            return Ran(2 if known else None, "", f"no recording of {line}" if known else f"{argv[0]} is not installed")
        found = commands[line]
        found = {"out": found} if isinstance(found, str) else found
        return Ran(found.get("code", 0), self._whole(found.get("out", "")), found.get("err", ""))

    def python(self, code: str, seconds: float = 20.0) -> Ran:
        found = self._recording.get("python")
        if found is None:
            return Ran(None, "", "the training interpreter is not known")
        found = {"out": found} if isinstance(found, str) else found
        return Ran(found.get("code", 0), self._whole(found.get("out", "")), self._whole(found.get("err", "")))

    def space(self, path: str) -> Space:
        spaces = self._recording.get("space", {})
        if path not in spaces:
            raise FileNotFoundError(2, "No such file or directory", path)
        return Space(*spaces[path])
