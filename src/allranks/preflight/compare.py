"""What the checks have in common: how findings are made, nodes grouped and compared, and commands written."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import (
    Callable,
    Dict,
    Generic,
    Hashable,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from allranks.findings import Finding, Where
from allranks.protocol.codec import decode
from allranks.text import group as group  # for the checks
from allranks.text import join_names, join_words, plural

from .typed_facts import Facts

Nodes = Mapping[str, Facts]
Findings = Iterator[Finding]
Kind = TypeVar("Kind")
Item = TypeVar("Item")
Value = TypeVar("Value", bound=Hashable)


# -- what was collected ----------------------------------------------------------------------------


def collected(facts_by_node: Nodes, check: str, kind: Type[Kind]) -> Dict[str, Kind]:
    """What a check collected, decoded; nodes where it is absent or empty are left out. Raise DecodeError."""
    values = {}
    for node, facts in facts_by_node.items():
        value = facts.get(check)
        if value and not facts.error(check):
            values[node] = decode(kind, value)
    return values


# -- findings --------------------------------------------------------------------------------------


def place(nodes: Sequence[str], gpu: Optional[int] = None, interface: Optional[str] = None) -> Where:
    """Where a finding about several nodes is; the first stands for all."""
    return Where(node=nodes[0], nodes=tuple(nodes) if len(nodes) > 1 else (), gpu=gpu, interface=interface)


def fail_if(
    fails: bool,
    label: str,
    nodes: Union[str, Sequence[str]],
    message: str,
    remedy: str = "",
    evidence: Iterable[str] = (),
    gpu: Optional[int] = None,
    interface: Optional[str] = None,
) -> Finding:
    """Make a finding about nodes, else a warning; `label` is a cause of failure or the check's own ID."""
    where = place([nodes] if isinstance(nodes, str) else nodes, gpu, interface)
    return Finding(label, "fail" if fails else "warn", message, remedy, where, tuple(evidence))


fail = partial(fail_if, True)
warn = partial(fail_if, False)


def unknown(check: str, nodes: Sequence[str], message: str, remedy: str = "") -> Finding:
    """Make the finding that a check could not look at nodes."""
    return Finding(check, "unknown", message, remedy, place(nodes))


def nodes_of(where: Where) -> Tuple[str, ...]:
    """All nodes that a finding is about."""
    return where.nodes or tuple(node for node in (where.node, where.peer) if node is not None)


# -- wording ---------------------------------------------------------------------------------------


def who(nodes: Sequence[str], one: str = "has", many: str = "have") -> str:
    """Nodes with their verb: `h3 has`, `h3 and h4 have`."""
    return f"{join_names(nodes)} {plural(len(nodes), one, many)}"


def others(fine: Sequence[str], have: str, has: str) -> str:
    """` (the other 3 have it)`, or nothing where no node is fine."""
    if not fine:
        return ""
    return f" (the other {len(fine)} {have})" if len(fine) > 1 else f" ({fine[0]} {has})"


def lack(absent: Sequence[str], fine: Sequence[str], what: str) -> str:
    """`h3 has no /data (the other 7 have it)`."""
    return f"{who(absent)} no {what}{others(fine, 'have it', 'has it')}"


def and_so_for(nodes: List[str]) -> str:
    """What stands behind a command for the first of several nodes."""
    return f" (and so for {join_names(nodes)})" if nodes else ""


def some(words: Sequence[str], limit: int) -> str:
    """The first words of a list: `a.py, b.py and 7 more`."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def differing(values: Mapping[str, object]) -> str:
    """`3.11 (h0, h1 and h2) and 3.9 (h3)`."""
    shown = {node: str(value) for node, value in values.items()}
    return join_words([f"{value} ({join_names(nodes)})" for value, nodes in by_value(shown).items()])


def size(number: float) -> str:
    """Bytes for people, in the powers of two that df and docker use."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def remote(node: str, command: str, *arguments: str) -> str:
    """A command line that runs on a node: `command` as a shell reads it, `arguments` as they are.

    The remote shell splits what ssh is given once more.
    """
    line = " ".join([command, *map(shlex.quote, arguments)])
    plain = "'" not in line or any(c in line for c in '"$`\\!')
    return f"ssh {node} {shlex.quote(line)}" if plain else f'ssh {node} "{line}"'


def advise(advice: str, node: str, command: str, *arguments: str) -> str:
    """Advice, and the command that shows more."""
    return f"{advice}. Look: {remote(node, command, *arguments)}"


# -- nodes by value --------------------------------------------------------------------------------


def values_of(nodes: Mapping[str, Kind], value: Callable[[Kind], Item]) -> Dict[str, Item]:
    """A value of each node."""
    return {node: value(one) for node, one in nodes.items()}


def having(nodes: Mapping[str, Kind], value: Callable[[Kind], Optional[Item]]) -> Dict[str, Item]:
    """A value of each node that has one: it is neither None, empty nor 0."""
    values = {}
    for node, one in nodes.items():
        item = value(one)
        if item:
            values[node] = item
    return values


def those(nodes: Mapping[str, Kind], fits: Callable[[Kind], object]) -> Dict[str, Kind]:
    """The nodes that fit."""
    return {node: one for node, one in nodes.items() if fits(one)}


