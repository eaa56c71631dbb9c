"""A node was not heard for the whole lease: its link or its power is gone."""

from __future__ import annotations

from dataclasses import replace

from allranks.findings import Finding, Where

from ..candidate import Candidate, Strength
from ..causes import CAUSES
from ..incident import CHANNEL, Incident, LostNode
from ..words import name_nodes, utc

ID = "node-lost"
SOURCE = "allranks' own beats (docs/architecture.md: ping, pong); an agent that died is told by a fault instead"
OURS = "look at this machine's own link first: ip -br link; ping one of the nodes"
STOPPED = (
    "ps -eo pid,stat,args | grep allranks (T: stopped by Ctrl-Z, a debugger or kill -STOP; D: waits for a disk); a "
    "frozen cgroup or container stops them too"
)


def apply(incident: Incident) -> Candidate | None:
    """The node that fell silent first, with those that did so together."""
    answering = {f.node for f in incident.faults if f.id == "agent-death"}
    lost = sorted((n for n in incident.lost if n.node not in answering), key=lambda n: n.last_heard)
    if not lost:
        return None
    first = lost[0]
    names = [n.node for n in lost]
    every = len(lost) > 1 and set(names) >= set(incident.ranks_by_node)
    ranks = frozenset(r for n in names for r in incident.ranks_by_node.get(n, ()))
    candidate = Candidate(
        ID,
        "node-network-down",
        Strength.ROOT,
        _message(lost, every),
        0.6 if every else 0.9,
        first.last_heard,
        OURS if every else "\n".join(CAUSES["node-network-down"].remedy(Where(node=n)) for n in names[:3]),
        Where(node=first.node if len(lost) == 1 else None),
        tuple(f"{n.node}: last heard {utc(n.last_heard)}" + (f"; {n.reason}" if n.reason else "") for n in lost[:3]),
        ranks,
    )
    if all(name in incident.local_nodes for name in names):
        candidate = _here(candidate, lost)
    not_opened = next((f for f in incident.findings if f.check == CHANNEL), None)
    return candidate if not_opened is None else _ours(candidate, not_opened, name_nodes(names))


def _here(candidate: Candidate, lost: list[LostNode]) -> Candidate:
    """Nodes of this machine need no link: their processes do not run."""
    which = name_nodes([n.node for n in lost])
    message = f"{which} fell silent: the agent on this machine did not run for the whole lease ({_when(lost[0])})"
    return replace(candidate, cause="unknown", confidence=0.7, remedy=STOPPED, message=message)


def _ours(candidate: Candidate, not_opened: Finding, nodes: str) -> Candidate:
    """The connection broke, and this machine had no means to open another: nobody knows how the node was."""
    return replace(
        candidate,
        cause=not_opened.id,
        confidence=0.8,
        remedy=not_opened.remedy,
        where=Where(),
        message=f"the connection to {nodes} ended, and no other could be opened: {not_opened.message}",
    )


def _message(lost: list[LostNode], every: bool) -> str:
    when = _when(lost[0])
    if every:
        return f"all {len(lost)} nodes fell silent ({when}): rather this machine's own link than theirs"
    which = name_nodes([n.node for n in lost])
    return f"{which} fell silent: the link or the power is gone ({when})"


def _when(first: LostNode) -> str:
    return f"last heard at {utc(first.last_heard)}, given up {max(0.0, first.t - first.last_heard):.1f} s later"
