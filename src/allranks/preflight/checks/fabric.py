"""The settings of NCCL leave no active InfiniBand or RoCE port unused.

NCCL_IB_DISABLE=1 moves all traffic to sockets; NCCL_IB_HCA takes prefixes with `^` (all but) and `=` (exact)
at the head of the list, each word with `:port` or not (NCCL's src/misc/param.cc and net_ib, matchIfList).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, place
from ..host import Host

ID = "fabric"
GROUP = "network"
LEVEL = "quick"
SECONDS = 3.0
SYSFS = "/sys/class/infiniband"
MOST = 64


def collect(host: Host) -> Optional[List[Dict[str, Any]]]:
    """Each port: hca, port, active, layer ("InfiniBand" or "Ethernet"), rate; None without any."""
    ports = []
    for hca in host.names(SYSFS):
        for port in host.names(f"{SYSFS}/{hca}/ports"):
            base = f"{SYSFS}/{hca}/ports/{port}/"
            state = host.text(base + "state") or ""
            ports.append(
                {
                    "hca": hca,
                    "port": int(port) if port.isdigit() else 0,
                    "active": "ACTIVE" in state,
                    "layer": host.text(base + "link_layer") or "?",
                    "rate": host.text(base + "rate") or "?",
                }
            )
    return ports[:MOST] or None


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """Warnings with the check's own ID: they slow training down, they do not break it."""
    disabled: Dict[str, str] = {}
    unused: Dict[str, Any] = {}
    absent: Dict[str, Any] = {}
    for node, facts in facts_by_node.items():
        active = [p for p in facts.get(ID) or () if p["active"]]
        setting = settings_of(facts)
        if active and setting.get("NCCL_IB_DISABLE", "0").strip() == "1":
            disabled[node] = ports_text(active)
        wanted = setting.get("NCCL_IB_HCA", "")
        if active and wanted and node not in disabled:
            left = [p for p in active if not matches(p, wanted)]
            (absent if len(left) == len(active) else unused)[node] = (wanted, ports_text(left) if left else "")
    findings = [_disabled(ports, nodes) for ports, nodes in by_value(disabled).items()]
    findings += [_absent(key, nodes) for key, nodes in by_value(absent).items()]
    return findings + [_unused(key, nodes) for key, nodes in by_value(unused).items() if key[1]]


def settings_of(facts: Mapping[str, Any]) -> Dict[str, str]:
    """What NCCL reads: the environment, then its files, the first to set a name wins."""
    nccl = facts.get("nccl") or {}
    settings = dict(nccl.get("environ") or {})
    for text in (nccl.get("conf") or {}).values():
        for line in str(text).splitlines():
            key, sign, value = line.strip().partition("=")
            if sign and not key.startswith("#"):
                settings.setdefault(key.strip(), value.strip())
    return settings


def matches(port: Mapping[str, Any], wanted: str) -> bool:
    """matchIfList for an HCA and its port."""
    excludes = wanted.startswith("^")
    rest = wanted[1:] if excludes else wanted
    exact = rest.startswith("=")
    hit = False
    for word in (rest[1:] if exact else rest).split(","):
        name, _, number = word.strip().partition(":")
        same = port["hca"] == name if exact else bool(name) and str(port["hca"]).startswith(name)
        hit = hit or (same and (not number or number == str(port["port"])))
    return hit != excludes


def ports_text(ports: List[Mapping[str, Any]]) -> str:
    """`mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR)), …`, few of them in full."""
    shown = ", ".join(f"{p['hca']}:{p['port']}" for p in ports[:8])
    more = "" if len(ports) <= 8 else f" and {len(ports) - 8} more"
    return f"{shown}{more} ({ports[0]['layer']}, {ports[0]['rate']})"


def _disabled(ports: str, nodes: List[str]) -> Finding:
    message = f"{join_names(nodes)}: NCCL_IB_DISABLE=1, while {ports} is active: NCCL will use sockets instead"
    return Finding(ID, "warn", message, "unset NCCL_IB_DISABLE (or --env NCCL_IB_DISABLE=0)", place(nodes))


def _absent(key: Any, nodes: List[str]) -> Finding:
    message = (
        f"{join_names(nodes)}: NCCL_IB_HCA={key[0]} matches no active port (there is {key[1]}): NCCL will use sockets"
    )
    return Finding(ID, "warn", message, "unset NCCL_IB_HCA: NCCL takes all active ports", place(nodes))


def _unused(key: Any, nodes: List[str]) -> Finding:
    message = f"{join_names(nodes)}: NCCL_IB_HCA={key[0]} leaves active ports out: {key[1]}"
    remedy = "right where those are for storage; else unset NCCL_IB_HCA: NCCL takes all active ports"
    return Finding(ID, "warn", message, remedy, place(nodes))
