"""Active RoCE ports have a RoCE v2 address for IPv4, and NCCL_IB_GID_INDEX points to one where it is set.

NCCL (2.21 and newer) takes the RoCE v2 entry of its address family by itself; a set index is taken as it is,
and an empty or RoCE v1 entry ends in `ibv_modify_qp failed` (src/transport/net_ib.cc, NCCL issue 1573).
Files: ports/N/gids/I and ports/N/gid_attrs/types/I, which cannot be read where the entry is empty.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding
from allranks.text import join_names

from .. import rdma
from ..compare import Nodes, by_value, gpu_count, others, parts, place, remote
from ..host import Host, Record, Request

ID = "ib_gids"
GROUP = "network"
LEVEL = "quick"
LABEL = "nccl-ib-error"
ENTRIES = 256
EMPTY = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000")
IPV4 = "0000:0000:0000:0000:0000:ffff:"
V2 = "RoCE v2"


def collect(host: Host) -> Optional[Record]:
    """{"index": NCCL_IB_GID_INDEX or None, "family": …, "ports": {"mlx5_0/1": {index: [gid, type]}}}."""
    ports: Dict[str, Dict[str, List[str]]] = {}
    wanted = host.env.get("NCCL_IB_HCA", "")
    for device, number, path in rdma.ports(host):
        is_roce = rdma.is_active(host, path) and host.text(f"{path}/link_layer", 64) == "Ethernet"
        if is_roce and (not wanted or rdma.matches(device, number, wanted)):
            ports[f"{device}/{number}"] = _entries(host, path)
    if not ports:
        return None
    index = host.env.get("NCCL_IB_GID_INDEX", "").strip()
    return {
        "index": int(index) if index.isdecimal() else None,
        "family": host.env.get("NCCL_IB_ADDR_FAMILY", "")[:16],
        "ports": ports,
    }


def _entries(host: Host, path: str) -> Dict[str, List[str]]:
    """Those that hold an address, 24 at most."""
    entries: Dict[str, List[str]] = {}
    for index in range(ENTRIES):
        gid = host.text(f"{path}/gids/{index}", 64)
        if gid is None or len(entries) >= 24:
            break
        if gid not in EMPTY:
            entries[str(index)] = [gid, host.text(f"{path}/gid_attrs/types/{index}", 64) or ""]
    return entries


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """nccl-ib-error, warnings."""
    collected = parts(facts_by_node, ID)
    findings = _wrong_index(collected)
    for port in dict.fromkeys(port for v in collected.values() for port in v["ports"]):
        ports = {n: v["ports"][port] for n, v in collected.items() if port in v["ports"]}
        fine = [n for n, entries in ports.items() if _has_v2(entries)]
        lacking = [n for n in ports if n not in fine]
        if lacking and fine and len(fine) >= len(lacking):
            message = f"{rdma.port_name(port)} on {join_names(lacking)} has no RoCE v2 address for IPv4"
            message += others(fine, "have one", "has one")
            findings.append(_finding(lacking, port, message))
    return findings + _none_at_all(collected, facts_by_node)


def _has_v2(entries: Record) -> bool:
    return any(gid.startswith(IPV4) and kind == V2 for gid, kind in entries.values())


def _finding(nodes: List[str], port: str, message: str) -> Finding:
    device, _, number = port.partition("/")
    look = remote(nodes[0], "rdma", "link", "show", f"{device}/{number}")
    remedy = f"give its interface an IPv4 address ({look} names it); see: {remote(nodes[0], 'show_gids', device)}"
    return Finding(LABEL, "warn", message, remedy, place(nodes, interface=device))


def _wrong_index(collected: Nodes) -> List[Finding]:
    wrong: Dict[str, str] = {}
    for node, v in collected.items():
        index = v.get("index")
        if index is None:
            continue
        for port, entries in v["ports"].items():
            gid, kind = entries.get(str(index)) or ("", "")
            if gid and (kind == V2 or not kind):
                continue
            what = f"a RoCE v1 entry ({gid})" if gid else "an empty entry"
            wrong.setdefault(node, f"NCCL_IB_GID_INDEX={index} is {what} of {rdma.port_name(port)}")
    findings = []
    for text, nodes in by_value(wrong).items():
        message = f"{text} on {join_names(nodes)}"
        remedy = "unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer choose the entry for each port) or name one of type v2: "
        remedy += remote(nodes[0], "show_gids")
        findings.append(Finding(LABEL, "warn", message, remedy, place(nodes)))
    return findings


def _none_at_all(collected: Nodes, facts_by_node: Nodes) -> List[Finding]:
    """Machines with GPUs whose RoCE ports have no routable address of either family."""
    anywhere = any(_has_v2(entries) for v in collected.values() for entries in v["ports"].values())
    nodes = []
    for node, v in collected.items():
        entries = [entry for port in v["ports"].values() for entry in port.values()]
        routable = any(kind == V2 and not gid.startswith("fe80:") for gid, kind in entries)
        if not routable and gpu_count(facts_by_node[node]):
            nodes.append(node)
    if anywhere or not nodes:
        return []
    port = next(iter(collected[nodes[0]]["ports"]))
    message = f"no active RoCE port of {join_names(nodes)} has an IP address: RoCE reaches no other subnet"
    return [_finding(nodes, port, message)]
