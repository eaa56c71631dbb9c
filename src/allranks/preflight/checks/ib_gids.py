"""Active RoCE ports have a RoCE v2 address for IPv4, and NCCL_IB_GID_INDEX points to one where it is set.

NCCL (2.21 and newer) takes the RoCE v2 entry of its address family by itself. A set index is taken as it is,
and an empty or RoCE v1 entry ends in `ibv_modify_qp failed` (src/transport/net_ib.cc, NCCL issue 1573).
Files: ports/N/gids/I and ports/N/gid_attrs/types/I, which cannot be read where the entry is empty.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import join_names

from .. import rdma
from ..compare import Findings, Nodes, alike, by_item, collected, nodes_with, others, remote, unset_in_ranks, warn
from ..host import Host, decimal, text_in
from ..typed_facts import Request

ID = "ib_gids"
GROUP = "network"
LEVEL = "quick"
LABEL = "nccl-ib-error"
ENTRIES = 256
KEPT = 24
EMPTY = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000")
IPV4 = "0000:0000:0000:0000:0000:ffff:"
V2 = "RoCE v2"
Entries = Dict[str, Tuple[str, str]]  # address and type by index


class Gids(NamedTuple):
    """NCCL_IB_GID_INDEX and the entries of each active RoCE port (`mlx5_0/1`) that NCCL may take."""

    index_: Optional[int]
    ports: Dict[str, Entries]


def collect(host: Host) -> Optional[Gids]:
    """None without such a port."""
    ports = {}
    wanted = host.env.get("NCCL_IB_HCA", "")
    for port, path in rdma.ports(host).items():
        device, _, number = port.partition("/")
        is_roce = rdma.is_active(host, path) and host.text(f"{path}/link_layer", 64) == "Ethernet"
        if is_roce and (not wanted or rdma.matches(device, number, wanted)):
            ports[port] = _entries(host, path)
    if not ports:
        return None
    return Gids(decimal(host.env.get("NCCL_IB_GID_INDEX", "").strip()), ports)


def _entries(host: Host, path: str) -> Entries:
    entries: Entries = {}
    for index in range(ENTRIES):
        gid = host.text(f"{path}/gids/{index}", 64)
        if gid is None or len(entries) >= KEPT:
            break
        if gid not in EMPTY:
            entries[str(index)] = (gid, text_in(host, f"{path}/gid_attrs/types/{index}", 64))
    return entries


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """nccl-ib-error, warnings."""
    nodes = collected(facts_by_node, ID, Gids)
    for text, names in alike(nodes, _wrong_index).items():
        remedy = f"{unset_in_ranks(request, 'NCCL_IB_GID_INDEX')} (NCCL 2.21 and newer choose the entry for each port) "
        remedy += "or name one of type v2: "
        yield warn(LABEL, names, f"{text} on {join_names(names)}", remedy + remote(names[0], "show_gids"))
    some_have = False
    for port, entries in by_item({node: gids.ports for node, gids in nodes.items()}).items():
        fine = nodes_with(entries, _has_v2)
        lacking = [node for node in entries if node not in fine]
        some_have = some_have or bool(fine)
        if lacking and len(fine) >= len(lacking):
            message = f"{rdma.port_name(port)} on {join_names(lacking)} has no RoCE v2 address for IPv4"
            yield _finding(lacking, port, message + others(fine, "have one", "has one"))
    # machines with GPUs whose RoCE ports have no routable address of either family
    of_gpus = {node: gids for node, gids in nodes.items() if facts_by_node[node].gpu_count}
    without = nodes_with(of_gpus, lambda gids: not any(map(_is_routable, gids.ports.values())))
    if without and not some_have:
        message = f"no active RoCE port of {join_names(without)} has an IP address: RoCE reaches no other subnet"
        yield _finding(without, next(iter(nodes[without[0]].ports)), message)


def _has_v2(entries: Entries) -> bool:
    return any(gid.startswith(IPV4) and kind == V2 for gid, kind in entries.values())


def _is_routable(entries: Entries) -> bool:
    return any(kind == V2 and not gid.startswith("fe80:") for gid, kind in entries.values())


def _finding(nodes: List[str], port: str, message: str) -> Finding:
    device = rdma.device_of(port)
    name = remote(nodes[0], f"rdma link show {port}")
    show = remote(nodes[0], "show_gids", device)
    remedy = f"give its interface an IPv4 address ({name} names it). Look: {show}"
    return warn(LABEL, nodes, message, remedy, interface=device)


def _wrong_index(gids: Gids) -> str:
    """Say what the entry of that index is, of the first port where it can't be used; empty where it can be."""
    for port, entries in gids.ports.items():
        gid, kind = entries.get(str(gids.index_), ("", ""))
        if gids.index_ is not None and (not gid or kind not in (V2, "")):
            what = f"a RoCE v1 entry ({gid})" if gid else "an empty entry"
            return f"NCCL_IB_GID_INDEX={gids.index_} is {what} of {rdma.port_name(port)}"
    return ""
