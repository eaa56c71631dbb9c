"""What the checks have in common: how findings are made, nodes grouped and compared, and commands written."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Callable, Generic, Hashable, Iterable, Iterator, Mapping, Sequence, TypeVar

from allranks.findings import Finding, Where, unset
from allranks.protocol.codec import decode
from allranks.protocol.facts import Interpreter
from allranks.text import group, join_names, join_words, plural

from .typed_facts import Facts, Request

Nodes = Mapping[str, Facts]
Findings = Iterator[Finding]
Kind = TypeVar("Kind")
Item = TypeVar("Item")
Value = TypeVar("Value", bound=Hashable)
NAMED = 4  # nodes that stand before their values
LISTED = 8  # nodes in evidence, values in a sentence


# -- what was collected ----------------------------------------------------------------------------


def collected(facts_by_node: Nodes, check: str, kind: type[Kind]) -> dict[str, Kind]:
    """Decode what a check collected, without the nodes where it is absent or empty. Raise DecodeError.

    What nodes have alike is one object, and is decoded once.
    """
    values = {}
    decoded: dict[int, Kind] = {}
    for node, facts in facts_by_node.items():
        value = facts.get(check)
        if value and not facts.error(check):
            if id(value) not in decoded:
                decoded[id(value)] = decode(kind, value)
            values[node] = decoded[id(value)]
    return values


# -- findings --------------------------------------------------------------------------------------


def place(nodes: Sequence[str], gpu: int | None = None, interface: str | None = None) -> Where:
    """Make the place of a finding about several nodes; the first stands for all."""
    several = nodes if len(nodes) > 1 else ()
    return Where(node=nodes[0], nodes=tuple(several), gpu=gpu, interface=interface)


def fail_if(
    fails: bool,
    label: str,
    nodes: str | Sequence[str],
    message: str,
    remedy: str = "",
    evidence: Iterable[str] = (),
    gpu: int | None = None,
    interface: str | None = None,
) -> Finding:
    """Make a failure of one or several nodes, else a warning; `label` is a cause of failure or the check's own ID."""
    where = place([nodes] if isinstance(nodes, str) else nodes, gpu, interface)
    return Finding(label, "fail" if fails else "warn", message, remedy, where, tuple(evidence))


fail = partial(fail_if, True)
warn = partial(fail_if, False)


def denied_if(fails: bool, nodes: Sequence[str], path: str, what: str = "read") -> Finding:
    """Make the finding that the user may not read (or enter) a path."""
    message = f"{path} can't be {what} by your user on {join_names(nodes)}"
    return fail_if(fails, "permission-denied", nodes, message, remote(nodes[0], "ls -ld", path))


def unknown(check: str, nodes: Sequence[str], message: str, remedy: str = "") -> Finding:
    """Make the finding that a check could not look at nodes."""
    return Finding(check, "unknown", message, remedy, place(nodes))


def nodes_of(where: Where) -> tuple[str, ...]:
    """List all nodes that a finding is about."""
    return where.nodes or tuple(node for node in (where.node, where.peer) if node is not None)


# -- wording ---------------------------------------------------------------------------------------


def who(nodes: Sequence[str], one: str = "has", many: str = "have") -> str:
    """Name nodes with their verb: `h3 has`, `h3 and h4 have`."""
    return f"{join_names(nodes)} {plural(len(nodes), one, many)}"


def others(fine: Sequence[str], have: str = "have it", has: str = "has it") -> str:
    """Write what the nodes that are fine have, ` (the other 3 have it)`; nothing where no node is fine."""
    if not fine:
        return ""
    if len(fine) > 1:
        return f" (the other {len(fine)} {have})"
    return f" ({fine[0]} {has})"


def lack(absent: Sequence[str], fine: Sequence[str], what: str) -> str:
    """Write who lacks what: `h3 has no /data (the other 7 have it)`."""
    return f"{who(absent)} no {what}{others(fine)}"


def and_so_for(nodes: list[str]) -> str:
    """Write what stands behind a command for the first of several nodes."""
    if nodes:
        return f" (and so for {join_names(nodes)})"
    return ""


