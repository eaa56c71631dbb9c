"""Log diagnosis: read logs of any size, filtered block by block, in parallel, in bounded memory.

Raise UsageError for a log that is not there, cannot be read or unpacks to more than `UNPACKED` bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from allranks.cores import usable_cores
from allranks.diagnose.hangs.recorder import RankRecording, read_recording, read_torch_dump, with_members, with_silent
from allranks.diagnose.logs.lines import LogLine, from_name, read_line
from allranks.diagnose.logs.scan import Filter, last_lines
from allranks.diagnose.logs.sightings import Evidence
from allranks.errors import UsageError
from allranks.protocol.jsontext import DecodeError, read_json, read_object
from allranks.text import format_size

from .pickled import read_pickle
from .regular import open_dense, open_regular

BLOCK = 64 << 10  # bytes read at once: what is made of them stays in a core's cache and takes no new pages
PART = 64 << 20  # bytes a process takes; smaller logs are read here
END = 64 << 10  # bytes at the end of a log that are kept as they are
LONGEST = 1 << 20  # bytes of a line without an end: its beginning is enough
MOST_FILES = 1 << 17  # 4,096 nodes of 8 ranks have 36,864 an attempt; a whole disk is a slip
UNPACKED = 8 << 30  # bytes that compressed logs may unpack to, each and in all: a few MB can hold any number
_TENSORS = "pt pth bin safetensors npy npz pkl pickle parquet arrow db index idx sqlite"
_OTHERS = "png jpg jpeg gif mp4 pdf html zip gz tar xz so o pyc whl nsys-rep"
NOT_TEXT = frozenset(f".{ending}" for ending in f"{_TENSORS} {_OTHERS}".split())
PACKED = frozenset({".log", ".out", ".err", ".txt"})  # logs, where they are compressed
MANIFEST = "a Kubernetes manifest, not a log"
_HEADS = (re.compile(rb"(?m)^apiVersion:"), re.compile(rb"(?m)^kind:"))
_STATUS = re.compile(rb"(?m)^ {0,4}status:")


@dataclass
class LogPart:
    """A part of a log: its kept lines by number from 0, how many lines it has, its end, and bytes it unpacked to."""

    lines: int = 0
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    end: list[bytes] = field(default_factory=list)
    unpacked: int = 0


def find_logs(words: Sequence[str]) -> list[Path]:
    """List the files of these names, directories searched; sorted within each directory."""
    files: dict[Path, None] = {}
    for word in words:
        path = Path(word)
        if path.is_dir():
            files.update(dict.fromkeys(_inside(path)))
        elif path.exists():
            files[path] = None
        else:
            raise UsageError(f"{word}: no such file, directory or run")
    return list(files)


def _inside(directory: Path) -> Iterator[Path]:
    count = 0
    for top, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = Path(top, name)
            packed = path.suffix.lower() == ".gz" and path.with_suffix("").suffix.lower() in PACKED
            if name.startswith(".") or not path.is_file():
                continue
            if not packed and not _may_be_read(path):
                continue
            count += 1
            if count > MOST_FILES:
                raise UsageError(f"{directory}: more than {MOST_FILES} files\nhint: allranks diagnose LOG…")
            yield path


def _may_be_read(path: Path) -> bool:
    """Tell by its name and its first bytes whether a file may be a log or a rank's flight recorder."""
    is_named_as_log = path.suffix.lower() not in NOT_TEXT
    is_named_as_dump = rank_of_dump(path) is not None
    if not is_named_as_log and not is_named_as_dump:
        return False
    try:
        with path.open("rb") as file:
            first = file.read(2048)
    except OSError:
        return is_named_as_log  # reading it will say why
    return (is_named_as_log and b"\0" not in first) or (is_named_as_dump and first[:1] in _FIRST)


def read_logs(files: Sequence[Path]) -> Evidence:
    """Read the evidence of several logs, in their order here, and of flight recorders among them."""
    of_all, _, _ = read_log_files(files)
    return of_all


def read_log_files(files: Sequence[Path]) -> tuple[Evidence, list[Path], dict[Path, str]]:
    """Read several logs, in their order here, and flight recorders among them.

    Return what they say, which are logs, and of other files why they could not be read as one of these.
    """
    recordings, dumps = read_dumps(files)
    manifests = {path: MANIFEST for path in files if path not in dumps and is_manifest(path)}
    if manifests and len(manifests) == len(files):
        raise UsageError(f"{files[0]}: {MANIFEST}\nhint: kubectl logs POD --all-containers | allranks diagnose -")
    logs = [path for path in files if path not in dumps and path not in manifests]
    unread = {path: why for path, why in {**dumps, **manifests}.items() if why is not None}
    return evidence(scan(logs), recordings), logs, unread


