"""A line for each node of a run: the table below the log of a live run, and what `status` prints (pure)."""

from __future__ import annotations

from collections import Counter

from allranks.runs.documents import NodeStatus, StatusDocument
from allranks.text import count_of, name_with

from .terminal import clean

NODES_SHOWN = 32


def table_lines(status: StatusDocument, now: float, width: int, most: int = NODES_SHOWN) -> list[str]:
    """Write one line a node, `most` at most: name, state, ranks, step, rate, seconds since the last output."""
    name_width = widest_label(status.nodes)
    lines = ["─" * min(width - 1, 72)]
    for node in status.nodes[:most]:
        lines.append(clean(node_line(node, now, name_width), colour=False)[: width - 1])
    if len(status.nodes) > most:
        lines.append(f"… and {count_of(len(status.nodes) - most, 'more node')}: allranks status"[: width - 1])
    return lines


def widest_label(nodes: tuple[NodeStatus, ...]) -> int:
    """Count the characters of the longest label, at least 4."""
    return max([len(label(node)) for node in nodes] + [4])


def label(node: NodeStatus) -> str:
    """Name the node; where the list has an address, the host's own name with the address beside it."""
    return name_with(node.name, node.address or "")


def node_line(node: NodeStatus, now: float, name_width: int = 4) -> str:
    """Write a node's line; blank where nothing is known. `now`: unix seconds."""
    states = ", ".join(f"{count} {state}" for state, count in Counter(rank.state for rank in node.ranks).items())
    steps = [rank.step for rank in node.ranks if rank.step is not None]
    rates = [rank.rate for rank in node.ranks if rank.rate is not None]
    outputs = [rank.last_output for rank in node.ranks if rank.last_output is not None]
    step = f"step {min(steps)}" if steps else ""
    rate = f"{min(rates):.2f} steps/s" if rates else ""
    quiet = f"output {max(0.0, now - max(outputs)):.0f} s ago" if outputs else ""
    return f"{label(node):<{name_width}}  {node.state:<10}  {states:<22}  {step:<10}  {rate:<13}  {quiet}".rstrip()
