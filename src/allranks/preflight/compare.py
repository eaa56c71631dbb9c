"""Shared by the checks: reading a part of the facts, naming the odd nodes among the others."""

from __future__ import annotations

import shlex
from typing import Any, Mapping, Sequence

from allranks.findings import Where

Facts = Mapping[str, Any]
Nodes = Mapping[str, Facts]

SHOWN = 4


def part(facts: Facts, name: str) -> Mapping[str, Any]:
    """A part of the facts that could be looked at; empty where it failed or is absent."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) and "error" not in found else {}


def names(nodes: Sequence[str]) -> str:
    """h1, h2 and h3; of many only the first."""
    if len(nodes) == 1:
        return nodes[0]
    if len(nodes) <= SHOWN:
        return f"{', '.join(nodes[:-1])} and {nodes[-1]}"
    return f"{', '.join(nodes[: SHOWN - 1])} and {len(nodes) - SHOWN + 1} more"


def place(nodes: Sequence[str], **more: Any) -> Where:
    """Where a finding about several nodes is; the first stands for all."""
    return Where(node=nodes[0], nodes=tuple(nodes) if len(nodes) > 1 else (), **more)


def verb(nodes: Sequence[str], one: str, many: str) -> str:
    """The verb's form for the number of nodes."""
    return one if len(nodes) == 1 else many


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


def number(count: int, noun: str) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def by_value(values: Mapping[str, Any]) -> dict[Any, list[str]]:
    """Nodes by value, the value of most nodes first (ties: the value of the earlier node)."""
    found: dict[Any, list[str]] = {}
    for node, value in values.items():
        found.setdefault(value, []).append(node)
    order = list(found)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), order.index(item[0]))))


def differing(values: Mapping[str, Any]) -> str:
    """`3.11 on h0, h1 and h2; 3.9 on h3`."""
    return "; ".join(f"{value} on {names(nodes)}" for value, nodes in by_value(values).items())


def size(number: float) -> str:
    """Bytes for people, in the powers of two that df and docker use."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"
