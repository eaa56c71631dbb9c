"""What the ranks' network will be on each node, setting by setting: value, who set it, why. Pure.

NTHREADS x NSOCKS: NCCL's src/transport/net_socket.cc: on AWS 2x8, on GCP 4x1, else 0x1 unless both are set;
at most 16 threads and 64 sockets. GID index: automatic since NCCL 2.21.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from allranks.plan.facts import read_facts, read_probes
from allranks.plan.interfaces import InterfaceChoice, nccl_settings
from allranks.plan.network import choose_address, share_network
from allranks.settings import RunSpec

from .compare import Facts
from .rdma import matching, ports_text

ALLRANKS = "allranks"
LIBRARY = "NCCL's default"


class Setting(NamedTuple):
    """One line: `value` is empty where nothing is set."""

    name: str
    value: str
    who: str
    why: str


def explain(spec: RunSpec, gate: Mapping[str, Any], facts: Mapping[str, Facts]) -> dict[str, list[Setting]]:
    """The settings of every node; empty where nodes share one network, or no address was proved."""
    plan_facts = {name: read_facts(found) for name, found in facts.items()}
    if not gate.get("port") or gate.get("error") or share_network(plan_facts):
        return {}
    probes = {name: read_probes(found.get("probes")) for name, found in facts.items()}
    choice = choose_address(spec, str(gate["name"]), int(gate["port"]), plan_facts, probes)
    return {name: _node(facts[name], c) for name, c in choice.interfaces.items()}


def _node(facts: Facts, choice: InterfaceChoice) -> list[Setting]:
    settings = [_socket(facts, choice, "GLOO_SOCKET_IFNAME"), _socket(facts, choice, "NCCL_SOCKET_IFNAME")]
    ports = [p for p in facts.get("fabric") or () if p["active"]]
    settings += _rdma(facts, ports) if ports else []
    if not ports or nccl_settings(read_facts(facts)).get("NCCL_IB_DISABLE") == "1":
        settings.append(_threads(facts))
    reached = _reached(facts)
    return settings + ([Setting("peers' addresses reached", reached, "measured", "")] if reached else [])


def _socket(facts: Facts, choice: InterfaceChoice, name: str) -> Setting:
    why = next((e.partition(": ")[2] for e in choice.explanation if e.startswith(name)), "")
    if name in choice.env:
        return Setting(name, choice.env[name], ALLRANKS, why)
    value, who = who_set(facts, name)
    takes = choice.gloo if name.startswith("GLOO") else choice.nccl
    library = LIBRARY if name.startswith("NCCL") else "Gloo's default"
    return Setting(name, value or f"({takes or 'none'})", who or library, why)


def who_set(facts: Facts, name: str) -> tuple[str, str]:
    """Value and origin: the environment or one of NCCL's files; two empty texts where neither has it."""
    nccl = facts.get("nccl") or {}
    environ = nccl.get("environ") or {}
    if name in environ:
        return str(environ[name]), "environment"
    for path, text in (nccl.get("conf") or {}).items():
        for line in str(text).splitlines():
            key, sign, value = line.strip().partition("=")
            if sign and key.strip() == name:
                return value.strip(), str(path)
    return "", ""


def _rdma(facts: Facts, ports: Sequence[Mapping[str, Any]]) -> list[Setting]:
    off, who = who_set(facts, "NCCL_IB_DISABLE")
    if off == "1":
        return [Setting("NCCL_IB_DISABLE", off, who, f"sockets, though {ports_text(list(ports))} is active")]
    settings = [Setting("NCCL_IB_DISABLE", off or "(0)", who or LIBRARY, "RDMA is used")]
    wanted, who = who_set(facts, "NCCL_IB_HCA")
    used = matching(ports, wanted) if wanted else ports
    uses = f"uses {ports_text(used)}" if used else "uses none: sockets"
    settings.append(Setting("NCCL_IB_HCA", wanted or "(all)", who or LIBRARY, uses))
    if any(p["layer"] == "Ethernet" for p in ports):
        index, who = who_set(facts, "NCCL_IB_GID_INDEX")
        forced = "forced: a wrong one fails with modify_qp EINVAL"
        why = forced if index else "NCCL >= 2.21 takes RoCE v2 over IPv4 itself"
        settings.append(Setting("NCCL_IB_GID_INDEX", index or "(-1)", who or LIBRARY, why))
    return settings


def _threads(facts: Facts) -> Setting:
    threads, who = who_set(facts, "NCCL_SOCKET_NTHREADS")
    sockets, other = who_set(facts, "NCCL_NSOCKS_PERTHREAD")
    value = f"{threads or 'auto'} x {sockets or 'auto'}"
    if threads:
        why = "at most 16 threads and 64 sockets"
    elif sockets:
        why = "sockets a thread alone do nothing but on AWS and GCP: set NCCL_SOCKET_NTHREADS too"
    else:
        why = "2 x 8 on AWS, 4 x 1 on GCP, else one socket"
    return Setting("NTHREADS x NSOCKS", value, who or other or LIBRARY, why)


def _reached(facts: Facts) -> str:
    """`eth0 3 of 3, eth1 0 of 3`: peers by the interface that was tried."""
    counts: dict[str, list[int]] = {}
    node = read_facts(facts)
    for result in (facts.get("pairs") or {}).values():
        for way in (result, *(result.get("ways") or ())):
            local = str(way.get("local_address") or "")
            address = str(way.get("address") or "")
            name = (node.interface_of(local) if local else None) or (node.on_link(address) if address else None)
            if name is not None:
                counts.setdefault(name, []).append(bool(way.get("ok")))
    return ", ".join(f"{name} {sum(reached)} of {len(reached)}" for name, reached in counts.items())
