"""Interfaces and addresses of this node, as getifaddrs(3) would give them to NCCL and Gloo.

Two rtnetlink(7) dumps, as getifaddrs makes them: they work in any network namespace and need no /sys.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Dict, Iterator, List, Optional, Tuple, Union

from allranks.protocol.facts import Address, InterfaceFacts, OwnName

IFF_UP = 0x1
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40
NAME_SECONDS = 3.0
NETLINK_SECONDS = 2.0
_RTM_NEWLINK = 16
_RTM_GETLINK = 18
_RTM_NEWADDR = 20
_RTM_GETADDR = 22
_IFLA_IFNAME = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_LABEL = 3
_IFA_FLAGS = 8
_SCOPES = {253: "link", 254: "host"}  # rtnetlink(7), RT_SCOPE
_DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_INET_DIAG_MSG = 72  # bytes
_ADDRESS_FLAGS = {0x01: "temporary", 0x08: "dadfailed", 0x20: "deprecated", 0x40: "tentative"}


def interfaces() -> List[InterfaceFacts]:
    """Give all interfaces in the kernel's order; each address with its scope, and its label where that is
    another name than the interface's (glibc and so NCCL take the label for the name)."""
    items: Dict[int, InterfaceFacts] = {}
    for body in dump(socket.NETLINK_ROUTE, _RTM_GETLINK, bytes(struct.calcsize("=BBHiII")), _RTM_NEWLINK):
        index, flags = struct.unpack_from("=iI", body, 4)
        names = [value for kind, value in attributes(body, 16) if kind == _IFLA_IFNAME]
        if names:
            up, running, loopback = (bool(flags & bit) for bit in (IFF_UP, IFF_RUNNING, IFF_LOOPBACK))
            items[index] = InterfaceFacts(_text(names[0]), up, running, loopback)
    for body in dump(socket.NETLINK_ROUTE, _RTM_GETADDR, bytes(struct.calcsize("=BBBBI")), _RTM_NEWADDR):
        index = struct.unpack_from("=I", body, 4)[0]
        if index in items:
            address = _address(body, items[index].name)
            if address is not None:
                items[index] = items[index]._replace(addresses=(*items[index].addresses, address))
    return list(items.values())


def dump(protocol: int, request: int, body: bytes, answer: int) -> Iterator[bytes]:
    """Yield the bodies of one dump by netlink(7)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as link:
        link.settimeout(NETLINK_SECONDS)
        link.send(struct.pack("=IHHII", 16 + len(body), request, _DUMP_REQUEST, 1, 0) + body)
        while True:
            data = link.recv(1 << 18)
            offset = 0
            while offset + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind == 3:  # NLMSG_DONE
                    return
                if kind == 2 or length < 16:  # NLMSG_ERROR
                    raise OSError("netlink refused the request")
                if kind == answer:
                    yield data[offset + 16 : offset + length]
                offset += (length + 3) & ~3


ESTABLISHED = 1  # a state of tcp_sockets (include/net/tcp_states.h)


def tcp_sockets(states: int, extensions: int = 0) -> Iterator[Tuple[int, bytes]]:
    """Yield each TCP socket in some states: its family and inet_diag_msg (linux/inet_diag.h). The kernel may refuse."""
    for family in (socket.AF_INET, socket.AF_INET6):
        body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, extensions, 0, states)  # inet_diag_req_v2
        with suppress(OSError):
            for message in dump(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, body, _SOCK_DIAG_BY_FAMILY):
                if len(message) >= _INET_DIAG_MSG:
                    yield family, message


def attributes(body: bytes, offset: int) -> Iterator[Tuple[int, bytes]]:
    """Split the attributes that stand in a message from an offset on (rtnetlink(7))."""
    while offset + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, body[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def _address(body: bytes, name: str) -> Optional[Address]:
    """Decode an ifaddrmsg: IFA_LOCAL is the own address (IFA_ADDRESS the peer's on point-to-point links)."""
    family, prefix, flags, scope = struct.unpack_from("=BBBB", body, 0)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    values = dict(attributes(body, 8))
    raw = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    if raw is None:
        return None
    if _IFA_FLAGS in values:
        flags = struct.unpack("=I", values[_IFA_FLAGS])[0]
    # bit 1 means temporary for IPv6 and secondary for IPv4
    words = [w for bit, w in _ADDRESS_FLAGS.items() if flags & bit and (bit, family) != (0x01, socket.AF_INET)]
    text = socket.inet_ntop(family, raw)
    is_link_local = text.startswith(("169.254.", "fe80:"))
    label = _text(values.get(_IFA_LABEL, b""))
    return Address(
        text,
        prefix,
        6 if family == socket.AF_INET6 else 4,
        "link" if is_link_local else _SCOPES.get(scope, "global"),
        flags=tuple(words) or None,
        label=None if label in ("", name) else label,
    )


def host_name(name: str) -> Union[bytes, str]:
    """Give a name or an address as getaddrinfo is to get it: ASCII as bytes.

    For text Python loads IDNA and Unicode's tables first, 4 ms where the answer takes 0.3.
    """
    if name.isascii():
        return name.encode()
    return name


def resolve(name: str) -> OwnName:
    """Give the addresses of a name, in the resolver's order, or its error."""
    try:
        addresses = [str(answer[4][0]) for answer in socket.getaddrinfo(host_name(name), None, 0, socket.SOCK_STREAM)]
    except OSError as error:
        return OwnName(error=error.strerror or str(error))
    except UnicodeError as error:
        return OwnName(error=str(error))
    return OwnName(tuple(dict.fromkeys(addresses)))
