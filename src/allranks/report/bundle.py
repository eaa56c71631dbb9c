"""The zip of a run to send to others: reads files and tests, writes what the redactor gives out.

Names in the zip are made here: letters, digits, dots, dashes, always below one folder. Links are not followed.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from allranks.errors import UsageError
from allranks.protocol.codec import SCHEMA, encode
from allranks.protocol.jsontext import Json
from allranks.runs.directory import RunDirectory
from allranks.runs.regular import open_dense, replacing
from allranks.text import plural

from .excerpts import logs_of, read_ends
from .gather import Checks, evidence_files, gather, related
from .record import LogName, Record
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


@dataclass
class Bundle:
    """A zip that is being written."""

    archive: zipfile.ZipFile
    folder: str
    redactor: Redactor
    _names: set[str] = field(default_factory=set)

    def text(self, name: str, text: str) -> None:
        """Add a text that is made here."""
        with self._open(name) as entry:
            entry.write(text.encode("utf-8", "replace"))

    def file(self, name: str, path: Path, budget: int = MOST) -> None:
        """Add a file of the run without secrets, cut to about `budget` bytes; leave it out where it cannot be read."""
        name = self._safe(name)
        try:
            opened = open_dense(path, os.O_NOFOLLOW)
        except OSError:
            return
        with opened as file, self._open(name) as entry:
            self._copy(name, file, entry, budget)

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

    def _copy(self, name: str, file: IO[bytes], entry: IO[bytes], budget: int) -> None:
        is_document = name.endswith(".json")
        beginning = file.read(DOCUMENT + 1 if is_document else 4096)
        file.seek(0)
        document = self.redactor.document(beginning.decode("utf-8", "replace"), name) if is_document else None
        if document is not None:
            entry.write(document.encode("utf-8", "replace") + b"\n")
        elif name.endswith(".jsonl"):
            _json_lines(self.redactor, file, entry, name, 4 * budget)
        elif b"\0" in beginning:
            entry.write(b"[no text]\n")
        else:
            log = LogName(name, node="", rank=None, attempt=0)
            shown = self.redactor.excerpt(read_ends(log, file, budget // 4, budget - budget // 4))
            hidden = shown.total - len(shown.head) - len(shown.tail)
            left_out = [f"[… {hidden:,} {plural(hidden, 'line is', 'lines are')} left out]"] if hidden else []
            lines = [*shown.head, *left_out, *shown.tail]
            entry.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


def _json_lines(redactor: Redactor, file: IO[bytes], entry: IO[bytes], name: str, budget: int) -> None:
    """Write line by line, and leave the end out."""
    texts = LineRedactor(redactor, name)
    done = number = 0
    while done <= budget and (raw := file.readline(16 * WINDOW)):
        number += 1
        complete = raw.endswith(b"\n") or len(raw) < 16 * WINDOW
        text = raw.decode("utf-8", "replace").rstrip("\n")
        redacted = redactor.json_line(text, name, number) if complete else "[a line that is too long]"
        entry.write((texts.line(text) if redacted is None else redacted).encode("utf-8", "replace") + b"\n")
        while not complete:
            rest = file.readline(WINDOW)
            complete = rest.endswith(b"\n") or not rest
        done += len(raw)


# -- what goes in ----------------------------------------------------------------------------------


def write_bundle(
    run: RunDirectory, path: Path, judge: Checks, fresh: Callable[[], Redactor]
) -> tuple[Redactor, list[str]]:
    """Write the zip. Return the redactor, which knows what was hidden, and the names of the files in the zip.

    `fresh` makes redactors: the page has its own, so that nothing is listed twice.
    """
    for_page = fresh()
    redactor = fresh()
    record = redacted(gather(run, judge), for_page)
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
            bundle = Bundle(archive, _UNSAFE.sub("_", record.name).strip(".-") or "run", redactor)
            _fill(bundle, run, record)
            bundle.text("report.html", run_page(record, for_page.hidden))
            hidden = redactor.hidden
            bundle.text("redactions.json", _json({"redacted": encode(hidden)}))
            bundle.text("summary.md", summary(record, hidden, len(archive.namelist()) + 1))
            names = archive.namelist()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}. Name another place with --output.") from None
    return redactor, names


def _fill(bundle: Bundle, run: RunDirectory, record: Record) -> None:
    bundle.text("verdict.json", _json(encode(record.verdict)))
    for name in DOCUMENTS:
        if (run.path / name).is_file():
            bundle.file(f"run/{name}", run.path / name)
    for path in [run.path / "evidence" / "preflight.json", *evidence_files(run)][:MOST_FILES]:
        bundle.file(f"run/{path.relative_to(run.path).as_posix()}", path)
    logs = logs_of(run)[:MOST_FILES]
    budget = min(MOST, max(LEAST, LOGS // max(1, len(logs))))
    for log in logs:
        bundle.file(f"run/{log.file}", run.path / log.file, budget)
    for path in run.metrics_files()[:8]:
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


def _json(document: Mapping[str, Json]) -> str:
    return json.dumps({"schema": SCHEMA, **document}, indent=1, ensure_ascii=False) + "\n"
