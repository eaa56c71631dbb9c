"""Comparison, shared by the checks: reading a part of the facts, finding the odd nodes among the others."""

from __future__ import annotations

import shlex
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from allranks.findings import Finding, Where
from allranks.text import join_names, plural

from .host import Record, Request

Facts = Record
Nodes = Mapping[str, Facts]


def part(facts: Facts, name: str) -> Record:
    """A part of the facts that could be collected; empty where it failed or is absent."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) and "error" not in value else {}


def parts(facts_by_node: Nodes, name: str) -> Dict[str, Record]:
    """That part of every node that has one; nodes without it, or with an empty one, are left out."""
    values = {node: part(facts, name) for node, facts in facts_by_node.items()}
    return {node: value for node, value in values.items() if value}


def part_error(facts: Facts, name: str) -> str:
    """Why a part of the facts could not be collected; empty where it could."""
    value = facts.get(name)
    return str(value["error"]) if isinstance(value, Mapping) and "error" in value else ""


def gpu_count(facts: Facts) -> int:
    """GPUs that a node has by its basic facts."""
    return int(part(facts, "gpus").get("count") or 0)


def place(nodes: Sequence[str], **more: Any) -> Where:
    """Where a finding about several nodes is; the first stands for all."""
    return Where(node=nodes[0], nodes=tuple(nodes) if len(nodes) > 1 else (), **more)


def others(fine: Sequence[str], have: str, has: str) -> str:
    """`; the other 3 have it`, or nothing where no node is fine."""
    if not fine:
        return ""
    return f"; the other {len(fine)} {have}" if len(fine) > 1 else f"; {fine[0]} {has}"


def lack(absent: Sequence[str], fine: Sequence[str], what: str) -> str:
    """`h3 has no /data; the other 7 have it`."""
    verb = plural(len(absent), "has", "have")
    return f"{join_names(absent)} {verb} no {what}{others(fine, 'have it', 'has it')}"


def some(words: Sequence[str], limit: int) -> str:
    """The first words of a list: `a.py, b.py and 7 more`."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def median(values: Iterable[float]) -> float:
    """The middle value, the mean of the two middle ones of an even number; 0 without any."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def best_of_machines(facts_by_node: Nodes, values: Mapping[str, float]) -> Dict[str, float]:
    """The node with the largest value of each machine: those that share one are measured side by side."""
    best: Dict[str, str] = {}
    for node, value in values.items():
        machine = str(part(facts_by_node[node], "identity").get("boot_id") or node)
        if machine not in best or value > values[best[machine]]:
            best[machine] = node
    return {node: values[node] for node in best.values()}


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


def nodes_of(where: Where) -> Tuple[str, ...]:
    """All nodes that a finding is about."""
    return where.nodes or tuple(node for node in (where.node, where.peer) if node is not None)


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
    what: str,
    values: Mapping[str, Any],
    show: Callable[[Any], str] = str,
    one: str = "has",
    many: str = "have",
    subject: str = "",
) -> List[Difference]:
    """`h3 has torch 2.6.0; the other 7 have 2.13.0`: one for each odd value; one in all without a majority.

    The value None reads `no torch`. `one` and `many` are the verb: `h3 is at commit …`. With a `subject` the sentence
    is about a part of the nodes: `eth0 on h3 runs at 10 Gb/s; the other 7 run at 100 Gb/s`.
    """
    parted = split(values)
    if parted is None:
        return []
    if not parted.fine:
        return [Difference(list(values), _no_majority(what, parted.odd, show), None, None)]
    norm = "none" if parted.norm is None else show(parted.norm)
    fine = len(parted.fine)
    count = len(values)
    rest = f"the other {fine} {many} {norm}" if len(parted.odd) == 1 else f"{fine} of {count} nodes {many} {norm}"
    sentences = []
    for value, nodes in parted.odd.items():
        names = join_names(nodes)
        if subject:
            sentence = f"{subject} on {names} {one} {show(value)}"
        elif value is None:
            sentence = f"{names} {plural(len(nodes), one, many)} no {what}"
        else:
            sentence = f"{names} {plural(len(nodes), one, many)} {what} {show(value)}"
        sentences.append(Difference(nodes, f"{sentence}; {rest}", value, parted.norm))
    return sentences


def warn(check: str, odd: Iterable[Difference], remedy: Callable[[Difference], str], **where: Any) -> List[Finding]:
    """A warning for each difference."""
    return [Finding(check, "warn", d.message, remedy(d), place(d.nodes, **where)) for d in odd]


class Differs(NamedTuple):
    """A declaration: a value, read from what a check collects, that all nodes should have in common.

    The remedy is a template: {node} is the first odd node, {look} the command that shows its value, {norm} what most
    nodes have or, where they do not agree on one value, `default`. A check whose whole judgement is such comparisons
    has a tuple of them, COMPARES, in the place of `judge`.
    """

    key: str
    label: str
    remedy: str
    look: Tuple[str, ...] = ()
    default: str = ""

    def judge(self, check: str, facts_by_node: Nodes) -> List[Finding]:
        """A warning for each odd value."""
        values = {node: value[self.key] for node, value in parts(facts_by_node, check).items() if value.get(self.key)}
        return warn(check, differences(self.label, values), self._remedy)

    def _remedy(self, odd: Difference) -> str:
        norm = odd.norm
        if norm is None or " and " in norm:
            norm = self.default
        return self.remedy.format(node=odd.nodes[0], look=remote(odd.nodes[0], *self.look), norm=norm)


def _no_majority(what: str, groups: Mapping[Any, Sequence[str]], show: Callable[[Any], str]) -> str:
    shown = [f"{'none' if v is None else show(v)} on {join_names(nodes)}" for v, nodes in groups.items()]
    more = [f"and {len(shown) - LISTED} more"] if len(shown) > LISTED else []
    agree = any(len(nodes) > 1 for nodes in groups.values())
    head = f"no majority for {what}" if agree else f"no two nodes agree on {what}"
    return f"{head}: {'; '.join(shown[:LISTED] + more)}"


def target(request: Request) -> str:
    """How the user named the nodes, to be put into a command."""
    return str(request.get("target") or "--hosts HOSTS")