def by_value(values: Mapping[str, Value]) -> Dict[Value, List[str]]:
    """Nodes by value, the value of most nodes first (ties: the value of the earlier node)."""
    groups = group(values, values.__getitem__)
    order = list(groups)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), order.index(item[0]))))


def by_item(values: Mapping[str, Mapping[Value, Item]]) -> Dict[Value, Dict[str, Item]]:
    """What nodes have of each item (a port, an interface, a path): {item: {node: …}} of {node: {item: …}}."""
    items: Dict[Value, Dict[str, Item]] = {}
    for node, of_node in values.items():
        for name, value in of_node.items():
            items.setdefault(name, {})[node] = value
    return items


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
        machine = facts_by_node[node].identity.boot_id or node
        if machine not in best or value > values[best[machine]]:
            best[machine] = node
    return {node: values[node] for node in best.values()}


def slow_machines(
    facts_by_node: Nodes, speeds: Mapping[str, float], least: float
) -> Iterator[Tuple[str, float, float]]:
    """The nodes below this part of the median, their speed and the median. The best node of a machine counts."""
    best = best_of_machines(facts_by_node, speeds)
    usual = median(best.values())
    for node, speed in best.items():
        if speed < least * usual:
            yield node, speed, usual


# -- what nodes should have in common --------------------------------------------------------------

LISTED = 8


@dataclass(frozen=True)
class Split(Generic[Value]):
    """How nodes that differ divide: `norm` is what `fine` (more than half, at least two) have.

    Without such a majority `fine` is empty, `norm` None, and `odd` holds all nodes.
    """

    norm: Optional[Value]
    fine: List[str]
    odd: Dict[Value, List[str]]

    @property
    def rest(self) -> str:
        """The nodes that are fine: `the other 3`, or `3 of 5 nodes` where the odd ones differ among themselves."""
        fine = len(self.fine)
        if len(self.odd) == 1:
            return f"the other {fine}"
        return f"{fine} of {fine + sum(map(len, self.odd.values()))} nodes"


@dataclass(frozen=True)
class Difference(Generic[Value]):
    """A sentence about `nodes`, the odd ones or, without a majority (`norm` None), all."""

    nodes: List[str]
    message: str
    value: Optional[Value]
    norm: Optional[Value]


def split(values: Mapping[str, Value]) -> Optional[Split[Value]]:
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
    values: Mapping[str, Value],
    show: Callable[[Value], str] = str,
    one: str = "has",
    many: str = "have",
    subject: str = "",
) -> List[Difference[Value]]:
    """`h3 has torch 2.6.0 (the other 7 have 2.13.0)`: one for each odd value; one in all without a majority.

    The value None reads `no torch`. `one` and `many` are the verb: `h3 is at commit …`. With a `subject` the sentence
    is about a part of the nodes: `eth0 on h3 runs at 10 Gb/s (the other 7 run at 100 Gb/s)`.
    """
    parted = split(values)
    if parted is None:
        return []
    if not parted.fine:
        return [Difference(list(values), _no_majority(what, parted.odd, show), None, None)]
    norm = "none" if parted.norm is None else show(parted.norm)
    sentences = []
    for value, nodes in parted.odd.items():
        if subject:
            sentence = f"{subject} on {join_names(nodes)} {one} {show(value)}"
        elif value is None:
            sentence = f"{who(nodes, one, many)} no {what}"
        else:
            sentence = f"{who(nodes, one, many)} {what} {show(value)}"
        sentences.append(Difference(nodes, f"{sentence} ({parted.rest} {many} {norm})", value, parted.norm))
    return sentences


def _no_majority(what: str, groups: Mapping[Value, Sequence[str]], show: Callable[[Value], str]) -> str:
    shown = [f"{'none' if v is None else show(v)} ({join_names(nodes)})" for v, nodes in groups.items()]
    agree = any(len(nodes) > 1 for nodes in groups.values())
    head = f"no majority for {what}" if agree else f"no two nodes agree on {what}"
    return f"{head}: {join_words(shown, limit=LISTED + 1)}"


def warn_each(
    label: str,
    odd: Iterable[Difference[Value]],
    remedy: Callable[[Difference[Value]], str],
    interface: Optional[str] = None,
) -> Findings:
    """A warning for each difference."""
    for one in odd:
        yield warn(label, one.nodes, one.message, remedy(one), interface=interface)


class Differs(NamedTuple):
    """A declaration: a value, read from what a check collects, that all nodes should have in common.

    The remedy is a template: {node} is the first odd node, {look} the command that shows its value, {norm} what most
    nodes have or, where they do not agree on one value, `default`. A check whose whole judgement is such comparisons
    has a tuple of them, COMPARES, in the place of `judge`.
    """

    key: str
    label: str
    remedy: str
    look: str = ""
    default: str = ""

    def judge(self, check: str, nodes: Mapping[str, Mapping[str, str]]) -> Findings:
        """A warning for each odd value of what was collected."""
        values = {node: one[self.key] for node, one in nodes.items() if one.get(self.key)}
        return warn_each(check, differences(self.label, values), self._remedy)

    def _remedy(self, odd: Difference[str]) -> str:
        norm = odd.norm
        if norm is None or " and " in norm:
            norm = self.default
        return self.remedy.format(node=odd.nodes[0], look=remote(odd.nodes[0], self.look), norm=norm)
