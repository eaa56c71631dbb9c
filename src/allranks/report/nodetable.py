"""A line for each node of a run: the table below the log of a live run, and what `status` prints (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from allranks.runs.documents import NodeStatus, RankStatus, RunProgress, StatusDocument
from allranks.text import count_of, cut, format_elapsed, format_percent, name_with

from .terminal import DIM, STATE_STYLES, clean, paint

NODES_SHOWN = 32
MOST_PRINTED = 256  # nodes with lines of their own in `status`
LONGEST_GROUP = len("4,096 nodes")
RULE = 72  # characters


def table_lines(
    status: StatusDocument,
    now: float,
    width: int,
    most: int = NODES_SHOWN,
    began: float | None = None,
    colour: bool = False,
) -> list[str]:
    """Write a rule with the time, headings, a line a node, and the totals of several.

    Of more than `most` nodes those that are alike have one line. `now` and `began`, when the run began, are in
    unix seconds.
    """
    progress = RunProgress.of(status.nodes)
    name_width = max(widest_label(status.nodes), LONGEST_GROUP if len(status.nodes) > most else 0)
    lines = [_rule(time_text(progress, now, began, status.goodput), width, colour)]
    lines.append(paint(cut(heading(name_width), width - 1), DIM, colour))
    for group in grouped(status.nodes, most):
        lines.append(styled(group[0], cut(clean(group_line(group, now, name_width), colour=False), width - 1), colour))
    if len(status.nodes) > 1:
        lines.append(cut(total_line(status.nodes, progress, now, name_width), width - 1))
    return lines


def _rule(text: str, width: int, colour: bool) -> str:
    length = min(width - 1, RULE)
    words = cut(f"── {text} ", length) if text else ""
    return paint(words + "─" * (length - len(words)), DIM, colour)


def time_text(progress: RunProgress, now: float, began: float | None, goodput: float | None = None) -> str:
    """Write how long a run has taken, what is left, and how much of it was training; nothing where not known."""
    parts = []
    if began is not None and began <= now:
        parts.append(format_elapsed(now - began))
    if progress.seconds_left is not None:
        parts.append(f"about {format_elapsed(progress.seconds_left)} left")
    if goodput is not None:
        parts.append(f"goodput {format_percent(goodput)}")
    return ", ".join(parts)


def styled(node: NodeStatus, line: str, colour: bool) -> str:
    """Colour the line of a node that is not as it should be, or has such a rank."""
    states = [node.state, *(rank.state for rank in node.ranks)]
    style = next((STATE_STYLES[state] for state in states if state in STATE_STYLES), "")
    return paint(line, style, colour)


def widest_label(nodes: Iterable[NodeStatus]) -> int:
    """Count the characters of the longest label, at least 5."""
    return max([len(label(node)) for node in nodes] + [5])


def label(node: NodeStatus) -> str:
    """Name the node, behind its role; where the list has an address, the host's own name with the address beside it."""
    return f"{node.role} {name_with(node.name, node.address or '')}".lstrip()


def without_clock(node: NodeStatus) -> NodeStatus:
    """Leave out when the last output came: of a run that is over it says nothing."""
    return replace(node, ranks=tuple(replace(rank, last_output=None) for rank in node.ranks))


def heading(name_width: int) -> str:
    """Write the headings of `node_line`."""
    return _line(("node", "state", "ranks", "step", "steps/s", "last output"), name_width)


def node_line(node: NodeStatus, now: float, name_width: int = 5) -> str:
    """Write a node's line; blank where nothing is known. `now`: unix seconds."""
    progress = RunProgress.of([node])
    return _line((label(node), node.state, *_cells(node.ranks, progress, now)), name_width)


def grouped(nodes: Sequence[NodeStatus], most: int) -> list[list[NodeStatus]]:
    """Put nodes of one state, with ranks of the same states, into groups, the smallest first; up to `most` of them.

    Up to `most` nodes stand alone each. What remains of too many groups is the last.
    """
    if len(nodes) <= most:
        return [[node] for node in nodes]
    alike: dict[tuple[str, str, frozenset[tuple[str, int]]], list[NodeStatus]] = {}
    for node in nodes:
        states = frozenset(Counter(rank.state for rank in node.ranks).items())
        alike.setdefault((node.role, node.state, states), []).append(node)
    groups = sorted(alike.values(), key=len)
    if len(groups) <= most:
        return groups
    rest = [node for group in groups[most - 1 :] for node in group]
    return [*groups[: most - 1], rest]


def group_line(nodes: Sequence[NodeStatus], now: float, name_width: int) -> str:
    """Write the line of nodes that are alike."""
    if len(nodes) == 1:
        return node_line(nodes[0], now, name_width)
    ranks = [rank for node in nodes for rank in node.ranks]
    states = {node.state for node in nodes}
    state = states.pop() if len(states) == 1 else ""
    named = f"{nodes[0].role} {len(nodes):,} nodes".lstrip()
    return _line((named, state, *_cells(ranks, RunProgress.of(nodes), now)), name_width)


def total_line(nodes: Sequence[NodeStatus], progress: RunProgress, now: float, name_width: int) -> str:
    """Write the line of all nodes: the step of the rank that is behind, the rate of the slowest."""
    ranks = [rank for node in nodes for rank in node.ranks]
    return _line(("total", count_of(len(nodes), "node"), *_cells(ranks, progress, now)), name_width)


def _cells(ranks: Sequence[RankStatus], progress: RunProgress, now: float) -> tuple[str, ...]:
    states = ", ".join(f"{count} {state}" for state, count in Counter(rank.state for rank in ranks).items())
    outputs = [rank.last_output for rank in ranks if rank.last_output is not None]
    rate = f"{progress.rate:.2f}" if progress.rate is not None else ""
    quiet = f"{max(0.0, now - max(outputs)):.0f} s ago" if outputs else ""
    return states, progress.step_text, rate, quiet


def _line(cells: Sequence[str], name_width: int) -> str:
    name, state, ranks, step, rate, quiet = cells
    return f"{name:<{name_width}}  {state:<10}  {ranks:<22}  {step:>11}  {rate:>8}  {quiet}".rstrip()
