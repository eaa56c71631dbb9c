"""The settings of NCCL leave no active InfiniBand or RoCE port unused.

NCCL_IB_DISABLE=1 moves all traffic to sockets; NCCL_IB_HCA takes prefixes with `^` (all but) and `=` (exact)
at the head of the list, each word with `:port` or not (NCCL's src/misc/param.cc and net_ib, matchIfList).
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names

from .. import rdma
from ..compare import Facts, Nodes, by_value, place
from ..host import Host, Record, Request

ID = "fabric"
GROUP = "network"
LEVEL = "quick"
SECONDS = 3.0


def collect(host: Host) -> Optional[List[Record]]:
    """Each port: hca, port, active, layer ("InfiniBand" or "Ethernet"), rate; None without any."""
    ports: List[Record] = []
    for device, number, path in rdma.ports(host):
        ports.append(
            {
                "hca": device,
                "port": int(number) if number.isdecimal() else 0,
                "active": rdma.is_active(host, path),
                "layer": host.text(f"{path}/link_layer") or "?",
                "rate": host.text(f"{path}/rate") or "?",
            }
        )
    return ports or None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings with the check's own ID: they slow training down, they do not break it."""
    disabled: Dict[str, str] = {}
    absent: Dict[str, Tuple[str, str]] = {}
    unused: Dict[str, Tuple[str, str]] = {}
    for node, facts in facts_by_node.items():
        active = [port for port in facts.get(ID) or () if port["active"]]
        settings = settings_of(facts)
        wanted = settings.get("NCCL_IB_HCA", "")
        if not active:
            continue
        used = rdma.matching(active, wanted) if wanted else active
        unused_ports = [port for port in active if port not in used]
        if settings.get("NCCL_IB_DISABLE", "0").strip() == "1":
            disabled[node] = rdma.ports_text(active)
        elif not used:
            absent[node] = (wanted, rdma.ports_text(active))
        elif unused_ports:
            unused[node] = (wanted, rdma.ports_text(unused_ports))
    findings = [_disabled(ports, nodes) for ports, nodes in by_value(disabled).items()]
    findings += [_absent(key, nodes) for key, nodes in by_value(absent).items()]
    return findings + [_unused(key, nodes) for key, nodes in by_value(unused).items()]


def settings_of(facts: Facts) -> Dict[str, str]:
    """What NCCL reads: the environment, then its files, the first to set a name wins."""
    nccl = facts.get("nccl") or {}
    settings = dict(nccl.get("environ") or {})
    for text in (nccl.get("conf") or {}).values():
        for line in str(text).splitlines():
            key, sign, value = line.strip().partition("=")
            if sign and not key.startswith("#"):
                settings.setdefault(key.strip(), value.strip())
    return settings


def _disabled(ports: str, nodes: List[str]) -> Finding:
    message = f"{join_names(nodes)}: NCCL_IB_DISABLE=1, while {ports} is active: NCCL will use sockets instead"
    return Finding(ID, "warn", message, "unset NCCL_IB_DISABLE (or --env NCCL_IB_DISABLE=0)", place(nodes))


def _absent(key: Tuple[str, str], nodes: List[str]) -> Finding:
    message = (
        f"{join_names(nodes)}: NCCL_IB_HCA={key[0]} matches no active port (there is {key[1]}): NCCL will use sockets"
    )
    return Finding(ID, "warn", message, "unset NCCL_IB_HCA: NCCL takes all active ports", place(nodes))


def _unused(key: Tuple[str, str], nodes: List[str]) -> Finding:
    message = f"{join_names(nodes)}: NCCL_IB_HCA={key[0]} leaves active ports out: {key[1]}"
    remedy = "right where those are for storage; else unset NCCL_IB_HCA: NCCL takes all active ports"
    return Finding(ID, "warn", message, remedy, place(nodes))
