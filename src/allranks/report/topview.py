"""The screen of `allranks top`: a run at a glance, in as many lines as a terminal has.

From above: the run, its figures, warnings and verdict, the ranks as a grid, the nodes, the newest events.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from allranks.protocol.run_facts import Fact, Stamped
from allranks.protocol.samples import NodeUsage
from allranks.runs.documents import NodeStatus, RankStatus, RunProgress, RunReport
from allranks.text import count_of, cut, format_percent, format_rate, format_time, plural

from .nodetable import heading, label, node_line, styled, time_text, total_line
from .sentences import event_line
from .terminal import BAD, BOLD, BOLD_BAD, DIM, GOOD, STATE_STYLES, UNSURE, WARN, clean, paint

LEAST_WIDTH = 20
WARNINGS_SHOWN = 3
WARNING_LINES = 2
FURTHER = ("comes last", "cores used", "memory used", "GPU busy", "in and out")  # of a node's ranks and its machine
FURTHER_WIDTH = 11
EVENTS_LEAST = 3  # lines that nodes leave to the events
LATE_SHARE = 0.05  # of a step: a rank that comes later than this is late
VERY_LATE_SHARE = 0.2
LATE_SECONDS = 0.02  # where no rate is known
VERY_LATE_SECONDS = 0.2


class Cell(NamedTuple):
    """A character of the grid: its colour, what it means, and how bad it is."""

    glyph: str
    style: str
    meaning: str
    badness: int


ON_TIME = Cell("▁", GOOD, "on time", 1)
LATE = Cell("▄", WARN, "late", 5)
VERY_LATE = Cell("█", BAD, "very late", 6)
UNKNOWN = Cell("▪", "", "at work", 2)
STARTED = Cell("○", UNSURE, "started", 3)
WAITING = Cell("·", DIM, "waiting", 4)
EXITED = Cell("✓", DIM, "ended", 0)
FAILED = Cell("✗", BOLD_BAD, "failed", 8)
KILLED = Cell("×", DIM, "killed", 3)
LOST = Cell("?", BOLD_BAD, "lost", 7)
CELLS = (EXITED, ON_TIME, UNKNOWN, STARTED, WAITING, KILLED, LATE, VERY_LATE, LOST, FAILED)
_BY_STATE = {"exited": EXITED, "failed": FAILED, "killed": KILLED, "lost": LOST, "started": STARTED, "waiting": WAITING}


@dataclass(frozen=True)
class TopSnapshot(RunReport):
    """A run at a moment, `elapsed` seconds after its start.

    `loss` is the last that rank 0 has reported. `warnings` are sentences about this attempt.
    """

    elapsed: float | None = None
    loss: float | None = None
    warnings: tuple[str, ...] = ()


def top_lines(
    snapshot: TopSnapshot,
    events: Sequence[Stamped[Fact]],
    width: int,
    height: int,
    colour: bool = False,
    footer: str = "",
) -> list[str]:
    """Write the screen, at most `height` lines of `width` columns, the footer last."""
    width = max(LEAST_WIDTH, width)
    progress = RunProgress.of(snapshot.nodes)
    lines = [*_head(snapshot, progress, width, colour), *_notices(snapshot, width, colour)]
    grid = grid_lines(snapshot.nodes, width, max(2, height // 3), colour)
    if grid:
        lines += ["", *grid]
    room = height - len(lines) - 2  # a blank line, and the footer
    nodes = node_lines(snapshot, progress, width, max(1, room - EVENTS_LEAST - 3), colour)
    if nodes:
        lines += ["", *nodes]
    room = height - len(lines) - 2
    newest = event_lines(events, len(snapshot.nodes), width, room)
    if newest:
        lines += ["", *newest]
    if not footer:
        return lines[:height]
    return [*lines[: max(1, height - 1)], paint(cut(footer, width), DIM, colour)]


# -- above -------------------------------------------------------------------------------------------------------------


def _head(snapshot: TopSnapshot, progress: RunProgress, width: int, colour: bool) -> list[str]:
    words = [snapshot.run, snapshot.state]
    if snapshot.attempt:
        words.append(f"attempt {snapshot.attempt}")
    if snapshot.world_size:
        with_ranks = [node for node in snapshot.nodes if node.ranks]
        words.append(f"{count_of(snapshot.world_size, 'rank')} on {count_of(len(with_ranks), 'node')}")
    if snapshot.master is not None and snapshot.master.address:
        words.append(f"master {snapshot.master.address}:{snapshot.master.port}")
    figures = []
    if progress.step is not None:
        figures.append(f"step {progress.step_text}")
    if progress.rate is not None:
        figures.append(f"{progress.rate:.2f} steps/s")
    if snapshot.loss is not None:
        figures.append(f"loss {snapshot.loss:.4g}")
    began = snapshot.t - snapshot.elapsed if snapshot.elapsed is not None else None
    spent = time_text(progress, snapshot.t, began, snapshot.goodput)
    if spent and began is not None:
        spent = f"after {spent}"
    if spent:
        figures.append(spent)
    first = paint(_fit("  ".join(words), width), BOLD, colour)
    return [first, *([_fit("  ".join(figures), width)] if figures else [])]


def _notices(snapshot: TopSnapshot, width: int, colour: bool) -> list[str]:
    lines = []
    for warning in snapshot.warnings[-WARNINGS_SHOWN:]:
        lines += [paint(line, WARN, colour) for line in _wrapped(f"warning: {warning}", width)]
    if snapshot.verdict is not None and snapshot.verdict.finding.message:
        style = BOLD_BAD if snapshot.verdict.cause else ""
        text = f"VERDICT {snapshot.verdict.cause}: {snapshot.verdict.finding.message}"
        lines += [paint(line, style, colour) for line in _wrapped(text, width)]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    words = clean(text.replace("\n", " "), colour=False)
    return textwrap.wrap(words, width, max_lines=WARNING_LINES, placeholder=" …", subsequent_indent="  ")


def _fit(text: str, width: int) -> str:
    return cut(clean(text, colour=False), width)


# -- ranks -------------------------------------------------------------------------------------------------------------


def cell_of(rank: RankStatus) -> Cell:
    """Choose the character of a rank, by its state and by how late it comes to collectives."""
    if rank.state in _BY_STATE:
        return _BY_STATE[rank.state]
    lateness = rank.lateness_s
    if lateness is None:
        return UNKNOWN
    late, very_late = LATE_SECONDS, VERY_LATE_SECONDS
    if rank.rate:
        late, very_late = LATE_SHARE / rank.rate, VERY_LATE_SHARE / rank.rate
    if lateness >= very_late:
        return VERY_LATE
    return LATE if lateness >= late else ON_TIME


def grid_lines(nodes: Sequence[NodeStatus], width: int, most: int, colour: bool) -> list[str]:
    """Draw a cell a rank, in groups of a node; where that takes more than `most` lines, a cell a node or several."""
    ranked = [(node, [cell_of(rank) for rank in node.ranks]) for node in nodes if node.ranks]
    if not ranked:
        return []
    groups = [(f"{node.role} {node.ranks[0].rank}".lstrip(), cells) for node, cells in ranked]
    rows = _rows(groups, width)
    title = "ranks"
    if len(rows) > most - 1:
        title = "nodes, each with its worst rank"
        worst = [_worst(cells) for _, cells in ranked]
        rows = _rows([(label(ranked[0][0]), worst)], width)
        if len(rows) > most - 1:
            each = -(-len(rows) // max(1, most - 1))
            title = f"{each} nodes a cell, each with its worst rank"
            worst = [_worst(worst[at : at + each]) for at in range(0, len(worst), each)]
            rows = _rows([(label(ranked[0][0]), worst)], width)
    shown = rows[: max(1, most - 1)]
    used = {cell for _, cells in ranked for cell in cells}
    legend = "  ".join(f"{cell.glyph} {cell.meaning}" for cell in CELLS if cell in used)
    lines = [_fit(f"{title}: {legend}", width)]
    widest = max(len(name) for name, _ in shown)
    for name, row in shown:
        painted = [" " if cell is None else paint(cell.glyph, cell.style, colour) for cell in row]
        lines.append(f"{name:>{widest}} {''.join(painted)}")
    if len(rows) > len(shown):
        lines.append(_fit(f"… and {count_of(len(rows) - len(shown), 'more line')}", width))
    return lines


def _worst(cells: Sequence[Cell]) -> Cell:
    return max(cells, key=lambda cell: cell.badness)


def _rows(groups: Sequence[tuple[str, Sequence[Cell]]], width: int) -> list[tuple[str, list[Cell | None]]]:
    """Set groups of cells into rows, each with the name of its first group; None is a gap."""
    room = max(1, width - 1 - max(len(name) for name, _ in groups))
    rows: list[tuple[str, list[Cell | None]]] = []
    for name, cells in groups:
        for start in range(0, len(cells), room):
            part = cells[start : start + room]
            if rows and len(rows[-1][1]) + 1 + len(part) <= room:
                rows[-1][1].extend([None, *part])
            else:
                rows.append((name if start == 0 else "", [*part]))
    return rows


# -- nodes, events -----------------------------------------------------------------------------------------------------


def node_lines(snapshot: TopSnapshot, progress: RunProgress, width: int, most: int, colour: bool) -> list[str]:
    """Write headings, a line a node and the totals. Of too many nodes those with the worst ranks have lines."""
    nodes = list(snapshot.nodes)
    if not nodes:
        return []
    shown = nodes
    if len(nodes) > most:
        worst = sorted(range(len(nodes)), key=lambda place: _badness_of(nodes[place]), reverse=True)[:most]
        shown = [nodes[place] for place in sorted(worst)]
    name_width = max(5, *(len(label(node)) for node in shown))
    cells_by_column = zip(FURTHER, *map(_further_cells, shown), strict=True)  # the heading first, then one a node
    columns = [column for column in cells_by_column if any(column[1:])]
    head = heading(name_width)
    headings = [head, *(f"{column[0]:>{FURTHER_WIDTH}}" for column in columns)]
    lines = [paint(_fit("  ".join(headings), width), DIM, colour)]
    for place, node in enumerate(shown):
        line = node_line(node, snapshot.t, name_width)
        if columns:
            cells = [f"{column[place + 1]:>{FURTHER_WIDTH}}" for column in columns]
            line = "  ".join([f"{line:<{len(head)}}", *cells]).rstrip()
        lines.append(styled(node, _fit(line, width), colour))
    if len(nodes) > len(shown):
        hidden = len(nodes) - len(shown)
        lines.append(_fit(f"… and {hidden} more {plural(hidden, 'node')}", width))
    if len(nodes) > 1:
        lines.append(_fit(total_line(nodes, progress, snapshot.t, name_width), width))
    return lines


def _further_cells(node: NodeStatus) -> list[str]:
    """Write what stands under the headings of FURTHER; what is unknown is empty."""
    usage = node.usage or NodeUsage()
    cores = memory = gpu_busy = network = ""
    if usage.cpu_used is not None and usage.cores:
        cores = f"{usage.cpu_used:.1f} of {usage.cores}"
    if usage.memory_used is not None and usage.memory_total:
        memory = format_percent(usage.memory_used / usage.memory_total)
    if usage.gpu_busy is not None:
        gpu_busy = format_percent(usage.gpu_busy)
    if usage.received is not None and usage.sent is not None:
        network = format_rate(usage.received + usage.sent)
    return [_latest(node), cores, memory, gpu_busy, network]


def _latest(node: NodeStatus) -> str:
    """Name the rank of a node that comes latest: `5, 180 ms`."""
    measured = [rank for rank in node.ranks if rank.lateness_s is not None]
    if not measured:
        return ""
    latest = max(measured, key=_lateness)
    return f"{latest.rank}, {format_time(_lateness(latest))}"


def _lateness(rank: RankStatus) -> float:
    return rank.lateness_s or 0.0


def _badness_of(node: NodeStatus) -> tuple[int, float]:
    own_badness = LOST.badness if node.state in STATE_STYLES else 0
    worst = max([own_badness, *(cell_of(rank).badness for rank in node.ranks)])
    return worst, max(map(_lateness, node.ranks), default=0.0)


def event_lines(events: Sequence[Stamped[Fact]], nodes: int, width: int, most: int) -> list[str]:
    """Write the newest events that a person wants to see, with their time of day."""
    lines: list[str] = []
    for stamped in reversed(events):
        if len(lines) >= most:
            break
        sentence = event_line(stamped, nodes)
        if sentence is None:
            continue
        first = next((line for line in sentence.split("\n") if line.strip()), "")
        lines.insert(0, _fit(f"{time.strftime('%H:%M:%S', time.localtime(stamped.t))} {first}", width))
    return lines
