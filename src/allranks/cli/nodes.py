"""allranks nodes: what earlier runs, checks and tests have found of each node."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.protocol.codec import document_line
from allranks.report.terminal import clean, paint_line, shows_colour
from allranks.runs.nodeledger import NodeRecord, RememberedNode, forget_records, ledger_file, read_ledger, remembered
from allranks.text import align_columns, count_of, format_ago, join_words


class NodesReport(NamedTuple):
    """What `nodes --json` prints. `forgotten`: records that --forget has removed."""

    file: str
    nodes: Sequence[RememberedNode]
    forgotten: int


def command(forget: Sequence[str], quiet: bool, json_: bool) -> int:
    """Show the nodes, or forget some."""
    now = time.time()
    file = ledger_file(os.environ)
    nodes = remembered(read_ledger(file), now)
    forgotten = 0
    if forget:
        chosen = [_found(name, nodes) for name in forget]
        forgotten = _forget(chosen, file)
        nodes = remembered(read_ledger(file), now)
    if json_:
        sys.stdout.write(document_line(NodesReport(str(file), nodes, forgotten)) + "\n")
        return DONE
    if quiet:
        shown = [node.name for node in nodes if node.suspicion]
    elif forget:
        shown = [f"forgot {count_of(forgotten, 'record')} of {join_words(list(forget))}"]
    else:
        shown = lines_of(nodes, now, str(file))
    colour = shows_colour(sys.stdout)
    sys.stdout.write("".join(paint_line(clean(line, colour=False), colour) + "\n" for line in shown))
    return DONE


def _found(name: str, nodes: Sequence[RememberedNode]) -> RememberedNode:
    for node in nodes:
        if node.machine and node.machine == name:
            return node
    for node in nodes:
        if name in node.names:
            return node
    shown_names = ", ".join(node.name for node in nodes[:8]) or "none"
    raise UsageError(f"--forget {name}: no run has seen such a node. Known are {shown_names}")


def _forget(chosen: Sequence[RememberedNode], file: Path) -> int:
    try:
        return forget_records(file, lambda record: any(_is_of(record, node) for node in chosen))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or 'another allranks holds it'}") from None


def _is_of(record: NodeRecord, node: RememberedNode) -> bool:
    has_name = record.name in node.names or record.hostname in node.names
    if not record.machine:
        return has_name
    return record.machine == node.machine and (node.known_by == "machine" or has_name)


def lines_of(nodes: Sequence[RememberedNode], now: float, file: str) -> list[str]:
    """Return the table, then the suspects with their reasons, then what is not certain of an identity."""
    if not nodes:
        return [f"no run has noted a node in {file}"]
    rows = [["node", "runs", "last seen", "faults", "suspected"]]
    for node in nodes:
        faults = ", ".join(f"{cause} {count}" for cause, count in node.failures.items()) or "-"
        ago = format_ago(now - node.last_seen)
        rows.append([node.name, str(node.runs), ago, faults, "yes" if node.suspicion else "-"])
    lines = [*align_columns(rows, left=range(len(rows[0])))]
    lines += [f"suspected  {node.name}: {node.suspicion}" for node in nodes if node.suspicion]
    shared = [node.name for node in nodes if node.known_by == "machine and host name"]
    if shared:
        lines.append(f"note: {join_words(shared)} show the same machine identity and are distinguished by host name")
    by_name = [node.name for node in nodes if node.known_by == "name"]
    if by_name:
        lines.append(f"note: {join_words(by_name)} showed no machine identity and are known by name alone")
    return lines
