"""Hostfiles and `--hosts` lists in all the forms people have, to nodes; and nodes back to a hostfile.

A line is `[user@]HOST[:port] [slots=N] [port=N] [user=NAME] [max_slots=N]`; HOST is a name, an address,
`[ipv6]` or a node list `node[01-04,07],login1`. `#` at the start of a line or after a space begins a
comment. An item of `--hosts` is written the same way (`--hosts 'h1 slots=8,h2'`). The first node is the
master. `max_slots=` is accepted for Open MPI's sake, must not be below `slots=` and has no effect.

Every error starts with `file:line:`. Names are the host part as written; where one host is listed with
several ports (containers), those nodes are called `host:port` to keep names unique.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from allranks.text import count_of

from ..errors import HostfileError, UsageError
from .hostlist import MAX_HOSTS, exclude, expand_item, split_exclusions, split_list
from .names import bracketed, check_host, check_ipv6, check_user, host_key, show
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


_Placed = tuple[int, Node]  # an entry behind the number of its line


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
            _place(placed, code, number, where)
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


def parse_host_argument(text: str) -> list[Node]:
    """Read the nodes of the comma list of --hosts; commas inside brackets belong to a node list."""
    if len(text) > MAX_TEXT:
        raise HostfileError(f"--hosts: more than {MAX_TEXT} characters. Write a hostfile")
    if not text.strip(" \t"):
        raise HostfileError("--hosts: no host given. Write h1,h2 or node[01-04], or the path of a hostfile")
    placed: list[_Placed] = []
    try:
        items = split_list(text)
    except UsageError as error:
        raise HostfileError(f"--hosts: {error}") from None
    for number, item in enumerate(items, start=1):
        _place(placed, item, number, "--hosts")
    return _nodes(placed, "--hosts", "entry")


def _without_comment(line: str) -> str:
    """Cut a line at a `#` that is its start or follows a space or tab."""
    for position, character in enumerate(line):
        if character == "#" and (position == 0 or line[position - 1] in " \t"):
            return line[:position]
    return line


def _place(placed: list[_Placed], code: str, number: int, where: str) -> None:
    """Add the entries of a line to those before it."""
    try:
        placed += [(number, entry) for entry in _entries(code)]
    except UsageError as error:
        raise HostfileError(f"{where}: {error}") from None
    if len(placed) > MAX_HOSTS:
        raise HostfileError(f"{where}: more than {MAX_HOSTS} hosts")


def _nodes(placed: list[_Placed], source: str, unit: str) -> list[Node]:
    """Entries as nodes: duplicates refused, names unique, indices in order."""
    first_places: dict[tuple[str, int], int] = {}
    for line, entry in placed:
        key = (host_key(entry.host), entry.port or 22)
        if key in first_places:
            where = f"{source}:{line}" if unit == "line" else f"{source}: entry {line}"
            raise HostfileError(
                f"{where}: {show(entry.host)} is in {unit} {first_places[key]} already. "
                "Remove one of them, or use slots=N for more ranks on a host"
            )
        first_places[key] = line
    hosts = Counter(host for host, _ in first_places)
    return [replace(entry, index=index, name=_name(entry, hosts)) for index, (_, entry) in enumerate(placed)]


def _name(entry: Node, hosts: Counter[str]) -> str:
    if entry.port is None or hosts[host_key(entry.host)] == 1:
        return entry.host
    return f"{bracketed(entry.host)}:{entry.port}"


MAX_SLOTS = 1024
KNOWN = ("slots", "max_slots", "port", "user")
_INTEGER = re.compile(r"[0-9]{1,9}")
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_EQUALS = re.compile(r"(?<![ \t])[ \t]*=[ \t]*")


def _entries(text: str) -> Iterator[Node]:
    """Yield the entries of one line without its comment: a node list, then attributes that hold for all."""
    _check_printable(text)
    words = _EQUALS.sub("=", text).split()
    attributes = _attributes(words[0], words[1:])
    for item in split_list(words[0]):
        yield from _item(item, attributes)


def _check_printable(text: str) -> None:
    for character in text:
        if character != "\t" and not " " <= character <= "~":
            kind = "character" if character.isprintable() else "control or invisible character"
            raise UsageError(f"{kind} {character!r}. A host entry is plain ASCII text")


def _attributes(hosts: str, words: list[str]) -> dict[str, str]:
    """Return the attributes of a line by name; refuse unknown, empty and repeated ones."""
    attributes: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("max-slots", "max_slots")
        if not equals and _INTEGER.fullmatch(word):
            ranks = count_of(int(word), "rank")
            raise UsageError(f"{show(hosts + ' ' + word)}: write '{hosts} slots={word}' for {ranks}")
        if name not in KNOWN or not equals:
            raise UsageError(_unknown(name, equals))
        if not value:
            raise UsageError(f"{name}= has no value")
        if name in attributes:
            raise UsageError(f"{name}= is given twice")
        attributes[name] = value
    return attributes


def _unknown(name: str, equals: str) -> str:
    close = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f". Did you mean {close[0]}=?" if close else ""
    if not equals and not close:
        hint = ". Separate hosts with commas or line ends"
    return f"unknown attribute {show(name)}{hint} (known: {', '.join(k + '=' for k in KNOWN)})"


def _item(item: str, attributes: dict[str, str]) -> Iterator[Node]:
    included, excluded = split_exclusions(item)
    user, hosts = _split_user(included, attributes.get("user"))
    host, port_text, is_ipv6 = _split_port(hosts)
    port = _port(item, host, port_text, attributes)
    slots = _slots(attributes)
    names = [host] if is_ipv6 else expand_item(host)
    for name in exclude(names, excluded, item):
        yield Node(0, name, check_host(name), user, port, slots)


def _split_user(item: str, attribute: str | None) -> tuple[str | None, str]:
    before, at, hosts = item.rpartition("@")
    if not at:
        return attribute and check_user(attribute), item
    if attribute:
        raise UsageError(f"{show(item)}: the user is given twice, by '@' and by user=")
    return check_user(before), hosts


def _split_port(hosts: str) -> tuple[str, str | None, bool]:
    """Host, text of the port, and whether the host is an IPv6 address (without brackets then)."""
    literal = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", hosts)
    if literal and _IPV4.fullmatch(literal[1]):  # as known_hosts has them
        return literal[1], literal[2], False
    if literal and ":" in literal[1]:
        return check_ipv6(literal[1]), literal[2], True
    outside = re.sub(r"\[[^\[\]]*\]", "", hosts)
    if ":" not in outside:
        return hosts, None, False
    if outside.count(":") > 1:
        return check_ipv6(hosts), None, True
    host, _, port = hosts.rpartition(":")
    return host, port, False


def _port(item: str, host: str, text: str | None, attributes: dict[str, str]) -> int | None:
    """Return the port of ssh; refuse a small number after a colon, which means slots elsewhere."""
    if text is None:
        return _attribute_number(attributes, "port", 65535)
    number = _integer(f"{show(item)}: the port", text, 65535)
    if number < 1024 and number != 22:
        shown = bracketed(host)
        raise UsageError(
            f"{show(item)}: a port below 1024 other than 22 looks like a number of slots. "
            f"Write '{shown} slots={number}' for {count_of(number, 'rank')} or "
            f"'{shown} port={number}' for ssh on port {number}"
        )
    if "port" in attributes:
        raise UsageError(f"{show(item)}: the port is given twice, after ':' and by port=")
    return number


def _slots(attributes: dict[str, str]) -> int | None:
    """Return slots=; max_slots= (Open MPI) must not be below it and has no other effect."""
    slots = _attribute_number(attributes, "slots", MAX_SLOTS)
    most = _attribute_number(attributes, "max_slots", 10**6)
    if most is not None and most < (slots or 1):
        raise UsageError(f"max_slots={most} is below slots={slots}. Remove it or raise it")
    return slots


def _attribute_number(attributes: dict[str, str], name: str, most: int) -> int | None:
    if name not in attributes:
        return None
    return _integer(name, attributes[name], most)


def _integer(name: str, text: str, most: int) -> int:
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= most:
        raise UsageError(f"{name}: found {show(text)}, set a whole number from 1 to {most}")
    return int(text)