def evidence_of(nodes: Iterable[str], word: Callable[[str], str]) -> list[str]:
    """Write a line for each node, few of many: `h3: 12 s`."""
    return [f"{node}: {word(node)}" for node in list(nodes)[:LISTED]]


def values_shown(groups: Mapping[Value, Sequence[str]], show: Callable[[Value], str] = str, limit: int = 0) -> str:
    """Write values with their nodes: `3.11 (h0, h1 and h2) and 3.9 (h3)`; at most `limit` of them (0: all)."""
    return join_words([f"{show(value)} ({join_names(nodes)})" for value, nodes in groups.items()], limit=limit)


def differing(values: Mapping[str, Value]) -> str:
    """Write the value of each node, that of most nodes first."""
    return values_shown(by_value(values))


def size(number: float) -> str:
    """Write bytes in the powers of two that df and docker use."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def remote(node: str, command: str, *arguments: str) -> str:
    """Write the line that runs a command on a node: `command` as a shell reads it, `arguments` as they are.

    The remote shell splits what ssh is given once more.
    """
    line = " ".join([command, *map(shlex.quote, arguments)])
    if "'" in line and not any(c in line for c in '"$`\\!'):
        return f'ssh {node} "{line}"'
    return f"ssh {node} {shlex.quote(line)}"


def pip_install(node: str, interpreter: Interpreter, *words: str) -> str:
    """Write the line that installs packages for a node's training interpreter."""
    return remote(node, interpreter.path or "python3", "-m", "pip", "install", *words)


def advise(advice: str, node: str, command: str, *arguments: str) -> str:
    """Write advice, and the command that shows more."""
    return f"{advice}. Look: {remote(node, command, *arguments)}"


def unset_in_ranks(request: Request, name: str) -> str:
    """Write how a variable of the ranks is removed where it was set."""
    of_run = request.asked.spec.get("env")
    return unset(name, of_run if isinstance(of_run, dict) else ())


def or_ship(request: Request, advice: str) -> str:
    """Write advice, and beside it that allranks ships the caller's directory; not where it does, or nodes are here."""
    if request.asked.virtual or request.asked.spec.get("sync"):
        return advice
    return f"{advice}, or ship this directory to the nodes with `run --sync`"


# -- nodes by value --------------------------------------------------------------------------------


def values_of(nodes: Mapping[str, Kind], value: Callable[[Kind], Item]) -> dict[str, Item]:
    """Read a value of each node."""
    return {node: value(one) for node, one in nodes.items()}


def having(nodes: Mapping[str, Kind], value: Callable[[Kind], Item | None]) -> dict[str, Item]:
    """Read a value of each node that has one: it is neither None, empty nor 0."""
    return {node: item for node, item in values_of(nodes, value).items() if item}


def those(nodes: Mapping[Value, Kind], fits: Callable[[Kind], object]) -> dict[Value, Kind]:
    """Keep the nodes, or other keys, that fit."""
    return {node: one for node, one in nodes.items() if fits(one)}


def nodes_with(nodes: Mapping[Value, Kind], fits: Callable[[Kind], object]) -> list[Value]:
    """List the names of the nodes that fit."""
    return list(those(nodes, fits))


def by_value(values: Mapping[str, Value]) -> dict[Value, list[str]]:
    """Group nodes by value, the value of most nodes first (ties: the value of the earlier node)."""
    groups = group(values, values.__getitem__)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def alike(nodes: Mapping[str, Kind], value: Callable[[Kind], Value | None]) -> dict[Value, list[str]]:
    """Group the nodes that have a value (see `having`) by it, as `by_value` does."""
    return by_value(having(nodes, value))


def by_item(values: Mapping[str, Mapping[Value, Item]]) -> dict[Value, dict[str, Item]]:
    """Turn {node: {item: value}} into {item: {node: value}}; an item is a port, an interface, a path."""
    items: dict[Value, dict[str, Item]] = {}
    for node, of_node in values.items():
        for name, value in of_node.items():
            items.setdefault(name, {})[node] = value
    return items


def by_entry(values: Mapping[str, Iterable[Value]]) -> dict[Value, list[str]]:
    """Group nodes by each entry of a list of theirs."""
    return {entry: list(nodes) for entry, nodes in by_item(values_of(values, dict.fromkeys)).items()}


