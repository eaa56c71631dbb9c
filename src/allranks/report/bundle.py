"""The zip of a run to send to others: reads files and tests, writes what the redactor gives out.

Names in the zip are made here: letters, digits, dots, dashes, always below one folder. Links are not followed.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from allranks.errors import UsageError
from allranks.protocol.codec import SCHEMA, encode, omit_empty
from allranks.protocol.jsontext import Json
from allranks.runs.directory import RunDirectory
from allranks.runs.regular import open_dense, replacing

from .excerpts import CONTEXT, logs_of
from .gather import Checks, evidence_files, gather, related
from .record import Excerpt, Record
from .redact import WINDOW, LineRedactor, Redactor, redacted
from .runpage import run_page
from .summary import summary

LOGS = 24 << 20  # bytes of all logs
# of one
LEAST = 16 << 10
MOST = 1 << 20
DOCUMENT = 8 << 20  # bytes of a JSON document that is taken as such
MOST_FILES = 1024
DOCUMENTS = ("run.json", "result.json", "status.json", "verdict.json", "events.jsonl", "controller.log")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@omit_empty()
class BundledFile(NamedTuple):
    """A file of the zip; of one of the run its size in bytes, and whether something of it is left out."""

    file: str
    bytes: int | None = None
    cut: bool | None = None


@dataclass
class Bundle:
    """A zip that is being written."""

    archive: zipfile.ZipFile
    folder: str
    redactor: Redactor
    contents: list[BundledFile] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def text(self, name: str, text: str) -> None:
        """Add a text that is made here."""
        with self._open(name) as entry:
            entry.write(text.encode("utf-8", "replace"))
        self.contents.append(BundledFile(name))

    def file(self, name: str, path: Path, budget: int = MOST, telling: Iterable[str] = ()) -> None:
        """Add a file of the run without secrets, cut to about `budget` bytes; leave it out where it cannot be read."""
        name = self._safe(name)
        try:
            opened = open_dense(path, os.O_NOFOLLOW)
        except OSError:
            return
        with opened as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            with self._open(name) as entry:
                cut = self._copy(file, size, entry, name, budget, telling)
        self.contents.append(BundledFile(name, size, cut))

    def _safe(self, name: str) -> str:
        words = [_UNSAFE.sub("_", word).strip(".-")[:100] for word in self.redactor.text(name, "names").split("/")]
        base = "/".join(word for word in words if word) or "file"
        unique = base
        number = 1
        while unique.lower() in self._names:
            number += 1
            head, dot, end = base.rpartition(".")
            unique = f"{head}-{number}.{end}" if dot and "/" not in end else f"{base}-{number}"
        self._names.add(unique.lower())
        return unique

    def _open(self, name: str) -> IO[bytes]:
        info = zipfile.ZipInfo(f"{self.folder}/{name}", time.localtime()[:6])
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        return self.archive.open(info, "w")

    def _copy(
        self, file: IO[bytes], size: int, entry: IO[bytes], name: str, budget: int, telling: Iterable[str]
    ) -> bool:
        if name.endswith(".json") and size <= DOCUMENT:
            text = self.redactor.document(file.read(DOCUMENT + 1).decode("utf-8", "replace"), name)
            if text is not None:
                entry.write(text.encode("utf-8", "replace") + b"\n")
                return False
            file.seek(0)
        if name.endswith(".jsonl"):
            return _json_lines(self.redactor, file, entry, name, 4 * budget)
        if b"\0" in file.read(4096):
            entry.write(b"[no text]\n")
            return True
        file.seek(0)
        return _text(self.redactor, file, size, entry, name, budget, telling)


def _json_lines(redactor: Redactor, file: IO[bytes], entry: IO[bytes], name: str, budget: int) -> bool:
    """Line by line; True where the end is left out."""
    texts = LineRedactor(redactor, name)
    done = number = 0
    while raw := file.readline(16 * WINDOW):
        number += 1
        complete = raw.endswith(b"\n") or len(raw) < 16 * WINDOW
        text = raw.decode("utf-8", "replace").rstrip("\n")
        redacted = redactor.json_line(text, name, number) if complete else "[a line that is too long]"
        entry.write((texts.line(text) if redacted is None else redacted).encode("utf-8", "replace") + b"\n")
        while not complete:
            rest = file.readline(WINDOW)
            complete = rest.endswith(b"\n") or not rest
        done += len(raw)
        if done > budget:
            return bool(file.read(1))
    return False


def _text(
    redactor: Redactor, file: IO[bytes], size: int, entry: IO[bytes], name: str, budget: int, telling: Iterable[str]
) -> bool:
    if size <= budget:
        entry.write(redactor.log(file.read(size), name))
        return False
    head = budget // 4
    tail = budget - head
    entry.write(redactor.log(file.read(head), name, is_end=False))
    entry.write(f"\n[… about {size - budget:,} bytes are left out]\n".encode())
    for line in telling:
        entry.write(line.encode("utf-8", "replace") + b"\n")
    start = max(0, size - tail - CONTEXT)
    file.seek(start)
    part = file.read(size - start)
    entry.write(redactor.log(part, name, size - tail - start, is_beginning=start == 0))
    return True


# -- what goes in ----------------------------------------------------------------------------------


def write_bundle(
    run: RunDirectory, path: Path, judge: Checks, fresh: Callable[[], Redactor]
) -> tuple[Redactor, list[str]]:
    """Write the zip. Return the redactor, which knows what was hidden, and the names of the files in the zip.

    `fresh` makes redactors: the page has its own, so that nothing is listed twice.
    """
    gathered = gather(run, judge)
    for_page = fresh()
    redactor = fresh()
    record = redacted(gathered, for_page)
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
            bundle = Bundle(archive, _UNSAFE.sub("_", record.name).strip(".-") or "run", redactor)
            _fill(bundle, run, gathered, record)
            bundle.text("report.html", run_page(record, for_page.hidden))
            hidden = redactor.hidden
            bundle.text("redactions.json", _json({"redacted": encode(hidden)}))
            bundle.text("summary.md", summary(record, hidden, len(bundle.contents) + 2))
            bundle.text("contents.json", _json({"files": encode(bundle.contents)}))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}. Name another place with --output.") from None
    return redactor, [f"{bundle.folder}/{item.file}" for item in bundle.contents]


def _fill(bundle: Bundle, run: RunDirectory, gathered: Record, record: Record) -> None:
    bundle.text("verdict.json", _json(encode(record.verdict)))
    for name in DOCUMENTS:
        if (run.path / name).is_file():
            bundle.file(f"run/{name}", run.path / name)
    for path in [run.path / "evidence" / "preflight.json", *evidence_files(run)][:MOST_FILES]:
        bundle.file(f"run/{path.relative_to(run.path).as_posix()}", path)
    logs = logs_of(run)[:MOST_FILES]
    budget = min(MOST, max(LEAST, LOGS // max(1, len(logs))))
    excerpts = {before.log: after for before, after in zip(gathered.excerpts, record.excerpts, strict=True)}
    for log in logs:
        bundle.file(f"run/{log.file}", run.path / log.file, budget, _telling(excerpts.get(log)))
    for path in sorted((run.path / "outputs").glob("rank_*_metrics.jsonl"))[:8]:
        bundle.file(f"run/outputs/{path.name}", path, LEAST)
    for directory in related(run):
        _beside(bundle, directory)


def _beside(bundle: Bundle, directory: Path) -> None:
    """Results of tests and checks, those of each stage too."""
    results = [directory, *sorted((directory / "stages").glob("*"))[:256]]
    for place in results:
        for name in ("result.json", "verdict.json", "evidence/preflight.json"):
            path = place / name
            if path.is_file() and not place.is_symlink():
                bundle.file(f"tests/{directory.name}/{path.relative_to(directory).as_posix()}", path)


def _telling(excerpt: Excerpt | None) -> Iterator[str]:
    """`1234: text` of the lines between beginning and end that tell something."""
    for piece in excerpt.pieces[1:-1] if excerpt is not None else ():
        yield from (f"{piece.first + i}: {line}" for i, line in enumerate(piece.lines))


def _json(document: Mapping[str, Json]) -> str:
    return json.dumps({"schema": SCHEMA, **document}, indent=1, ensure_ascii=False) + "\n"
