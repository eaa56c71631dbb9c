"""Findings name a fault: the transport, a check, the rendezvous check, or the engine that took its nodes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allranks.findings import OF_SLURM, Finding, Where

from ..candidate import Candidate, Strength
from ..causes import CAUSES, cause_or_unknown
from ..incident import Incident
from ..words import name_nodes


def engine_ended(incident: Incident) -> Candidate | None:
    """Take the engine's word for the job: a time limit, a preemption, a cancelled job, a failed node."""
    finding = next((f for f in incident.findings if f.check == OF_SLURM and f.status == "fail"), None)
    if finding is None:
        return None
    cause = cause_or_unknown(finding.id)
    return Candidate(
        cause,
        0.7 if cause == "unknown" else 0.95,
        finding.message,
        finding.remedy,
        Strength.ENGINE,
        evidence=finding.evidence,
        culprits=incident.ranks_of([finding.where.node or ""]),
        where=finding.where,
    )


def check_finding(incident: Incident) -> Candidate | None:
    """Take the first failed finding that no other explains; nodes that fail alike are named as one."""
    failed = _in_order(incident, dict.fromkeys(f for f in incident.findings if f.status == "fail"))
    if not failed:
        return None
    explained = {cause for f in failed if f.id in CAUSES for cause in CAUSES[f.id].explains}
    root = next((f for f in failed if f.id not in explained), failed[0])
    same = [f for f in failed if f.id == root.id]
    culprits = incident.ranks_of(f.where.node or "" for f in same)
    if root.where.rank is not None and len(same) == 1:
        culprits = frozenset([root.where.rank])
    return Candidate(
        "data-not-split" if root.check == "data-audit" else cause_or_unknown(root.id),
        0.9,
        _message(same),
        "\n".join(dict.fromkeys(line for f in same for line in f.remedy.splitlines())),
        Strength.FINDING,
        evidence=tuple(dict.fromkeys(line for f in same for line in f.evidence))[:3],
        culprits=culprits,
        where=_shared_place(same),
        others=tuple(f for f in failed if f.id != root.id),
    )


def _in_order(incident: Incident, findings: Iterable[Finding]) -> list[Finding]:
    """Order findings: of checks as they came, of the transport by node, as it is chance which node failed first."""
    order = {node: at for at, node in enumerate(incident.ranks_by_node)}
    return sorted(findings, key=lambda f: -1 if f.check else order.get(f.where.node or "", -1))


def _shared_place(same: Sequence[Finding]) -> Where:
    """Give one finding's own place; of several, only what they share."""
    first = same[0].where._asdict()
    return Where(**{k: v for k, v in first.items() if all(getattr(f.where, k) == v for f in same)})


def _message(same: Sequence[Finding]) -> str:
    """Write one sentence for all: `h2, h3 and h4: Permission denied (publickey)`."""
    nodes = [f.where.node for f in same if f.where.node]
    rests = {_without_node(f) for f in same if f.where.node}
    if len(same) == 1 or len(nodes) < len(same) or len(rests) > 1:  # else links, or the run: each message has its place
        return "; ".join([f.message for f in same[:4]] + ["…"] * (len(same) > 4))
    names = name_nodes(list(dict.fromkeys(nodes)))
    rest = rests.pop()
    if rest.startswith("the node can"):
        return f"{names} {rest.removeprefix('the node ')}"
    return f"{names}: {rest}"


def _without_node(finding: Finding) -> str:
    """Remove a node's name from its message, and the `user@node:` in front. As its own peer it keeps the name."""
    message = finding.message
    node = finding.where.node or ""
    if finding.where.peer == node:
        return message.replace(node, "the node", 1)
    word, _, rest = message.partition(": ")
    while rest and word.endswith(node) and not any(letter.isspace() for letter in word):
        message = rest
        word, _, rest = message.partition(": ")
    message = message.replace(f"hostname {node}", "the node's name")  # as OpenSSH says it
    return message.replace(f"host {node}", "the node").replace(node, "the node")


RULES = {
    "check-finding": ("the findings themselves: each is a look at the thing it names", check_finding),
    "engine-ended": (
        "Slurm's scontrol show job and slurmstepd's lines (a finding carries its engine as its check)",
        engine_ended,
    ),
}