# -- what nodes should have in common --------------------------------------------------------------


class Difference(Generic[Value]):
    """Nodes with a `value` other than the `norm` of those that are `fine`: more than half, at least two.

    Without such a majority `nodes` are all, `fine` is empty, `value` and `norm` are None. `rest` words who is fine:
    `the other 3`, or `3 of 5 nodes` where the odd ones differ among themselves. `differences` adds what and message.
    """

    what = ""
    message = ""

    def __init__(
        self,
        nodes: list[str],
        fine: list[str],
        rest: str = "",
        value: Value | None = None,
        norm: Value | None = None,
    ) -> None:
        self.nodes = nodes
        self.fine = fine
        self.rest = rest
        self.value = value
        self.norm = norm


def split(values: Mapping[str, Value]) -> list[Difference[Value]]:
    """Find the odd nodes by their (hashable) values: one Difference for each odd value; none where all agree."""
    groups = by_value(values)
    if len(groups) < 2:
        return []
    norm, fine = next(iter(groups.items()))
    if len(fine) < 2 or 2 * len(fine) <= len(values):
        return [Difference(list(values), [])]
    rest = f"{len(fine)} of {len(values)} nodes" if len(groups) > 2 else f"the other {len(fine)}"
    return [Difference(nodes, fine, rest, value, norm) for value, nodes in groups.items() if value != norm]


def differences(
    what: str,
    values: Mapping[str, Value],
    show: Callable[[Value], str] = str,
    one: str = "has",
    many: str = "have",
    subject: str = "",
    phrase: str = "{what} {value}",
) -> list[Difference[Value]]:
    """Say who is odd: `h3 has torch 2.6.0 (the other 7 have 2.13.0)`, or all values without a majority.

    The value None reads `has no torch`. `one` and `many` are the verb and `phrase` what stands behind it: `h3 is at
    commit …`, `h3 may use 8 CPUs`. With a `subject` the sentence is about a part of the nodes: `eth0 on h3 runs at 10
    Gb/s (the other 7 run at 100 Gb/s)`.
    """

    def shown(value: Value | None) -> str:
        return "none" if value is None else show(value)

    def sentence(odd: Difference[Value]) -> str:
        if not odd.fine:
            groups = by_value(values)
            if len(groups) == len(values) <= NAMED:
                return f"{join_words(list(values))} differ in {what}: {join_words(list(map(shown, groups)))}"
            head = "no two nodes agree on" if len(groups) == len(values) else "no majority for"
            return f"{head} {what}: {values_shown(groups, shown, LISTED + 1)}"
        rest = f"({odd.rest} {many} {shown(odd.norm)})"
        if subject:
            return f"{subject} on {join_names(odd.nodes)} {one} {shown(odd.value)} {rest}"
        if odd.value is None:
            return f"{who(odd.nodes)} no {what} {rest}"
        return f"{who(odd.nodes, one, many)} {phrase.format(what=what, value=show(odd.value))} {rest}"

    odds = split(values)
    for odd in odds:
        odd.what = what
        odd.message = sentence(odd)
    return odds


def by_odd_nodes(
    names: Iterable[str],
    nodes: Mapping[str, Mapping[str, str]],
    show: Callable[[str | None], str] = str,
    phrase: str = "{what} {value}",
) -> Iterable[list[Difference[str | None]]]:
    """Compare what nodes have under each name (None: nothing); the differences of one set of odd nodes stand together.

    `what` of a difference is the name; `show` and `phrase` are those of `differences`.
    """
    odds: list[Difference[str | None]] = []
    for name in names:
        odds += differences(name, {node: one.get(name) for node, one in nodes.items()}, show, phrase=phrase)
    return group(odds, lambda odd: tuple(odd.nodes)).values()


def warn_each(
    label: str,
    odds: Iterable[Difference[Value]],
    remedy: Callable[[Difference[Value]], str],
    interface: str | None = None,
) -> Findings:
    """Make a warning of each difference."""
    for odd in odds:
        yield warn(label, odd.nodes, odd.message, remedy(odd), interface=interface)
