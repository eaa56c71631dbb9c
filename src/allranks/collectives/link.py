"""The nominal rate of the link that a rank's traffic takes, where the kernel says it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from .job import read
from .pairwise import interface_of, route_to

NET = "/sys/class/net"
INFINIBAND = "/sys/class/infiniband"
BITS = 8
RATE = re.compile(r"(?<![0-9.])([0-9.]+) Gb/sec")


class Link(NamedTuple):
    """`rate` in bytes a second, 0 where it can't be read; then `what` says so."""

    what: str
    rate: float


def own_link(backend: str, env: Mapping[str, str], host: str) -> Link:
    """The link of this rank towards the others."""
    if backend == "nccl" and env.get("NCCL_IB_DISABLE", "0") in ("", "0"):
        ports = active_ports()
        if ports:
            return Link(f"{len(ports)} active InfiniBand port{'s' * (len(ports) > 1)}", sum(ports))
    wanted = env.get("NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME", "")
    name = matching(wanted, [name for _, name in socket.if_nameindex()]) if wanted else routed(host)
    if not name:
        return Link(f"no interface for {wanted or host} found", 0.0)
    speed = read(f"{NET}/{name}/speed").strip()
    if not speed.isdigit() or int(speed) == 0:
        return Link(f"the rate of {name} is not readable ({NET}/{name}/speed says {speed or 'nothing'})", 0.0)
    return Link(name, int(speed) * 1e6 / BITS)


def matching(wanted: str, names: list[str]) -> str:
    """The first interface that a *_SOCKET_IFNAME means: names or prefixes, `=` for exact ones, `^` for all but them."""
    exact, out = wanted.lstrip("^").startswith("="), wanted.startswith("^")
    parts = [part for part in wanted.lstrip("^=").split(",") if part]
    hits = {name for name in names for part in parts if name == part or (not exact and name.startswith(part))}
    if out:
        return next((name for name in names if name not in hits and name != "lo"), "")
    return next((name for part in parts for name in sorted(hits) if name.startswith(part)), "")


def routed(host: str) -> str:
    """The interface on the way to a host."""
    try:
        return interface_of(route_to(host))
    except OSError:
        return ""


def active_ports() -> list[float]:
    """Rates of the InfiniBand (or RoCE) ports that are up, in bytes a second."""
    rates = []
    for device in sorted(os.listdir(INFINIBAND)) if os.path.isdir(INFINIBAND) else []:
        ports = f"{INFINIBAND}/{device}/ports"
        for port in sorted(os.listdir(ports)) if os.path.isdir(ports) else []:
            found = RATE.search(read(f"{ports}/{port}/rate"))
            if found and "ACTIVE" in read(f"{ports}/{port}/state"):
                rates.append(float(found.group(1)) * 1e9 / BITS)
    return rates


def compare(best: float, size: str, links: list[Link], nodes: list[int]) -> str:
    """The best bus bandwidth against the slowest link. `links` and `nodes` by rank.

    Rank 0's way to MASTER_ADDR, its own address, is the loopback: with several nodes the others' links count.
    """
    said = f"best busbw of all_reduce: {say_rate(best)} at {size}"
    if len(set(nodes)) < 2:
        return f"{said}; all ranks are on one node: no link between nodes is in it"
    others = [link for link, node in zip(links, nodes) if node != nodes[0]]  # noqa: B905  (Python 3.9)
    unknown = next((link for link in others if not link.rate), None)
    if unknown:
        return f"{said}; no nominal rate to compare it with: {unknown.what}"
    slowest = min(others, key=lambda link: link.rate)
    return f"{said}, {best / slowest.rate:.0%} of the nominal {say_rate(slowest.rate)} of {slowest.what}"


def say_rate(rate: float) -> str:
    """`7.8 GB/s`; 1 GB is 10^9 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}/s" if rate / size < 100 else f"{rate / size:.0f} {unit}/s"
    return f"{rate:.0f} B/s"
