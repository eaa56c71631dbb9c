"""Shared by the checks of launchers: configuration files as flat tables, and the ranks that a run would have.

Ships to the nodes: Python 3.8, standard library. YAML is read as far as `accelerate config` writes it: keys with
values, and tables by indentation.
"""

from __future__ import annotations

import json
import re
from typing import Dict, List, Mapping, Optional, Tuple

from allranks.protocol.jsontext import Json
from allranks.text import count_of

from .compare import Findings, Nodes, fail, lack, nodes_with
from .host import CouldNotLook, Host
from .typed_facts import Facts, Request

LIMIT = 256 << 10
MISSING = "(missing)"  # a key that no file has
Table = Dict[str, str]
_LINE = r"( *)([A-Za-z_][\w.-]*|\"[^\"]*\"|'[^']*') *:(?: (.*)|)$"


def read_table(host: Host, path: str) -> Table:
    """Read a YAML or JSON file as {"key": value, "table.key": …}; {MISSING: path} without it. Raise CouldNotLook."""
    full_path = absolute(host, path)
    try:
        text = host.read(full_path, LIMIT)
    except FileNotFoundError:
        return {MISSING: full_path}
    except OSError as error:
        raise CouldNotLook(f"{full_path}: {error.strerror or error}") from None
    if not full_path.endswith(".json"):
        return flat_yaml(text)
    try:
        return flat_json(json.loads(text))
    except ValueError as error:
        raise CouldNotLook(f"{full_path}: {error}") from None


def absolute(host: Host, path: str) -> str:
    """Make a path absolute as the ranks will see it."""
    home = host.env.get("HOME", "")
    if path.startswith("~/") and home:
        return home + path[1:]
    if path.startswith("/"):
        return path
    return f"{host.request.asked.workdir.rstrip('/')}/{path}"


def flat_json(value_tree: Json, before: str = "") -> Table:
    """Flatten JSON: lists are left out, other values read as YAML writes them."""
    table: Table = {}
    for key, value in value_tree.items() if isinstance(value_tree, dict) else ():
        if isinstance(value, dict):
            table.update(flat_json(value, f"{before}{key}."))
        elif value is None:
            table[f"{before}{key}"] = ""
        elif not isinstance(value, list):
            table[f"{before}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return table


def flat_yaml(text: str) -> Table:
    """Flatten YAML: lists and texts of several lines are left out."""
    table: Table = {}
    above: List[Tuple[int, str]] = []
    for line in text.splitlines():
        if '"' not in line and "'" not in line:
            line = re.sub(r"(^| )#.*", "", line)  # a comment
        match = re.match(_LINE, line.rstrip())
        if match is None:
            continue
        depth = len(match.group(1))
        key = match.group(2).strip("\"'")
        value = (match.group(3) or "").strip()
        above = [item for item in above if item[0] < depth]
        if value:
            table["".join(name + "." for _, name in above) + key] = _plain(value)
        above.append((depth, key))
    return table


def _plain(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    if value in ("null", "~", "{}", "[]"):
        return ""
    return value


def absent(tables: Mapping[str, Table], path: str) -> Findings:
    """Fail the nodes without a configuration that the command names."""
    nodes = nodes_with(tables, lambda table: MISSING in table)
    if nodes:
        fine = nodes_with(tables, lambda table: MISSING not in table)
        remedy = f"put it there ({tables[nodes[0]][MISSING]}), or run with --sync, which ships what is here"
        yield fail("missing-file", nodes, lack(nodes, fine, path), remedy)


def whole_number(text: Optional[str]) -> Optional[int]:
    """Read a whole number, as YAML and options have it; None for anything else ("auto")."""
    word = (text or "").strip()
    if not re.fullmatch(r"-?\d{1,9}", word):
        return None
    return int(word)


class RankCounts:
    """How many nodes and ranks a run would have, from the request and the facts."""

    def __init__(self, request: Request, facts_by_node: Nodes) -> None:
        asked = request.asked
        slots: Mapping[str, Optional[int]] = asked.slots or dict.fromkeys(facts_by_node)
        machine = next(iter(facts_by_node.values()), Facts())  # of virtual nodes, which share its GPUs
        self.by_node: Dict[str, int] = {}
        for node in slots:
            if asked.virtual:
                gpus = facts_by_node.get(node, machine).gpu_count // len(slots)
            else:
                gpus = facts_by_node.get(node, Facts()).gpu_count
            self.by_node[node] = asked.ranks_on(node) or gpus or 1
        self.nodes = len(self.by_node)
        self.world = sum(self.by_node.values())
        self.first = next(iter(self.by_node), "")

    @property
    def each(self) -> Optional[int]:
        """Ranks a node, where all have the same number."""
        counts = set(self.by_node.values())
        if len(counts) != 1:
            return None
        return counts.pop()

    def __str__(self) -> str:
        if self.each is not None:
            return f"{count_of(self.nodes, 'node')} × {count_of(self.each, 'rank')}"
        return " + ".join(f"{count} on {node}" for node, count in list(self.by_node.items())[:6])
