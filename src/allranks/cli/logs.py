"""allranks logs: the output of all ranks, merged; or their last metrics."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from allranks.engines import settle
from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.protocol.codec import document_line
from allranks.protocol.jsontext import DecodeError, Json, read_metrics
from allranks.report.fold import Folder, last_state
from allranks.report.terminal import clean, shows_colour
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ORPHANED, OVER
from allranks.runs.reading import LogReader
from allranks.runs.regular import read_end, size_of
from allranks.text import format_duration, join_words

from .chosen_run import find_run

PAUSE = 0.2
TAIL = 256 << 10
METRICS_TAIL = 5  # lines of each rank
TAIL_CONTEXT = 1000  # further lines of each rank, so that the last ones are folded as they are without --tail
WINDOW = 2.0  # seconds between the same line of two ranks that folds them: arrival is known to the second
LINE_LIMIT = 1 << 20  # bytes of a line that wait for its end
GREP_LIMIT = 64 << 10  # bytes of a line that are searched: as many as are displayed


def command(
    run: str | None,
    follow: bool,
    node: tuple[str, ...],
    rank: tuple[int, ...],
    role: tuple[str, ...],
    grep: str | None,
    since: float | None,
    until: float | None,
    tail: int | None,
    metrics: bool,
    no_fold: bool,
    on: str | None,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Show output, or metrics."""
    refuse_contradictions(grep, since, until, follow, metrics)
    run_dir = find_run(run, runs_dir, on)
    settle(run_dir, time.time())
    nodes = _of_roles(run_dir, _chosen_nodes(run_dir, node), role)
    ranks = _wanted(run_dir, nodes, rank)
    is_chosen = bool(node or rank or role)
    if metrics:
        _metrics(run_dir, tail or METRICS_TAIL, ranks if is_chosen else None, json_)
        return DONE
    reader = LogReader(run_dir, nodes, rank)
    if not follow and not any(size_of(file.path) for file in reader.files()):
        which = "these" if is_chosen else "the"
        print(f"note: {which} ranks of {run_dir.name} have printed nothing", file=sys.stderr)
    now = time.time()
    if since is not None:
        reader.skip_to_time(now - since)
    if until is not None:
        reader.stop_at_time(now - until)
    if tail is not None and grep is None and until is None:  # else the last lines are found by reading all
        reader.skip_to_last_lines(tail + TAIL_CONTEXT)
    folder = None if json_ else Folder(fold=not no_fold, colour=shows_colour(sys.stdout), most=None, window=WINDOW)
    _output(run_dir, reader, LogPrinter(run_dir, folder, grep, tail), follow)
    return DONE


def refuse_contradictions(
    grep: str | None, since: float | None, until: float | None, follow: bool, metrics: bool
) -> None:
    """Raise UsageError for options that leave nothing to show, or that one of them would ignore."""
    of_output = [("--grep", grep), ("--since", since), ("--until", until), ("-f", follow or None)]
    out_of_place = [name for name, value in of_output if value is not None]
    if metrics and out_of_place:
        raise UsageError(f"--metrics shows the last lines. Leave out {join_words(out_of_place)}")
    if follow and until is not None:
        raise UsageError("-f goes on with what arrives now, and --until leaves that out. Leave out one of them")
    if since is not None and until is not None and since <= until:
        first = format_duration(since)
        last = format_duration(until)
        raise UsageError(
            f"--since {first} --until {last} leaves nothing: --since must be longer ago\n"
            f"hint: allranks logs --since {last} --until {first}"
        )


class PrintedLine(NamedTuple):
    """A line of `logs --json`: what a rank has written, without the line's end."""

    node: str
    rank: int
    line: str


class MetricsLine(NamedTuple):
    """A line of `logs --metrics --json`; `metrics` is the row as the program wrote it, as text where it is not JSON."""

    rank: int
    metrics: Json


