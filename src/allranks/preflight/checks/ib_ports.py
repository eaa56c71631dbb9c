"""InfiniBand and RoCE ports that are up on most nodes are up on all, at the same rate.

NCCL takes the ports that are ACTIVE and passes over others in silence. Files: /sys/class/infiniband/*/ports/*
(Documentation/ABI/stable/sysfs-class-infiniband). The rule is that of gpud's component infiniband and GCM's
check_ib, with the other nodes as the expectation. Ports that are down everywhere have no cable.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional

from allranks.protocol.records import NamedTuple
from allranks.text import count_of, join_names

from .. import rdma
from ..compare import (
    Findings,
    Nodes,
    by_item,
    by_value,
    collected,
    differences,
    nodes_with,
    others,
    remote,
    those,
    values_of,
    warn,
    warn_each,
    who,
)
from ..host import Host, text_in
from ..typed_facts import Request

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


class PortState(NamedTuple):
    """`ACTIVE`, `LinkUp`, `400 Gb/sec (4X NDR)`, `InfiniBand`."""

    state: str
    phys: str
    rate: str = ""
    layer: str = ""

    @property
    def is_up(self) -> bool:
        """NCCL takes it."""
        return self.state == "ACTIVE" and self.phys in ("LinkUp", "")


def collect(host: Host) -> Optional[Dict[str, PortState]]:
    """By port, `mlx5_0/1`."""
    ports = {}
    for port, path in rdma.ports(host).items():
        words = [rdma.word(host, f"{path}/{file}") for file in ("state", "phys_state")]
        texts = [text_in(host, f"{path}/{file}", 64) for file in ("rate", "link_layer")]
        ports[port] = PortState(*words, *texts)
    return ports or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """nccl-ib-error, warnings."""
    nodes = collected(facts_by_node, ID, Dict[str, PortState])
    for port, by_node in by_item(nodes).items():
        yield from _down(port, by_node)
        yield from _rate(port, by_node)
    if nodes:
        yield from _fewer({node: list(nodes.get(node, {}).values()) for node in facts_by_node})


def _rate(port: str, by_node: Mapping[str, PortState]) -> Findings:
    rates = {node: one.rate for node, one in by_node.items() if one.is_up and one.rate}
    name = rdma.port_name(port)
    odd = differences(f"rate of {name}", rates, one="runs at", many="run at", subject=name)
    advice = "reseat or replace the cable, see both ends"
    return warn_each(LABEL, odd, lambda d: f"{advice}: {_ibstat(d.nodes[0], port)}", rdma.device_of(port))


def _down(port: str, by_node: Mapping[str, PortState]) -> Findings:
    """Where at least half of the nodes that have the port have it up."""
    up = nodes_with(by_node, lambda one: one.is_up)
    down = those(by_node, lambda one: not one.is_up)
    if not up or len(up) < len(down):
        return
    evidence = [f"{node}: {port} state {one.state}, phys_state {one.phys}" for node, one in list(down.items())[:4]]
    for (state, phys), nodes in by_value(values_of(down, lambda one: (one.state, one.phys))).items():
        hint = HINTS.get(phys) or HINTS.get(state)
        message = f"{rdma.port_name(port)} on {join_names(nodes)} is {state} ({phys})"
        if hint:
            message += f": {hint}"
        message += others(up, "have it ACTIVE", "has it ACTIVE")
        remedy = f"see cable, switch port and subnet manager: {_ibstat(nodes[0], port)}"
        yield warn(LABEL, nodes, message, remedy, evidence, interface=rdma.device_of(port))


def _ibstat(node: str, port: str) -> str:
    return remote(node, "ibstat", rdma.device_of(port))


def _fewer(ports: Mapping[str, "list[PortState]"]) -> Findings:
    """Warn of an absent adapter: fewer active ports than most, though none of the node's own is down."""
    counts = values_of(ports, lambda one: sum(port.is_up for port in one))
    for odd in differences("active RDMA ports", counts):
        nodes = [node for node in odd.nodes if all(port.is_up for port in ports[node])]
        if not nodes or (odd.norm is not None and counts[odd.nodes[0]] >= odd.norm):
            continue
        message = odd.message
        if odd.norm is not None:
            fine = [node for node in counts if counts[node] == odd.norm]
            message = f"{who(nodes)} {count_of(counts[odd.nodes[0]], 'active RDMA port')}"
            message += others(fine, f"have {odd.norm}", f"has {odd.norm}")
        remedy = f"see which adapter is absent: {remote(nodes[0], 'ibstat -l')} and {remote(nodes[0], 'lspci')}"
        yield warn(LABEL, nodes, message, remedy)