def is_manifest(path: Path) -> bool:
    """Tell whether a file is a manifest of Kubernetes that says what is wanted, and nothing of what happened."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        return False
    try:
        with open_regular(path) as file:
            text = file.read(LONGEST)
    except OSError:
        return False  # reading it will say why
    return all(head.search(text) for head in _HEADS) and not _STATUS.search(text)


def scan(files: Sequence[Path]) -> list[tuple[Path, list[LogPart]]]:
    """Read each log, part after part."""
    by_file = [(path, _spans(path)) for path in files]
    spans = [span for _, own in by_file for span in own]
    total = sum(end - start for _, start, end in spans)
    in_parallel = total > PART // 2 and len(spans) > 1
    reading = _read_in_parallel(spans) if in_parallel else ((span, read_part(*span)) for span in spans)
    parts: dict[Span, LogPart] = {}
    unpacked = 0
    for span, part in reading:
        parts[span] = part
        unpacked += part.unpacked
        if unpacked > UNPACKED:
            raise _too_large(f"{span[0]} and the compressed logs before it unpack")
    return [(path, [parts[span] for span in own]) for path, own in by_file]


def read_stream(stream: BinaryIO) -> Evidence:
    """Read the evidence of one log that comes through a pipe."""
    return evidence([(Path("-"), [_filter(stream, None)])])


Span = tuple[Path, int, int]


def _spans(path: Path) -> list[Span]:
    size = _size(path)
    step = max(size, 1) if path.suffix.lower() == ".gz" else PART
    return [(path, start, min(start + step, size)) for start in range(0, max(size, 1), step)]


def _read_in_parallel(spans: Sequence[Span]) -> Iterator[tuple[Span, LogPart]]:
    # Here, as a small log is read without: they take a twentieth of its diagnosis.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    count = min(usable_cores(), len(spans))
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork")) as pool:
        waiting = {pool.submit(read_part, *span): span for span in spans}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _too_large(subject: str) -> UsageError:
    limit = format_size(UNPACKED)
    return UsageError(f"{subject} to more than {limit}\nhint: zcat FILE | tail -c 1G | allranks diagnose -")


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            return path.stat().st_size
        with open_dense(path) as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def read_part(path: Path, start: int, end: int) -> LogPart:
    """Read the lines that begin in a span of a file; all of a compressed one, and of a pipe, which are read once."""
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rb") as unpacked:
                part = _filter(unpacked, None, UNPACKED)
            if part.unpacked > UNPACKED:
                raise _too_large(f"{path} unpacks")
            return part
        if not path.is_file():
            with path.open("rb", buffering=0) as pipe:
                return _filter(pipe, None)
        with open_dense(path) as file:
            if start:
                file.seek(start - 1)
                start += _skip_line(file)  # one that began before
            file.seek(start)
            return _filter(file, max(0, end - start))
    except (EOFError, zlib.error) as error:
        raise UsageError(f"{path}: {error}\nhint: gzip -t {path}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _skip_line(file: BinaryIO) -> int:
    """Bytes after the one just before a span, up to the end of the line it belongs to."""
    skipped = -1
    while True:
        data = file.read(64 << 10)
        at = data.find(b"\n")
        if at >= 0 or not data:
            return skipped + (at + 1 if at >= 0 else 0)
        skipped += len(data)


def _filter(file: BinaryIO | io.FileIO | gzip.GzipFile, length: int | None, most: int = 0) -> LogPart:
    """Read whole lines until `length` bytes are passed (and the line that crosses it), or to the end.

    `most`: bytes after which reading stops, 0 for no limit; they are counted in `Part.unpacked`.
    """
    kept = Filter()
    rest = b""
    end = b""
    done = 0
    while length is None or done < length:
        data = file.read(BLOCK if length is None else min(BLOCK, length - done))
        if not data:
            break
        done += len(data)
        if most and done > most:
            break
        at = data.rfind(b"\n") + 1
        if not at:
            rest = _begun(rest, data)
            continue
        kept.feed(rest + data[:at] if rest else data[:at])
        end = (end + data)[-END:] if len(data) < END else data[-END:]
        rest = data[at:]
    while rest and length is not None:  # the line that crosses the end of the span
        data = file.read(64 << 10)
        at = data.find(b"\n")
        rest = _begun(rest, data if at < 0 else data[: at + 1])
        if at >= 0 or not data:
            break
    if rest:
        kept.feed(rest)
    log_end = last_lines(end if end.endswith(rest) else end + rest)
    return LogPart(kept.lines, kept.kept, log_end, done if most else 0)


def _begun(line: bytes, more: bytes) -> bytes:
    """Add to the beginning of a long line; where it is long enough, nothing is copied."""
    if len(line) >= LONGEST:
        return line
    return (line + more)[:LONGEST]


def evidence(logs: Iterable[tuple[Path, list[LogPart]]], recordings: Sequence[RankRecording] = ()) -> Evidence:
    """Collect the lines of all logs, in the order of time where they tell it, with the flight recorders beside them."""
    lines: list[LogLine] = []
    tail: list[LogLine] = []
    for path, parts in logs:
        name = str(path)
        at = from_name(name)
        before = 0
        for part in parts:
            for number, raw in part.kept:
                lines += read_line(raw.decode("utf-8", "replace"), name, before + number + 1, at)
            before += part.lines
        if parts:
            end = parts[-1].end[-20:]
            tail += [
                k
                for i, raw in enumerate(end)
                for k in read_line(raw.decode("utf-8", "replace"), name, before - len(end) + i + 1, at)
            ]
    return Evidence.of(in_order(lines), tail, recordings)


def in_order(lines: list[LogLine]) -> list[LogLine]:
    """By time where every log has clocks; lines of one log keep their order, those without a time follow the last."""
    files = list(dict.fromkeys(line.file for line in lines))
    timed = {line.file for line in lines if line.t is not None}
    if len(files) < 2 or len(timed) < len(files):
        return lines
    now: dict[str, float] = {}
    keys = []
    for at, line in enumerate(lines):
        now[line.file] = max(line.t or 0.0, now.get(line.file, 0.0))
        keys.append((now[line.file], at))
    return [lines[at] for _, at in sorted(keys)]


LARGEST_DUMP = 64 << 20  # bytes of one dump; 2,000 collectives with stacks take 5 MB
ALL_DUMPS = 1 << 30  # bytes of all dumps
_NAME = re.compile(
    r"(?i)(?:^|[_.-])(?:dump|trace|flight|fr|rank)[_.-]?(?:rank[_.-]?)?(?P<rank>\d{1,6})(?:\.(?:jsonl?|pkl|pickle))?$"
)
PICKLE = b"\x80"  # its first byte
_FIRST = (PICKLE, b"{")


def rank_of_dump(path: Path) -> int | None:
    """Give the rank whose flight recorder a file's name says that it is; None for any other name."""
    match = _NAME.search(path.name)
    return None if match is None else int(match["rank"])


