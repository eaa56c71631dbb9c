"""Hostfiles and `--hosts` lists in all the forms people have, to nodes; and nodes back to a hostfile.

A line is `[user@]HOST[:port] [slots=N] [port=N] [user=NAME] [max_slots=N]`; HOST is a name, an address,
`[ipv6]` or a node list `node[01-04,07],login1`. `#` at the start of a line or after a space begins a
comment. An item of `--hosts` is written the same way (`--hosts 'h1 slots=8,h2'`). The first node is the
master. `max_slots=` is accepted for Open MPI's sake, must not be below `slots=` and has no effect.

Every error starts with `file:line:`. Names are the host part as written; where one host is listed with
several ports (containers), those nodes are called `host:port` to keep names unique.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass

from ..errors import HostfileError, UsageError
from .entries import HostEntry, parse_entries
from .hostlist import MAX_HOSTS, split_list
from .names import bracketed, host_key, show
from .nodes import Node

MAX_TEXT = 1 << 20
MAX_LINE = 1 << 14
_BARE = re.compile(r"[A-Za-z0-9._-]+")
# Forms that other tools have: what it is, how its first line looks, the command that converts a file FILE.
_FOREIGN = (
    (
        "an inventory of Ansible",
        re.compile(
            r"\[(?=[\d.-]{0,99}[A-Za-z_])[\w.-]{1,99}(:\w{1,99})?\][ \t]{0,9}$"
            r"|[\w.:-]{1,99}[ \t]{1,9}ansible_[a-z_]{1,40}=",
            re.MULTILINE,
        ),
        r"""awk '/^\[/{vars=/:/;next} NF&&!vars&&!/^[#;]/{h=$1;for(i=2;i<=NF;i++)"""
        """if(sub(/^ansible_host=/,"",$i))h=$i;print h}' FILE""",
    ),
    (
        "a configuration of ssh",
        re.compile(r"(Host|Match|Include|User|IdentityFile)\s+(?!\S*=)\S", re.IGNORECASE),
        """awk 'tolower($1)=="host"{for(i=2;i<=NF;i++)if($i!~/[*?!]/)print $i}' FILE""",
    ),
    (
        "a file of addresses and names such as /etc/hosts",
        re.compile(
            r"(\d{1,3}(\.\d{1,3}){3}|(?=[0-9a-fA-F]{0,4}:)[0-9a-fA-F:]{2,45})\s{1,99}(?!(max_)?slots|port|user)[A-Za-z]"
        ),
        r"awk '$1!~/^(#|127\.|::1|f[ef]0)/&&NF>1{print $2}' FILE",
    ),
    (
        "a list in YAML",
        re.compile(r"(---[ \t]{0,9}\n)?([\w.-]{1,253}:[ \t]{0,9}\n){0,9}[ \t]{0,99}-[ \t]{1,99}\S"),
        "sed -n 's/^ *- //p' FILE",
    ),
    (
        "an inventory of Ansible in YAML",
        re.compile(r"(---[ \t]{0,9}\n)?[\w.-]{1,253}:[ \t]{0,9}\n"),
        "ansible all -i FILE --list-hosts | tail -n +2 | tr -d ' '",
    ),
    (
        "a table in CSV",
        re.compile(r'"?(name|host|hostname|host_name|node|server|ip|address)"?\s*,', re.IGNORECASE),
        "tail -n +2 FILE | cut -d, -f1",
    ),
)


@dataclass(frozen=True)
class _Placed:
    """An entry and where it was written."""

    entry: HostEntry
    line: int


