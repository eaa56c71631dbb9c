"""Shared by the checks of network devices: RDMA ports, and which of them NCCL takes.

Files: /sys/class/infiniband/DEVICE/ports/N (Documentation/ABI/stable/sysfs-class-infiniband). NCCL_IB_HCA: NCCL's
src/misc/param.cc and net_ib, matchIfList.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

from allranks.protocol.records import NamedTuple
from allranks.text import list_first

from .host import Host, text_in

MOST = 128


class UsedPort(NamedTuple):
    """A port as the check `fabric` collects it; `layer` is InfiniBand or Ethernet."""

    hca: str
    port: int
    active: bool
    layer: str
    rate: str


def ports(host: Host) -> Dict[str, str]:
    """Directories of all ports of the node by their names, `mlx5_0/1`."""
    paths = host.glob("/sys/class/infiniband/*/ports/*")[:MOST]
    return {"/".join(path.split("/")[4::2]): path for path in paths}


def word(host: Host, path: str) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    return text_in(host, path, 64).rpartition(":")[2].strip()


def is_active(host: Host, path: str) -> bool:
    """Tell whether the link of the port in a directory is up and set up."""
    return word(host, f"{path}/state") == "ACTIVE"


def port_name(port: str) -> str:
    """`mlx5_0/1` is `mlx5_0`, `mlx5_0/2` is `mlx5_0 port 2`; an interface keeps its name."""
    device, _, number = port.partition("/")
    return device if number in ("", "1") else f"{device} port {number}"


def device_of(port: str) -> str:
    """Return the adapter of a port, `mlx5_0` of `mlx5_0/1`."""
    return port.partition("/")[0]


def matches(device: str, port: str, wanted: str) -> bool:
    """Whether NCCL_IB_HCA=`wanted` takes a port: prefixes, after `=` whole names, after `^` all but these."""
    excludes = wanted.startswith("^")
    rest = wanted[1:] if excludes else wanted
    exact = rest.startswith("=")
    is_named = False
    for name in rest.lstrip("=").split(","):
        wanted_device, _, number = name.strip().partition(":")
        same = device == wanted_device if exact else bool(wanted_device) and device.startswith(wanted_device)
        is_named = is_named or (same and number in ("", port))
    return is_named != excludes


def matching(active_ports: Sequence[UsedPort], wanted: str) -> List[UsedPort]:
    """Those of the collected ports that NCCL_IB_HCA=`wanted` takes."""
    return [port for port in active_ports if matches(port.hca, str(port.port), wanted)]


def ports_text(active_ports: Sequence[UsedPort]) -> str:
    """`mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR)), …`, few of them in full."""
    names = list_first([f"{port.hca}:{port.port}" for port in active_ports], 8)
    return f"{names} ({active_ports[0].layer}, {active_ports[0].rate})"
