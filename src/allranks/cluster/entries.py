"""One entry of a host list: `user@host:port slots=8`, where host may be a node list.

The text of a hostfile line and of an item of `--hosts` is the same. Messages carry no place here; the
caller puts `file:line:` in front.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import UsageError
from ..text import count_of
from .hostlist import exclude, expand_item, split_exclusions, split_list
from .names import bracketed, check_host, check_ipv6, check_user, show

MAX_SLOTS = 1024
KNOWN = ("slots", "max_slots", "port", "user")
_INTEGER = re.compile(r"[0-9]{1,9}")
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_EQUALS = re.compile(r"(?<![ \t])[ \t]*=[ \t]*")


@dataclass(frozen=True)
class HostEntry:
    """One host as written: what ssh is given and the number of ranks, None where not stated."""

    host: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None


def parse_entries(text: str) -> Iterator[HostEntry]:
    """Yield the entries of one line without its comment: a node list, then attributes that hold for all."""
    _check_printable(text)
    words = _EQUALS.sub("=", text).split()
    if words[0] == "rank" and len(words) > 1 and re.match(r"[0-9]+=", words[1]):
        raise UsageError("this is a line of an Open MPI rankfile. Write one host a line: 'h1 slots=8'")
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


def _item(item: str, attributes: dict[str, str]) -> Iterator[HostEntry]:
    """Yield the entries of one item `user@hosts:port` with its attributes."""
    included, excluded = split_exclusions(item)
    user, hosts = _split_user(included, attributes.get("user"))
    host, port_text, is_ipv6 = _split_port(hosts)
    port = _port(item, host, port_text, attributes)
    slots = _slots(attributes)
    names = [host] if is_ipv6 else expand_item(host)
    for name in exclude(names, excluded, item):
        yield HostEntry(check_host(name), user, port, slots)


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
    """Read an attribute that is a number from 1 to `most`; None where it is absent."""
    if name not in attributes:
        return None
    return _integer(name, attributes[name], most)


def _integer(name: str, text: str, most: int) -> int:
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= most:
        raise UsageError(f"{name}: found {show(text)}, set a whole number from 1 to {most}")
    return int(text)
