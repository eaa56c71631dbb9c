"""Comparison, shared by the checks: reading a part of the facts, finding the odd nodes among the others."""

from __future__ import annotations

import shlex
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from allranks.findings import Where
from allranks.text import join_names, plural

Facts = Mapping[str, Any]
Nodes = Mapping[str, Facts]


def part(facts: Facts, name: str) -> Mapping[str, Any]:
    """A part of the facts that could be looked at; empty where it failed or is absent."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) and "error" not in value else {}


def part_error(facts: Facts, name: str) -> str:
    """Why a part of the facts could not be looked at; empty where it could."""
    value = facts.get(name)
    return str(value["error"]) if isinstance(value, Mapping) and "error" in value else ""


def place(nodes: Sequence[str], **more: Any) -> Where:
    """Where a finding about several nodes is; the first stands for all."""
    return Where(node=nodes[0], nodes=tuple(nodes) if len(nodes) > 1 else (), **more)


def others(odd: Sequence[str], fine: Sequence[str], have: str, has: str) -> str:
    """`; the other 3 have it`, or nothing where no node is fine."""
    if not fine:
        return ""
    return f"; the other {len(fine)} {have}" if len(fine) > 1 else f"; {fine[0]} {has}"


def remote(node: str, *words: str) -> str:
    """A command line that runs words on a node: the remote shell splits what ssh is given once more."""
    line = shlex.join(words)
    plain = "'" not in line or any(c in line for c in '"$`\\!')
    return f"ssh {node} {shlex.quote(line)}" if plain else f'ssh {node} "{line}"'


def by_value(values: Mapping[str, Any]) -> dict[Any, list[str]]:
    """Nodes by value, the value of most nodes first (ties: the value of the earlier node)."""
    groups: dict[Any, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    order = list(groups)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), order.index(item[0]))))


def differing(values: Mapping[str, Any]) -> str:
    """`3.11 on h0, h1 and h2; 3.9 on h3`."""
    return "; ".join(f"{value} on {join_names(nodes)}" for value, nodes in by_value(values).items())


def size(number: float) -> str:
    """Bytes for people, in the powers of two that df and docker use."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


# -- what nodes should have in common --------------------------------------------------------------

LISTED = 8


class Split(NamedTuple):
    """How nodes that differ divide: `norm` is what `fine` (more than half, at least two) have.

    Without such a majority `fine` is empty, `norm` None, and `odd` holds all nodes.
    """

    norm: Any
    fine: List[str]
    odd: Dict[Any, List[str]]


class Difference(NamedTuple):
    """A sentence about `nodes`, the odd ones or, without a majority (`norm` None), all."""

    nodes: List[str]
    message: str
    value: Any
    norm: Any


def split(values: Mapping[str, Any]) -> Optional[Split]:
    """Which nodes are odd, by their (hashable) values; None where all have the same."""
    groups = by_value(values)
    if len(groups) < 2:
        return None
    norm, fine = next(iter(groups.items()))
    if len(fine) < 2 or 2 * len(fine) <= len(values):
        return Split(None, [], groups)
    return Split(norm, fine, {value: nodes for value, nodes in groups.items() if value != norm})


def differences(
    what: str, values: Mapping[str, Any], show: Callable[[Any], str] = str, one: str = "has", many: str = "have"
) -> List[Difference]:
    """`h3 has torch 2.6.0; the other 7 have 2.13.0`: one for each odd value; one in all without a majority.

    The value None is said as `no torch`. `one` and `many` are the verb: `h3 is at commit …`.
    """
    parted = split(values)
    if parted is None:
        return []
    if not parted.fine:
        return [Difference(list(values), _no_majority(what, parted.odd, show), None, None)]
    norm = "none" if parted.norm is None else show(parted.norm)
    fine, count = len(parted.fine), len(values)
    rest = f"the other {fine} {many} {norm}" if len(parted.odd) == 1 else f"{fine} of {count} nodes {many} {norm}"
    sentences = []
    for value, nodes in parted.odd.items():
        shown = f"no {what}" if value is None else f"{what} {show(value)}"
        sentences.append(
            Difference(
                nodes, f"{join_names(nodes)} {plural(len(nodes), one, many)} {shown}; {rest}", value, parted.norm
            )
        )
    return sentences


def _no_majority(what: str, groups: Mapping[Any, Sequence[str]], show: Callable[[Any], str]) -> str:
    shown = [f"{'none' if v is None else show(v)} on {join_names(nodes)}" for v, nodes in groups.items()]
    more = [f"and {len(shown) - LISTED} more"] if len(shown) > LISTED else []
    agree = any(len(nodes) > 1 for nodes in groups.values())
    head = f"no majority for {what}" if agree else f"no two nodes agree on {what}"
    return f"{head}: {'; '.join(shown[:LISTED] + more)}"


def target(request: Mapping[str, Any]) -> str:
    """How the user named the nodes, to be put into a command."""
    return str(request.get("target") or "--hosts HOSTS")
