"""allranks logs: the output of all ranks, merged; or their last metrics."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from allranks.engines import settle
from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.protocol.codec import document_line
from allranks.protocol.jsontext import DecodeError, Json, read_metrics
from allranks.report.fold import Folder
from allranks.report.terminal import shows_colour
from allranks.runs.directory import RunDirectory
from allranks.runs.reading import LogReader
from allranks.runs.regular import read_end

from .chosen_run import find_run

PAUSE = 0.2
TAIL = 256 << 10
WINDOW = 2.0  # seconds between the same line of two ranks that folds them: arrival is known to the second
LINE_LIMIT = 1 << 20  # bytes of a line in --json that wait for its end


def command(
    run: str | None,
    follow: bool,
    node: tuple[str, ...],
    rank: tuple[int, ...],
    since: float | None,
    metrics: bool,
    number: int,
    no_fold: bool,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Show output, or metrics."""
    run_dir = find_run(run, runs_dir)
    settle(run_dir, time.time())
    ranks = _wanted(run_dir, list(node), list(rank))
    if metrics:
        if follow or since is not None:
            raise UsageError("--metrics shows the last lines. Leave out -f and --since")
        _metrics(run_dir, number, ranks if node or rank else None, json_)
        return DONE
    reader = LogReader(run_dir, node, rank)
    if since is not None:
        reader.skip_to_time(time.time() - since)
    _output(run_dir, reader, JsonLines() if json_ else LogPrinter(run_dir, not no_fold), follow)
    return DONE


class LogPrinter:
    """Output as lines for people."""

    def __init__(self, run: RunDirectory, fold: bool) -> None:
        self._folder = Folder(fold=fold, colour=shows_colour(sys.stdout), most=None, window=WINDOW)
        self._folder.ranks = run.read_status().world_size or 0

    def feed(self, node: str, rank: int, data: bytes, t: float) -> None:
        """Bytes of a rank."""
        self._folder.feed(node, rank, data, t)
        self.tick(t)

    def tick(self, now: float) -> None:
        """Print the lines that are due."""
        self._print(self._folder.lines(now))

    def end(self, now: float) -> None:
        """Print the lines that are left."""
        self._print(self._folder.rest(now))

    def _print(self, lines: list[str]) -> None:
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()


class PrintedLine(NamedTuple):
    """A line of `logs --json`: what a rank has written, without the line's end."""

    node: str
    rank: int
    line: str


class MetricsLine(NamedTuple):
    """A line of `logs --metrics --json`; `metrics` is the row as the program wrote it, as text where it is not JSON."""

    rank: int
    metrics: Json


class JsonLines:
    """Output as a JSON object a line; a line is whole, however its bytes were cut."""

    def __init__(self) -> None:
        self._rest: dict[tuple[str, int], bytes] = {}

    def feed(self, node: str, rank: int, data: bytes, t: float) -> None:
        """Bytes of a rank."""
        *lines, rest = (self._rest.get((node, rank), b"") + data).split(b"\n")
        if len(rest) > LINE_LIMIT:
            lines = [*lines, rest]
            rest = b""
        self._rest[(node, rank)] = rest
        for line in lines:
            self._write(node, rank, line)
        sys.stdout.flush()

    def tick(self, now: float) -> None:
        """Nothing waits."""

    def end(self, now: float) -> None:
        """Lines without an end."""
        for (node, rank), rest in self._rest.items():
            if rest:
                self._write(node, rank, rest)

    def _write(self, node: str, rank: int, line: bytes) -> None:
        text = line.removesuffix(b"\r").decode("utf-8", "replace")
        sys.stdout.write(document_line(PrintedLine(node, rank, text)) + "\n")


def _output(run: RunDirectory, reader: LogReader, out: LogPrinter | JsonLines, follow: bool) -> None:
    for t, node, rank, data in reader.merged():
        out.feed(node, rank, data, t)
    while True:
        over = run.state() in ("done", "failed", "stopped", "orphaned")
        for node, rank, data in reader.fresh():
            out.feed(node, rank, data, time.time())
        if over or not follow:
            break
        out.tick(time.time())
        time.sleep(PAUSE)
    out.end(time.time())


# -- what is wanted ------------------------------------------------------------------------------------


def _wanted(run: RunDirectory, nodes: list[str], ranks: list[int]) -> set[int]:
    """Return the ranks that --node and --rank leave. Raise UsageError for a node or rank that the run does not have."""
    where = _places(run)
    names = _names(run)
    for name in nodes:
        if names and name not in names:
            raise UsageError(f"--node {name}: the nodes of {run.name} are {', '.join(sorted(names))}")
    for rank in ranks:
        if where and rank not in where:
            raise UsageError(f"--rank {rank}: {run.name} has ranks 0 to {max(where)}")
    return {r for r, name in where.items() if (not nodes or name in nodes) and (not ranks or r in ranks)}


def _places(run: RunDirectory) -> dict[int, str]:
    """Return the node of each rank; empty before ranks are planned."""
    return {rank.rank: node.name for node in run.read_status().nodes for rank in node.ranks}


def _names(run: RunDirectory) -> set[str]:
    return {node.name for node in run.read_run().nodes}


def _metrics(run: RunDirectory, number: int, ranks: set[int] | None, json_: bool) -> None:
    """Print the last lines of each rank's metrics file."""
    for path in sorted((run.path / "outputs").glob("rank_*_metrics.jsonl")):
        digits = path.name.split("_")[1]
        if not (digits.isascii() and digits.isdecimal()) or (ranks is not None and int(digits) not in ranks):
            continue
        try:
            last = read_end(path, TAIL).decode("utf-8", "replace").splitlines()[-number:]
        except OSError:
            continue
        for line in last:
            if json_:
                print(document_line(MetricsLine(int(digits), _loads(line))))
            else:
                print(f"[{int(digits)}] {line}")


def _loads(line: str) -> Json:
    try:
        return read_metrics(line)
    except DecodeError:
        return line
