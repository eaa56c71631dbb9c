"""A rank's process could not be started: its interpreter, program or working directory is not there."""

from __future__ import annotations

import re

from allranks.findings import Where

from ..candidate import Candidate, Strength
from ..incident import Fault, Incident
from ..signatures import cause_of
from ..words import name_nodes, one_line

ID = "start-failed"
SOURCE = "agent/ranks.py: which call failed (chdir, execvpe), with strerror(3)"
REMEDY = "ls -ld {path} on {node}; name another with --workdir, --python or --prelude, or copy it there"


def apply(incident: Incident) -> Candidate | None:
    """All nodes on which the start failed the same way."""
    faults = sorted((f for f in incident.faults if f.id == "start-failed"), key=lambda f: f.t)
    if not faults:
        return None
    first = faults[0]
    what = _what(first)
    nodes = list(dict.fromkeys(f.node for f in faults if _what(f) == what))
    ranks = [_rank(f) for f in faults if f.node in nodes]
    path = re.search(r"could not (?:enter the working directory|run) (.{1,1000}?): ", first.message)
    who = f"rank {ranks[0]} on {nodes[0]}" if len(nodes) == 1 and ranks[0] is not None else name_nodes(nodes)
    return Candidate(
        ID,
        cause_of(what),
        Strength.ROOT,
        f"{who} {what}",
        0.95,
        first.t or None,
        REMEDY.format(path=path[1] if path else "PATH", node=name_nodes(nodes)),
        Where(node=nodes[0], rank=ranks[0]) if len(nodes) == 1 else Where(),
        tuple(one_line(f"{f.node}: {f.message}") for f in faults[:3]),
        frozenset(r for n in nodes for r in incident.ranks_by_node.get(n, ())),
    )


def _rank(fault: Fault) -> int | None:
    match = re.match(r"rank (\d+) ", fault.message)
    return int(match[1]) if match else None


def _what(fault: Fault) -> str:
    return one_line(re.sub(r"^rank \d+ ", "", fault.message))
