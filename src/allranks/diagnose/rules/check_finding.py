"""What the transport, the preflight or the gate has found at fault explains why a run did not start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allranks.findings import Finding, Where

from ..candidate import Candidate, Strength
from ..causes import CAUSES, cause_or_unknown
from ..incident import Incident
from ..words import name_nodes

ID = "check-finding"
SOURCE = "the findings themselves: each is a look at the thing it names"


def apply(incident: Incident) -> Candidate | None:
    """The first failed finding that no other explains; nodes that fail alike are named together."""
    failed = _in_order(incident, dict.fromkeys(f for f in incident.findings if f.status == "fail"))
    if not failed:
        return None
    explained = {cause for f in failed if f.id in CAUSES for cause in CAUSES[f.id].explains}
    root = next((f for f in failed if f.id not in explained), failed[0])
    same = [f for f in failed if f.id == root.id]
    nodes = {f.where.node for f in same if f.where.node}
    ranks = frozenset(r for n in nodes for r in incident.ranks_by_node.get(n, ()))
    return Candidate(
        ID,
        _cause(root),
        Strength.FINDING,
        _message(same),
        0.9,
        remedy="\n".join(dict.fromkeys(line for f in same for line in f.remedy.splitlines())),
        where=_where(same),
        evidence=tuple(dict.fromkeys(line for f in same for line in f.evidence))[:3],
        culprits=ranks,
        others=tuple(f for f in failed if f.id != root.id),
    )


def _in_order(incident: Incident, findings: Iterable[Finding]) -> list[Finding]:
    """Findings of checks as they came, those of the transport by node: which node failed first is chance."""
    place = {node: at for at, node in enumerate(incident.ranks_by_node)}
    return sorted(findings, key=lambda f: -1 if f.check else place.get(f.where.node or "", -1))


def _cause(root: Finding) -> str:
    """What the audit of the data says has one label: nothing has hung or failed yet."""
    if root.check == "data-audit":
        return "data-not-split"
    return cause_or_unknown(root.id)


def _where(same: Sequence[Finding]) -> Where:
    """One finding's own place; of several, only what they share."""
    first = same[0].where
    shared = {k: v for k, v in vars(first).items() if all(getattr(f.where, k) == v for f in same)}
    return Where(**shared)


def _message(same: Sequence[Finding]) -> str:
    """h2, h3 and h4: Permission denied (publickey)."""
    if len(same) == 1:
        return same[0].message
    nodes = [f.where.node for f in same if f.where.node]
    every = "; ".join(f.message for f in same[:4]) + ("; …" if len(same) > 4 else "")
    if len(nodes) < len(same):  # of links, or of the run as a whole: each message says where
        return every
    rests = {_rest(f.message, n) for f, n in zip(same, nodes, strict=True)}
    names = name_nodes(list(dict.fromkeys(nodes)))
    if len(rests) > 1:
        return every
    rest = rests.pop()
    return f"{names} {rest.removeprefix('the node ')}" if rest.startswith("the node can") else f"{names}: {rest}"


def _rest(message: str, node: str) -> str:
    """A node's message without its name and the `user@node:` in front."""
    word, _, rest = message.partition(": ")
    while rest and word.endswith(node) and not any(letter.isspace() for letter in word):
        message = rest
        word, _, rest = message.partition(": ")
    return message.replace(node, "the node")
