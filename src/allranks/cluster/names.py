"""What a host and a user may be called: a whitelist, because these words reach ssh and shells.

A host is a name (letters, digits, `.`, `_`, `-`, starting with a letter, a digit or `_`), an IPv4 address
or an IPv6 address with an optional zone (`fe80::1%eth0`). Anything else is refused: a leading `-` would be
an option to ssh, `%` outside a zone is a token of ssh_config, and the rest means something to a shell.
"""

from __future__ import annotations

import ipaddress
import re

from ..errors import UsageError
from ..protocol.jsontext import Json

MAX_HOST = 253
MAX_USER = 64
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HOST_CHARACTERS = re.compile(r"[A-Za-z0-9._-]")
_NUMERIC = re.compile(r"[0-9.]+")


def show(value: Json) -> str:
    """`value` as it can be printed in a message: quoted, on one line, cut at 60 characters."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."


def check_host(text: str) -> str:
    """Return `text` if it can be given to ssh as a host; UsageError says what is wrong with it."""
    if ":" in text:
        return check_ipv6(text)
    if not text:
        raise UsageError("a host name is missing. Write a name or an address")
    if text.startswith("-"):
        raise UsageError(f"{show(text)}: a host name cannot start with '-' (ssh would take it as an option)")
    if len(text) > MAX_HOST:
        raise UsageError(f"{show(text)}: a host name of {len(text)} characters. {MAX_HOST} are the most")
    if not _WORD.fullmatch(text):
        odd = next((c for c in text if not _HOST_CHARACTERS.match(c)), text[0])  # else its place alone is wrong
        raise UsageError(f"{show(text)}: {odd!r} cannot be in a host name. Letters, digits, '.', '_' and '-' can")
    if _NUMERIC.fullmatch(text) and not is_address(text):
        raise UsageError(f"{show(text)} is not a host: a number alone is neither a name nor an IPv4 address")
    return text


def check_ipv6(text: str) -> str:
    """Return `text` if it is an IPv6 address, with or without a zone and without brackets."""
    address, percent, zone = text.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise UsageError(
            f"{show(text)} is not an IPv6 address. Write host:port with one colon, or [address]:port"
        ) from None
    if percent and not _WORD.fullmatch(zone):
        raise UsageError(f"{show(text)}: the zone after '%' must be an interface name such as eth0")
    return text


def check_user(text: str) -> str:
    """Return `text` if it can be given to ssh as a user name."""
    if text.startswith("-"):
        raise UsageError(f"{show(text)}: a user name cannot start with '-' (ssh would take it as an option)")
    if len(text) > MAX_USER or not _WORD.fullmatch(text):
        raise UsageError(
            f"{show(text)} is not a user name. Letters, digits, '.', '_' and '-' can be in one, at most {MAX_USER}"
        )
    return text


def host_key(host: str) -> str:
    """One text for all spellings of a host: lower case, IPv6 addresses compressed."""
    address, percent, zone = host.partition("%")
    if ":" in address:
        return str(ipaddress.IPv6Address(address)) + percent + zone
    return host.lower()


def bracketed(host: str) -> str:
    """Return a host as it stands before `:port`: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_address(name: str) -> bool:
    """Tell whether a name is an IPv4 or IPv6 address, with a zone or not."""
    try:
        ipaddress.ip_address(name.partition("%")[0].strip("[]"))
    except ValueError:
        return False
    return True
