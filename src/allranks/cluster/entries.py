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
from .hostlist import EXCLUDE, exclude, expand_item, split_exclusions, split_list
from .names import check_host, check_ipv6, check_user, show

MAX_SLOTS = 1024
KNOWN = ("slots", "max_slots", "port", "user")
_INTEGER = re.compile(r"[0-9]{1,9}")
_EQUALS = re.compile(r"(?<![ \t])[ \t]*=[ \t]*")


@dataclass(frozen=True)
class HostEntry:
    """One host as written: what ssh is given and the number of ranks, None where not stated."""

    host: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None


def parse_entries(text: str) -> Iterator[HostEntry]:
    """The entries of one line without its comment: a node list, then attributes that hold for all."""
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
    """The attributes of a line by name; unknown, empty or repeated ones are refused."""
    attributes: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("max-slots", "max_slots")
        if not equals and _INTEGER.fullmatch(word):
            ranks = "1 rank" if word == "1" else f"{word} ranks"
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
    """The entries of one item `user@hosts:port`, its attributes beside it."""
    included, excluded = split_exclusions(item) if EXCLUDE in item else (item, [])
    user, hosts = _split_user(included, attributes.get("user"))
    host, port_text, is_ipv6 = _split_port(hosts)
    port = _port(item, host, port_text, attributes)
    slots = _slots(attributes)
    names = [host] if is_ipv6 else expand_item(host)
    for name in exclude(names, excluded, item) if excluded else names:
        yield HostEntry(check_host(name), user, port, slots)


def _split_user(item: str, attribute: str | None) -> tuple[str | None, str]:
    before, at, hosts = item.rpartition("@")
    if not at:
        return (check_user(attribute) if attribute else None), item
    if attribute:
        raise UsageError(f"{show(item)}: the user is given twice, by '@' and by user=")
    return check_user(before), hosts


def _split_port(hosts: str) -> tuple[str, str | None, bool]:
    """Host, text of the port, and whether the host is an IPv6 address (without brackets then)."""
    literal = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", hosts)
    if literal and ":" in literal[1]:
        return check_ipv6(literal[1]), literal[2], True
    outside = re.sub(r"\[[^\[\]]*\]", "", hosts)
    if outside.count(":") > 1:
        return check_ipv6(hosts), None, True
    host, colon, port = hosts.rpartition(":")
    return (host, port, False) if colon and outside.count(":") == 1 else (hosts, None, False)


def _port(item: str, host: str, text: str | None, attributes: dict[str, str]) -> int | None:
    """The port of ssh; a small number after a colon means slots elsewhere and is refused."""
    attribute = attributes.get("port")
    if text is None:
        return None if attribute is None else _integer("port", attribute, 65535)
    number = _integer(f"{show(item)}: the port", text, 65535)
    if number < 1024 and number != 22:
        shown = f"[{host}]" if ":" in host else host
        raise UsageError(
            f"{show(item)}: a port below 1024 other than 22 looks like a number of slots. "
            f"Write '{shown} slots={number}' for {count_of(number, 'rank')} or "
            f"'{shown} port={number}' for ssh on port {number}"
        )
    if attribute is not None:
        raise UsageError(f"{show(item)}: the port is given twice, after ':' and by port=")
    return number


def _slots(attributes: dict[str, str]) -> int | None:
    """slots=; max_slots= (Open MPI) must not be below it and has no other effect."""
    slots = _integer("slots", attributes["slots"], MAX_SLOTS) if "slots" in attributes else None
    if "max_slots" in attributes:
        most = _integer("max_slots", attributes["max_slots"], 10**6)
        if most < (slots or 1):
            raise UsageError(f"max_slots={most} is below slots={slots}. Remove it or raise it")
    return slots


def _integer(name: str, text: str, most: int) -> int:
    number = int(text) if _INTEGER.fullmatch(text) else 0
    if not 1 <= number <= most:
        raise UsageError(f"{name}: found {show(text)}, set a whole number from 1 to {most}")
    return number
