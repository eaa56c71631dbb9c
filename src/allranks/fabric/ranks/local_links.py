"""This node's addresses, interfaces and the nominal rate of the link towards the others, as the kernel has them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence

from allranks.protocol.interface_names import matches_interface
from allranks.text import count_of

from ..analysis.rates import NominalLink

NET = "/sys/class/net"
INFINIBAND = "/sys/class/infiniband"
MEGABIT = 1e6 / 8  # bytes
GIGABIT = 1e9 / 8
RATE = re.compile(r"(?<![0-9.])([0-9.]+) Gb/sec")
SIOCGIFADDR = 0x8915  # linux/sockios.h
DISCARD = 9  # a port to which nothing is sent


def read_file(path: str) -> str:
    """Read a small file's text; nothing where it can't be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# -- addresses -----------------------------------------------------------------------------------------


def gloo_address(env: Mapping[str, str], towards: str) -> str:
    """Give the address of the interface that Gloo uses: the set one, else the one on the way to a host.

    Raises OSError where no way leads to it.
    """
    return address_of(first_interface(env)) or address_towards(towards)


def first_interface(env: Mapping[str, str]) -> str:
    """Give the first interface that Gloo is set to; empty where none is."""
    return env.get("GLOO_SOCKET_IFNAME", "").split(",")[0]


def address_of(interface: str) -> str:
    """Give an interface's IPv4 address; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        request = struct.pack("256s", os.fsencode(interface)[:15])
        return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), SIOCGIFADDR, request)[20:24])
    return ""


def address_towards(host: str) -> str:
    """Give this node's address on the way to a host; nothing is sent."""
    family, _, _, _, address = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])


def interface_of(address: str) -> str:
    """Find the interface that has an IPv4 address; empty where none has."""
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), "")


def matching_interface(pattern: str, names: Sequence[str]) -> str:
    """Find the first interface that NCCL_SOCKET_IFNAME means, the loopback only where it means no other."""
    return min((name for name in names if matches_interface(name, pattern)), key=lambda name: name == "lo", default="")


# -- nominal rates -------------------------------------------------------------------------------------


def nominal_link(backend: str, env: Mapping[str, str], host: str) -> NominalLink:
    """Find the link of this rank towards a host."""
    if backend == "nccl" and env.get("NCCL_IB_DISABLE", "0") in ("", "0"):
        ports = list(active_ports())
        if ports:
            return NominalLink(count_of(len(ports), "active InfiniBand port"), sum(ports))
    pattern = env.get(f"{backend.upper()}_SOCKET_IFNAME", "")
    if not pattern:
        name = ""
        with contextlib.suppress(OSError):
            name = interface_of(address_towards(host))
    elif backend == "nccl":
        name = matching_interface(pattern, [name for _, name in socket.if_nameindex()])
    else:
        name = first_interface(env)
    if not name:
        return NominalLink(f"no interface for {pattern or host} found", 0.0)
    speed = read_file(f"{NET}/{name}/speed").strip()
    if not speed.isdecimal() or int(speed) == 0:
        return NominalLink(f"the rate of {name} is not readable ({NET}/{name}/speed says {speed or 'nothing'})", 0.0)
    return NominalLink(name, int(speed) * MEGABIT)


def active_ports() -> Iterator[float]:
    """Give the rates of the InfiniBand (or RoCE) ports that are up."""
    for device in _entries(INFINIBAND):
        for port in _entries(f"{INFINIBAND}/{device}/ports"):
            path = f"{INFINIBAND}/{device}/ports/{port}"
            rate = RATE.search(read_file(f"{path}/rate"))
            if rate and "ACTIVE" in read_file(f"{path}/state"):
                yield float(rate.group(1)) * GIGABIT


def _entries(path: str) -> list[str]:
    if not os.path.isdir(path):
        return []
    return sorted(os.listdir(path))
