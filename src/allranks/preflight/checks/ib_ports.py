"""InfiniBand and RoCE ports that are up on most nodes are up on all, at the same rate.

NCCL takes the ports that are ACTIVE and passes over others in silence. Files: /sys/class/infiniband/*/ports/*
(Documentation/ABI/stable/sysfs-class-infiniband); the rule is that of gpud's component infiniband and GCM's
check_ib, with the other nodes as the expectation. Ports that are down everywhere have no cable.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding
from allranks.text import count_of, join_names, plural

from .. import rdma
from ..compare import Nodes, by_value, differences, others, part, parts, place, remote, warn
from ..host import Host, Record, Request

ID = "ib_ports"
GROUP = "network"
LEVEL = "quick"
LABEL = "nccl-ib-error"
HINTS = {
    "Polling": "no cable, or the other end is off",
    "Disabled": "the port is disabled",
    "LinkErrorRecovery": "the link is in error recovery",
    "INIT": "no subnet manager has set it up",
}


def collect(host: Host) -> Optional[Dict[str, Record]]:
    """{"mlx5_0/1": {"state": "ACTIVE", "phys": "LinkUp", "rate": "400 Gb/sec (4X NDR)", "layer": …}}."""
    ports: Dict[str, Record] = {}
    for device, number, path in rdma.ports(host):
        ports[f"{device}/{number}"] = {
            "state": _word(host, f"{path}/state"),
            "phys": _word(host, f"{path}/phys_state"),
            "rate": host.text(f"{path}/rate", 64) or "",
            "layer": host.text(f"{path}/link_layer", 64) or "",
        }
    return ports or None


def _word(host: Host, path: str) -> str:
    """Of `4: ACTIVE`."""
    return (host.text(path, 64) or "").rpartition(":")[2].strip()


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """nccl-ib-error, warnings."""
    collected = parts(facts_by_node, ID)
    findings = []
    for port in dict.fromkeys(port for v in collected.values() for port in v):
        findings += _down(port, collected) + _rate(port, collected)
    return findings + _fewer(collected, facts_by_node)


def _is_up(values: Optional[Record]) -> bool:
    return values is not None and values.get("state") == "ACTIVE" and values.get("phys") in ("LinkUp", "")


def _rate(port: str, collected: Nodes) -> List[Finding]:
    rates = {n: v[port]["rate"] for n, v in collected.items() if _is_up(v.get(port)) and v[port].get("rate")}
    name = rdma.port_name(port)
    odd = differences(f"rate of {name}", rates, one="runs at", many="run at", subject=name)
    look = "reseat or replace the cable, see both ends"
    return warn(LABEL, odd, lambda d: f"{look}: {_look(d.nodes[0], port)}", interface=port.partition("/")[0])


def _down(port: str, collected: Nodes) -> List[Finding]:
    """Where at least half of the nodes that have the port have it up."""
    up = [n for n, v in collected.items() if _is_up(v.get(port))]
    down = {n: v[port] for n, v in collected.items() if port in v and n not in up}
    if not up or len(up) < len(down):
        return []
    where = port.partition("/")[0]
    evidence = tuple(f"{n}: {port} state {v['state']}, phys_state {v['phys']}" for n, v in list(down.items())[:4])
    findings = []
    for state, nodes in by_value({n: f"{v['state']} ({v['phys']})" for n, v in down.items()}).items():
        one = down[nodes[0]]
        hint = HINTS.get(one["phys"]) or HINTS.get(one["state"])
        message = f"{rdma.port_name(port)} on {join_names(nodes)} is {state}"
        message += f": {hint}" if hint else ""
        message += others(up, "have it ACTIVE", "has it ACTIVE")
        remedy = f"see cable, switch port and subnet manager: {_look(nodes[0], port)}"
        findings.append(Finding(LABEL, "warn", message, remedy, place(nodes, interface=where), evidence))
    return findings


def _look(node: str, port: str) -> str:
    return remote(node, "ibstat", port.partition("/")[0])


def _fewer(collected: Nodes, facts_by_node: Nodes) -> List[Finding]:
    """An adapter that is absent: fewer active ports than most, though none of its own is down."""
    if not collected:
        return []
    counts = {n: sum(_is_up(p) for p in part(f, ID).values()) for n, f in facts_by_node.items()}
    has_less = {n for n, v in collected.items() if any(not _is_up(p) for p in v.values())}
    findings = []
    for d in differences("active RDMA ports", counts):
        nodes = [n for n in d.nodes if n not in has_less]
        if not nodes or (d.norm is not None and d.value >= d.norm):
            continue
        message = d.message
        if d.norm is not None:
            message = f"{join_names(nodes)} {plural(len(nodes), 'has', 'have')} {count_of(d.value, 'active RDMA port')}"
            fine = [n for n in counts if counts[n] == d.norm]
            message += others(fine, f"have {d.norm}", f"has {d.norm}")
        remedy = f"see which adapter is absent: {remote(nodes[0], 'ibstat', '-l')}; {remote(nodes[0], 'lspci')}"
        findings.append(Finding(LABEL, "warn", message, remedy, place(nodes)))
    return findings