def read_dumps(files: Iterable[Path]) -> tuple[list[RankRecording], dict[Path, str | None]]:
    """Read the dumps among files; of two of one rank the newer one. What is JSON and none is left for the log scan.

    A file is opened once, and read only where its name and its first byte are those of a dump. Give the files that are
    dumps, too, each with why it could not be read: None where it could.
    """
    dumps: dict[Path, str | None] = {}
    silent: set[int] = set()
    newest: dict[int, tuple[float, RankRecording]] = {}
    left = ALL_DUMPS
    for path in files:
        rank = rank_of_dump(path)
        if rank is None:
            continue
        first = b""
        try:
            with open_regular(path) as file:
                first = file.read(1)
                if first not in _FIRST:
                    continue
                data = first + file.read(min(left, LARGEST_DUMP))
                written = os.fstat(file.fileno()).st_mtime
            recording = _read(rank, data, min(left, LARGEST_DUMP), path.suffix == ".jsonl")
        except (DecodeError, OSError) as error:
            if first == PICKLE:
                dumps[path] = str(error)
                silent.add(rank)
            continue
        left -= len(data)
        dumps[path] = None
        if rank not in newest or newest[rank][0] <= written:
            newest[rank] = (written, recording)
    recordings = [recording for _, (_, recording) in sorted(newest.items())]
    return with_silent(with_members(recordings), silent), dumps


def _read(rank: int, data: bytes, most: int, has_lines: bool) -> RankRecording:
    """Read a dump; of one with a recording a line the last counts."""
    if len(data) > most:
        raise DecodeError(f"expected a dump of at most {most} bytes")
    if data[:1] == PICKLE:
        return read_torch_dump(rank, read_pickle(data))
    if has_lines:
        return read_recording(rank, read_object(data.rstrip(b"\n").rpartition(b"\n")[2], LARGEST_DUMP))
    return read_torch_dump(rank, read_json(data, LARGEST_DUMP))