def parse_hostfile(text: str, source: str, per_slot: bool = False) -> list[Node]:
    """Read the nodes of a hostfile; `source` is its name for messages. HostfileError names file and line.

    `per_slot`: a scheduler has written it, with a host once a slot.
    """
    if len(text) > MAX_TEXT:
        raise HostfileError(f"{source}: more than {MAX_TEXT} characters. A hostfile is smaller")
    _refuse_foreign(text, source)
    counted = _slots_by_host(text, per_slot)
    if counted:
        text = "".join(f"{host} slots={slots}\n" for host, slots in counted.items())
    placed: list[_Placed] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        where = f"{source}:{number}"
        if len(line) > MAX_LINE:
            raise HostfileError(f"{where}: a line of more than {MAX_LINE} characters. Write one host a line")
        code = _without_comment(line.removesuffix("\r"))
        if code.strip(" \t"):
            placed += _entries(code, number, where)
            _check_total(placed, where)
    if not placed:
        raise HostfileError(f"{source}:1: no host in this file. Write one name or address a line")
    return _nodes(placed, source, "line")


def _slots_by_host(text: str, per_slot: bool) -> Counter[str]:
    """Count the lines of each host where a host stands once a slot, as in PBS's file; empty where it does not.

    Of a file that no scheduler names, several hosts must be there equally often: once too often is a slip.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not all(_BARE.fullmatch(line) for line in lines):
        return Counter()
    counted = Counter(lines)
    alike = len(counted) > 1 and len(set(counted.values())) == 1
    if len(counted) == len(lines) or not (alike or per_slot):
        return Counter()
    return counted


def _refuse_foreign(text: str, source: str) -> None:
    """Raise HostfileError for a list of hosts in the form of another tool, with the line that converts it."""
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#;"]
    if not lines:
        return
    head = "\n".join(lines).lstrip()
    for what, looks_so, command in _FOREIGN:
        if looks_so.match(head):
            line = command.replace("FILE", shlex.quote(source))
            raise HostfileError(f"{source}: this is {what}, and not a hostfile\nhint: {line} > hosts.txt")


def parse_host_argument(text: str, source: str = "--hosts") -> list[Node]:
    """Read the nodes of a comma list; commas inside brackets belong to a node list."""
    if len(text) > MAX_TEXT:
        raise HostfileError(f"{source}: more than {MAX_TEXT} characters. Write a hostfile")
    if not text.strip(" \t"):
        raise HostfileError(f"{source}: no host given. Write h1,h2 or node[01-04], or the path of a hostfile")
    placed: list[_Placed] = []
    try:
        items = split_list(text)
    except UsageError as error:
        raise HostfileError(f"{source}: {error}") from None
    for number, item in enumerate(items, start=1):
        placed += _entries(item, number, source)
        _check_total(placed, source)
    return _nodes(placed, source, "entry")


def _without_comment(line: str) -> str:
    """Cut a line at a `#` that is its start or follows a space or tab."""
    for position, character in enumerate(line):
        if character == "#" and (position == 0 or line[position - 1] in " \t"):
            return line[:position]
    return line


def _entries(code: str, number: int, where: str) -> list[_Placed]:
    try:
        return [_Placed(entry, number) for entry in parse_entries(code)]
    except UsageError as error:
        raise HostfileError(f"{where}: {error}") from None


def _check_total(placed: list[_Placed], where: str) -> None:
    if len(placed) > MAX_HOSTS:
        raise HostfileError(f"{where}: more than {MAX_HOSTS} hosts")


def _nodes(placed: list[_Placed], source: str, unit: str) -> list[Node]:
    """Entries as nodes: duplicates refused, names unique, indices in order."""
    first_places: dict[tuple[str, int], int] = {}
    for item in placed:
        key = (host_key(item.entry.host), item.entry.port or 22)
        if key in first_places:
            where = f"{source}:{item.line}" if unit == "line" else f"{source}: entry {item.line}"
            raise HostfileError(
                f"{where}: {show(item.entry.host)} is in {unit} {first_places[key]} already. "
                "Remove one of them, or use slots=N for more ranks on a host"
            )
        first_places[key] = item.line
    hosts = Counter(host for host, _ in first_places)
    return [
        Node(index, _name(item.entry, hosts), item.entry.host, item.entry.user, item.entry.port, item.entry.slots)
        for index, item in enumerate(placed)
    ]


def _name(entry: HostEntry, hosts: Counter[str]) -> str:
    if entry.port is None or hosts[host_key(entry.host)] == 1:
        return entry.host
    return f"{bracketed(entry.host)}:{entry.port}"