class LineSplitter:
    """Cuts the bytes of ranks into whole lines, however they arrived; one longer than LINE_LIMIT is several."""

    def __init__(self) -> None:
        self._rest: dict[tuple[str, int], bytes] = {}

    def split(self, node: str, rank: int, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`, without their ends."""
        *lines, rest = (self._rest.get((node, rank), b"") + data).split(b"\n")
        if len(rest) > LINE_LIMIT:
            lines = [*lines, rest]
            rest = b""
        self._rest[(node, rank)] = rest
        return lines

    def rest(self) -> list[tuple[str, int, bytes]]:
        """Return (node, rank, line) of the lines without an end."""
        return [(node, rank, line) for (node, rank), line in self._rest.items() if line]


class LogPrinter:
    """Prints the output of ranks: folded for people where there is a `folder`, else as a JSON object a line.

    `pattern`: of lines as they are displayed, without colours and cut at GREP_LIMIT, those in which it is found. Of
    what was there before `begin_following` the last `tail` lines are printed (None: all).
    """

    def __init__(self, run: RunDirectory, folder: Folder | None, pattern: str | None, tail: int | None) -> None:
        status = run.read_status()
        self._names = {node.name: f"{node.role} {node.name}" for node in status.nodes if node.role}
        self._folder = folder
        if folder is not None:
            folder.ranks = status.world_size or 0
        self._pattern = None if pattern is None else re.compile(pattern)
        self._splitter = LineSplitter()
        self._held: deque[str] | None = None if tail is None else deque(maxlen=tail)

    def feed(self, node: str, rank: int, data: bytes, t: float) -> None:
        """Take bytes of a rank."""
        if self._folder is None or self._pattern is not None:
            self._feed_lines(node, rank, self._splitter.split(node, rank, data), t)
            return
        self._folder.feed(self._names.get(node, node), rank, data, t)
        self.tick(t)

    def _feed_lines(self, node: str, rank: int, lines: Iterable[bytes], t: float) -> None:
        wanted = [line for line in lines if self._pattern is None or self._pattern.search(_shown(line)) is not None]
        if self._folder is None:
            texts = (line.removesuffix(b"\r").decode("utf-8", "replace") for line in wanted)
            self._print(document_line(PrintedLine(node, rank, text)) for text in texts)
        elif wanted:
            self._folder.feed(self._names.get(node, node), rank, b"\n".join(wanted) + b"\n", t)
            self.tick(t)

    def tick(self, now: float) -> None:
        """Print the lines that are due."""
        if self._folder is not None:
            self._print(self._folder.lines(now))

    def begin_following(self, now: float) -> None:
        """Print the last lines of what was there, less for the lines that wait to be printed."""
        self.tick(now)
        self._release(waiting=0 if self._folder is None else len(self._folder.queue))

    def end(self, now: float) -> None:
        """Print the lines without an end, then what is left."""
        for node, rank, rest in self._splitter.rest():
            self._feed_lines(node, rank, [rest], now)
        if self._folder is not None:
            self._print(self._folder.rest(now))
        self._release(waiting=0)

    def _print(self, lines: Iterable[str]) -> None:
        if self._held is not None:
            self._held.extend(lines)
            return
        text = "".join(f"{line}\n" for line in lines)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _release(self, waiting: int) -> None:
        held = self._held
        if held is not None:
            self._held = None
            most = max(0, (held.maxlen or 0) - waiting)
            self._print(list(held)[max(0, len(held) - most) :])


def _shown(line: bytes) -> str:
    return clean(last_state(line)[:GREP_LIMIT].decode("utf-8", "replace"), colour=False)


def _output(run: RunDirectory, reader: LogReader, out: LogPrinter, follow: bool) -> None:
    for t, node, rank, data in reader.merged():
        out.feed(node, rank, data, t)
    follows = False
    while True:
        over = run.state() in (*OVER, ORPHANED)
        for node, rank, data in reader.fresh():
            out.feed(node, rank, data, time.time())
        if over or not follow:
            break
        if not follows:
            follows = True
            out.begin_following(time.time())
        out.tick(time.time())
        time.sleep(PAUSE)
    out.end(time.time())


# -- what is wanted ------------------------------------------------------------------------------------


def _chosen_nodes(run: RunDirectory, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the names of nodes that --node names, each by its name, else by its index.

    Raise UsageError for a node that the run does not have.
    """
    nodes = run.read_run().nodes
    names = {node.name for node in nodes}
    by_index = {str(node.index): node.name for node in nodes if node.index is not None}
    chosen = []
    for word in wanted:
        name = word if word in names else by_index.get(word, word)
        if names and name not in names:
            raise UsageError(f"--node {word}: the nodes of {run.name} are {', '.join(sorted(names))}")
        chosen.append(name)
    return tuple(chosen)


def _of_roles(run: RunDirectory, nodes: tuple[str, ...], wanted: Sequence[str]) -> tuple[str, ...]:
    if not wanted:
        return nodes
    entries = run.read_run().nodes
    roles = list(dict.fromkeys(entry.role for entry in entries if entry.role))
    for name in wanted:
        if name not in roles:
            has = f"its roles are {', '.join(roles)}" if roles else "it has no roles"
            raise UsageError(f"--role {name}: no role of {run.name}, {has}")
    return tuple(entry.name for entry in entries if entry.role in wanted and (not nodes or entry.name in nodes))


def _wanted(run: RunDirectory, nodes: Sequence[str], ranks: Sequence[int]) -> set[int]:
    status = run.read_status()
    where = {rank.rank: node.name for node in status.nodes for rank in node.ranks}
    for rank in ranks:
        if where and rank >= status.rank_count:
            raise UsageError(f"--rank {rank}: {run.name} has ranks 0 to {status.rank_count - 1}")
    return {r for r, name in where.items() if (not nodes or name in nodes) and (not ranks or r in ranks)}


def _metrics(run: RunDirectory, number: int, ranks: set[int] | None, json_: bool) -> None:
    for path in run.metrics_files():
        digits = path.name.split("_")[1]
        if not (digits.isascii() and digits.isdecimal()) or (ranks is not None and int(digits) not in ranks):
            continue
        for line in read_end(path, TAIL).splitlines()[-number:]:
            if json_:
                print(document_line(MetricsLine(int(digits), _read_row(line))))
            else:
                print(f"[{int(digits)}] {line}")


def _read_row(line: str) -> Json:
    try:
        return read_metrics(line)
    except DecodeError:
        return line
