"""Interfaces and addresses of this node, as getifaddrs(3) would give them to NCCL and Gloo.

Two rtnetlink(7) dumps, which work in any network namespace and need no /sys; where netlink is not
allowed, SIOCGIFCONF (IPv4, up interfaces only) and /proc/net/if_inet6.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from typing import Dict, Iterator, List, Optional, Tuple, Union

from allranks.protocol.facts import Address, InterfaceFacts, OwnName

from .files import read_text

IFF_UP = 0x1
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40
NAME_SECONDS = 3.0
NETLINK_SECONDS = 2.0
INET6_LIMIT = 4 << 20  # bytes of /proc/net/if_inet6: 70,000 addresses; a cut line would not decode
_RTM_NEWLINK = 16
_RTM_GETLINK = 18
_RTM_NEWADDR = 20
_RTM_GETADDR = 22
_IFLA_IFNAME = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_LABEL = 3
_IFA_FLAGS = 8
_DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ADDRESS_FLAGS = {0x01: "temporary", 0x08: "dadfailed", 0x20: "deprecated", 0x40: "tentative"}


def interfaces() -> List[InterfaceFacts]:
    """Give all interfaces in the kernel's order; each address with its scope, and its label where that is
    another name than the interface's (glibc and so NCCL take the label for the name)."""
    try:
        return _from_netlink()
    except OSError:
        return interfaces_by_ioctl()


def interface(name: str, index: int, flags: int) -> InterfaceFacts:
    """Make an interface without addresses."""
    up = bool(flags & IFF_UP)
    return InterfaceFacts(name, index, up, bool(flags & IFF_RUNNING), bool(flags & IFF_LOOPBACK), ())


def _with_address(item: InterfaceFacts, address: Address) -> InterfaceFacts:
    return item._replace(addresses=(*(item.addresses or ()), address))


def _from_netlink() -> List[InterfaceFacts]:
    items: Dict[int, InterfaceFacts] = {}
    for body in dump(socket.NETLINK_ROUTE, _RTM_GETLINK, bytes(struct.calcsize("=BBHiII")), _RTM_NEWLINK):
        index, flags = struct.unpack_from("=iI", body, 4)
        names = [value for kind, value in _attributes(body, 16) if kind == _IFLA_IFNAME]
        if names:
            items[index] = interface(_text(names[0]), index, flags)
    for body in dump(socket.NETLINK_ROUTE, _RTM_GETADDR, bytes(struct.calcsize("=BBBBI")), _RTM_NEWADDR):
        index = struct.unpack_from("=I", body, 4)[0]
        if index in items:
            address = _address(body, items[index].name)
            if address is not None:
                items[index] = _with_address(items[index], address)
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


def _attributes(body: bytes, offset: int) -> Iterator[Tuple[int, bytes]]:
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
    values = dict(_attributes(body, 8))
    raw = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    if raw is None:
        return None
    if _IFA_FLAGS in values:
        flags = struct.unpack("=I", values[_IFA_FLAGS])[0]
    words = [word for bit, word in _ADDRESS_FLAGS.items() if flags & bit and not _is_secondary(bit, family)]
    address = described(socket.inet_ntop(family, raw), prefix, scope)._replace(flags=tuple(words) or None)
    return _labelled(address, _text(values.get(_IFA_LABEL, b"")), name)


def _labelled(address: Address, label: str, name: str) -> Address:
    """Add the label where it is not the interface's name."""
    if label in ("", name):
        return address
    return address._replace(label=label)


def _is_secondary(bit: int, family: int) -> bool:
    """Bit 1 means temporary for IPv6 and secondary for IPv4."""
    return bit == 0x01 and family == socket.AF_INET


def described(text: str, prefix: int, scope: int) -> Address:
    """Make an address as facts carry it; `scope` is an RT_SCOPE number."""
    word = {253: "link", 254: "host"}.get(scope, "global")
    if text.startswith("169.254.") or text.lower().startswith("fe80:"):
        word = "link"
    return Address(text, prefix, 6 if ":" in text else 4, word)


def interfaces_by_ioctl() -> List[InterfaceFacts]:
    """Read the interfaces by index with their addresses, where the kernel gives no netlink socket."""
    items: Dict[str, InterfaceFacts] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for index, name in socket.if_nameindex():
            items[name] = interface(name, index, _flags(sock, name))
        for label, text in _configured(sock):
            name = label.split(":")[0]
            item = items.get(name) or interface(label, 0, _flags(sock, label))
            address = described(text, _prefix(sock, label), 254 if text.startswith("127.") else 0)
            items[name] = _with_address(item, _labelled(address, label, item.name))
    for name, address in _inet6():
        if name in items:
            items[name] = _with_address(items[name], address)
    return sorted(items.values(), key=lambda item: item.index_)


def _flags(sock: socket.socket, name: str) -> int:
    try:
        data = fcntl.ioctl(sock.fileno(), 0x8913, struct.pack("256s", name.encode()[:15]))  # SIOCGIFFLAGS
    except OSError:
        return 0
    return int(struct.unpack_from("=H", data, 16)[0])


def _prefix(sock: socket.socket, name: str) -> int:
    try:
        data = fcntl.ioctl(sock.fileno(), 0x891B, struct.pack("256s", name.encode()[:15]))  # SIOCGIFNETMASK
    except OSError:
        return 32
    return bin(struct.unpack_from(">I", data, 20)[0]).count("1")


def _configured(sock: socket.socket) -> List[Tuple[str, str]]:
    """SIOCGIFCONF: 40 bytes an entry on 64-bit machines (struct ifreq)."""
    size = 40 if struct.calcsize("P") == 8 else 32
    buffer = array.array("B", bytes(size * 256))
    where, length = buffer.buffer_info()
    answer = fcntl.ioctl(sock.fileno(), 0x8912, struct.pack("iP", length, where))
    used = struct.unpack("iP", answer)[0]
    data = buffer.tobytes()
    return [(_text(data[at : at + 16]), socket.inet_ntoa(data[at + 20 : at + 24])) for at in range(0, used, size)]


def _inet6() -> Iterator[Tuple[str, Address]]:
    """/proc/net/if_inet6: address, index, prefix, scope (0x20 link, 0x10 host), flags, name."""
    for line in read_text("/proc/net/if_inet6", INET6_LIMIT).splitlines():
        words = line.split()
        text = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
        scope = {0x10: 254, 0x20: 253}.get(int(words[3], 16), 0)
        yield words[5], described(text, int(words[2], 16), scope)


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


def dual_stack() -> bool:
    """Whether torch's listener (`::` with IPV6_V6ONLY off) can be made here."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", 0))
        return True
    except OSError:
        return False
