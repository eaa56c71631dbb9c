"""Shared by the checks of InfiniBand and RoCE: the ports of a node, and which of them NCCL takes.

Files: /sys/class/infiniband/DEVICE/ports/N (Documentation/ABI/stable/sysfs-class-infiniband). NCCL_IB_HCA: NCCL's
src/misc/param.cc and net_ib, matchIfList.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

from .compare import some
from .host import Host, Record

MOST = 128


def ports(host: Host) -> List[Tuple[str, str, str]]:
    """Device, number and directory of each port."""
    rows = []
    for path in host.glob("/sys/class/infiniband/*/ports/*")[:MOST]:
        words = path.split("/")
        rows.append((words[4], words[6], path))
    return rows


def is_active(host: Host, path: str) -> bool:
    """The state is `4: ACTIVE`."""
    return (host.text(f"{path}/state", 64) or "").endswith("ACTIVE")


def port_name(port: str) -> str:
    """`mlx5_0/1` is `mlx5_0`, `mlx5_0/2` is `mlx5_0 port 2`; an interface keeps its name."""
    device, _, number = port.partition("/")
    return device if number in ("", "1") else f"{device} port {number}"


def matches(device: str, port: str, wanted: str) -> bool:
    """Whether NCCL_IB_HCA=`wanted` takes a port: prefixes, after `=` whole names, after `^` all but these."""
    excludes = wanted.startswith("^")
    rest = wanted[1:] if excludes else wanted
    exact = rest.startswith("=")
    is_named = False
    for word in rest.lstrip("=").split(","):
        name, _, number = word.strip().partition(":")
        same = device == name if exact else bool(name) and device.startswith(name)
        is_named = is_named or (same and number in ("", port))
    return is_named != excludes


def matching(active_ports: Sequence[Record], wanted: str) -> List[Record]:
    """Those of the collected ports that NCCL_IB_HCA=`wanted` takes."""
    return [port for port in active_ports if matches(str(port["hca"]), str(port["port"]), wanted)]


def ports_text(active_ports: Sequence[Record]) -> str:
    """`mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR)), …`, few of them in full."""
    names = some([f"{port['hca']}:{port['port']}" for port in active_ports], 8)
    return f"{names} ({active_ports[0]['layer']}, {active_ports[0]['rate']})"
