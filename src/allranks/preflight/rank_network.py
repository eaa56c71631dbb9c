"""What the ranks' network will be on each node, setting by setting: value, who set it, why. Pure.

NTHREADS x NSOCKS: NCCL's src/transport/net_socket.cc: on AWS 2x8, on GCP 4x1, else 0x1 unless both are set;
at most 16 threads and 64 sockets. GID index: automatic since NCCL 2.21.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.plan.interfaces import InterfaceChoice, nccl_settings
from allranks.plan.network import choose_address, share_network
from allranks.protocol.codec import decode
from allranks.protocol.jsontext import Json
from allranks.protocol.plan_facts import interface_of, on_link
from allranks.protocol.records import NamedTuple
from allranks.settings import RunSpec
from allranks.text import count_of

from .rdma import UsedPort, matching, ports_text
from .typed_facts import Facts

ALLRANKS = "allranks"
LIBRARY = "NCCL's default"


class NetworkSetting(NamedTuple):
    """One line: `value` is empty where nothing is set."""

    name: str
    value: str
    who: str
    why: str


def explain(
    spec: RunSpec, gate: Mapping[str, Json], documents: Mapping[str, Mapping[str, Json]]
) -> dict[str, list[NetworkSetting]]:
    """Explain the settings of every node; empty where nodes share one network, or no address was proved."""
    port = gate.get("port")
    facts = {node: Facts(document) for node, document in documents.items()}
    for_plan = {node: one.for_plan for node, one in facts.items()}
    if not isinstance(port, int) or gate.get("error") or share_network(for_plan):
        return {}
    probes = {node: one.probes for node, one in facts.items()}
    choice = choose_address(spec, str(gate["name"]), port, for_plan, probes)
    return {node: _node(node, facts[node], one) for node, one in choice.interfaces.items()}


def _node(node: str, facts: Facts, choice: InterfaceChoice) -> list[NetworkSetting]:
    settings = [_socket(facts, choice, "GLOO_SOCKET_IFNAME"), _socket(facts, choice, "NCCL_SOCKET_IFNAME")]
    ports = [port for port in decode(list[UsedPort], facts.get("fabric") or []) if port.active]
    if ports:
        settings += _rdma(facts, ports)
    if not ports or nccl_settings(facts.for_plan).get("NCCL_IB_DISABLE") == "1":
        settings.append(_threads(facts))
    reached = _reached(facts)
    if reached:
        why = f"all addresses of {count_of(len(facts.pairs), 'other node')}, IPv4 and IPv6"
        settings.append(NetworkSetting("peers' addresses reached", reached, "measured", why))
    return settings


def _socket(facts: Facts, choice: InterfaceChoice, name: str) -> NetworkSetting:
    why = next((e.partition(": ")[2] for e in choice.explanation if e.startswith(name)), "")
    if name in choice.env:
        return NetworkSetting(name, choice.env[name], ALLRANKS, why)
    value, who = who_set(facts, name)
    takes = choice.gloo
    library = "Gloo's default"
    if name.startswith("NCCL"):
        takes = choice.nccl
        library = LIBRARY
    return NetworkSetting(name, value or f"({takes or 'none'})", who or library, why)


def who_set(facts: Facts, name: str) -> tuple[str, str]:
    """Value and origin; two empty texts where no source sets it."""
    return facts.nccl.settings().get(name, ("", ""))


def _rdma(facts: Facts, ports: Sequence[UsedPort]) -> list[NetworkSetting]:
    off, who = who_set(facts, "NCCL_IB_DISABLE")
    if off == "1":
        return [NetworkSetting("NCCL_IB_DISABLE", off, who, f"sockets, though {ports_text(ports)} is active")]
    settings = [NetworkSetting("NCCL_IB_DISABLE", off or "(0)", who or LIBRARY, "RDMA is used")]
    wanted, who = who_set(facts, "NCCL_IB_HCA")
    used = matching(ports, wanted) if wanted else ports
    uses = f"uses {ports_text(used)}" if used else "uses none: sockets"
    settings.append(NetworkSetting("NCCL_IB_HCA", wanted or "(all)", who or LIBRARY, uses))
    if any(port.layer == "Ethernet" for port in ports):
        index, who = who_set(facts, "NCCL_IB_GID_INDEX")
        why = "NCCL >= 2.21 takes RoCE v2 over IPv4 itself"
        if index:
            why = "forced: a wrong one fails with modify_qp EINVAL"
        settings.append(NetworkSetting("NCCL_IB_GID_INDEX", index or "(-1)", who or LIBRARY, why))
    return settings


def _threads(facts: Facts) -> NetworkSetting:
    threads, who = who_set(facts, "NCCL_SOCKET_NTHREADS")
    sockets, other = who_set(facts, "NCCL_NSOCKS_PERTHREAD")
    value = f"{threads or 'auto'} x {sockets or 'auto'}"
    if threads:
        why = "at most 16 threads and 64 sockets"
    elif sockets:
        why = "sockets a thread alone do nothing but on AWS and GCP: set NCCL_SOCKET_NTHREADS too"
    else:
        why = "2 x 8 on AWS, 4 x 1 on GCP, else one socket"
    return NetworkSetting("NTHREADS x NSOCKS", value, who or other or LIBRARY, why)


def _reached(facts: Facts) -> str:
    """`eth0 3 of 3, eth1 0 of 3`: peers by the interface that was tried."""
    counts: dict[str, list[bool]] = {}
    for result in facts.pairs.values():
        for way in (result.way, *result.ways):
            name = interface_of(facts.for_plan, way.local_address) if way.local_address else None
            if name is None and way.address:
                name = on_link(facts.for_plan, way.address)
            if name is not None:
                counts.setdefault(name, []).append(way.ok)
    return ", ".join(f"{name} {sum(reached)} of {len(reached)}" for name, reached in counts.items())
