"""The choice of MASTER_ADDR: the best of the master's addresses that all nodes have reached. Pure.

`offered` says which addresses to try, `choose_address` reads the proof. The order of offers: --network,
names of container bridges last, ib* first (as NCCL does), IPv4 before IPv6, private before public, the
kernel's own order.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.findings import Finding, Where
from allranks.spec import RunSpec

from .interfaces import (
    Facts,
    InterfaceChoice,
    Proof,
    choose_interfaces,
    getifaddrs,
    interface_of,
    is_host_local,
    nccl_interfaces,
    on_link,
)
from .reasons import explain

MAX_OFFERS = 16
_UNUSABLE = ("tentative", "dadfailed", "deprecated")

Probes = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Offer:
    """An address of the master's worth trying."""

    address: str
    interface: str
    family: int


@dataclass(frozen=True)
class Choice:
    """`address` is None where no address serves all nodes; then a finding with status fail says why."""

    address: str | None
    findings: tuple[Finding, ...] = ()
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    interfaces: Mapping[str, InterfaceChoice] = field(default_factory=dict)


# -- what to try -----------------------------------------------------------------------------------


def offered(facts: Mapping[str, Facts], master: str, network: str | None) -> tuple[Offer, ...]:
    """The master's addresses, best first; loopback (then first) only where all nodes share it."""
    shared = share_network(facts)
    networks = [ipaddress.ip_network(n, strict=False) for n in (network or "").split(",") if n]
    ranked = []
    for at, (name, item, interface) in enumerate(getifaddrs(facts.get(master) or {})):
        loopback = bool(interface.get("loopback"))
        if not interface.get("up") or set(item.get("flags") or ()) & set(_UNUSABLE):
            continue
        if loopback and not (shared and item["address"] in ("127.0.0.1", "::1")):
            continue
        if not loopback and (item.get("scope") != "global" or not interface.get("running")):
            continue
        address = ipaddress.ip_address(item["address"])
        inside = [i for i, n in enumerate(networks) if address in n]
        if networks and not inside:
            continue
        key = (inside[:1], not loopback, is_host_local(name), not name.startswith("ib"), item["family"],
               "temporary" in (item.get("flags") or ()), not address.is_private, at)  # fmt: skip
        ranked.append((key, Offer(item["address"], name, item["family"])))
    return tuple(offer for _, offer in sorted(ranked, key=lambda pair: pair[0])[:MAX_OFFERS])


def share_network(facts: Mapping[str, Facts]) -> bool:
    """Whether all nodes are in one network namespace of one machine (virtual nodes, or a single one)."""
    places = {same_network(f) for f in facts.values()}
    return len(facts) == 1 or (len(places) == 1 and None not in places)


def same_network(facts: Facts) -> tuple[str, int] | None:
    """Equal for nodes in one network namespace; None where unknown."""
    identity = facts.get("identity") or {}
    boot, netns = identity.get("boot_id"), identity.get("netns")
    return (str(boot), int(netns)) if boot and netns else None


# -- what the proof says ---------------------------------------------------------------------------


def choose_address(
    spec: RunSpec, master: str, port: int, facts: Mapping[str, Facts], probes: Probes
) -> Choice:
    """Reads every node's results; the first offer that all nodes reached becomes MASTER_ADDR."""
    order = _order(spec, master, facts)
    if not order:
        return Choice(None, (_no_address(spec, master),))
    reached = {a: {n for n in probes if _ok(probes[n], a)} for a in order}
    for address in order:
        if len(reached[address]) == len(probes):
            return _chosen(spec, master, address, facts, probes)
    best = max(order, key=lambda a: (len(reached[a]), -order.index(a)))
    late = [n for n in probes if n not in reached[best]]
    findings = [explain(n, best, master, port, spec, facts, probes) for n in late]
    # the master's own failure explains the others' (a wrong --master-addr), so it comes first
    findings.sort(key=lambda f: f.where.node != master)
    return Choice(None, tuple(findings))


def _order(spec: RunSpec, master: str, facts: Mapping[str, Facts]) -> list[str]:
    if spec.master_addr:
        return [spec.master_addr]
    return [o.address for o in offered(facts, master, spec.network)]


def _ok(results: Sequence[Mapping[str, Any]], address: str) -> bool:
    return any(r.get("ok") for r in results if r.get("address") == address)


def _no_address(spec: RunSpec, master: str) -> Finding:
    inside = f" in --network {spec.network}" if spec.network else ""
    return Finding(
        "no-interface", "fail", f"{master} has no address{inside} that other nodes could use",
        f"show its addresses with `ssh {master} ip -br addr` and choose with --network CIDR", Where(node=master),
    )  # fmt: skip


def _chosen(
    spec: RunSpec, master: str, address: str, facts: Mapping[str, Facts], probes: Probes
) -> Choice:
    shared = share_network(facts)
    proofs = {name: proof_of(name, master, address, facts, probes) for name in probes}
    choices = {
        name: choose_interfaces(name, facts.get(name) or {}, proof, pin=not shared)
        for name, proof in proofs.items()
    }
    findings = [f for c in choices.values() for f in c.findings]
    findings += _mixed_families(choices, facts)
    environment = {name: c.env for name, c in choices.items()}
    return Choice(address, tuple(_once(findings) if shared else findings), environment, choices)


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Virtual nodes share their interfaces: one finding a cause is enough."""
    return list({(f.id, f.where.interface): f for f in reversed(findings)}.values())[::-1]


def _mixed_families(choices: Mapping[str, InterfaceChoice], facts: Mapping[str, Facts]) -> list[Finding]:
    """Gloo takes the first address of its interface: some IPv4 and some IPv6 cannot meet."""
    families: dict[int, list[str]] = {}
    for name, choice in choices.items():
        first = [a["family"] for n, a, _ in getifaddrs(facts.get(name) or {}) if n == choice.gloo]
        if first:
            families.setdefault(first[0], []).append(name)
    if len(families) < 2:
        return []
    odd = min(families.values(), key=len)
    family = next(k for k, v in families.items() if v is odd)
    message = f"Gloo will use IPv{family} on {', '.join(odd)} and IPv{10 - family} on the other nodes"
    return [Finding("ipv6-problem", "warn", message, "give every node's interface an IPv4 address, or choose "
                    "another with --network", Where(node=odd[0]))]  # fmt: skip


def proof_of(name: str, master: str, address: str, facts: Mapping[str, Facts], probes: Probes) -> Proof:
    """Which of a node's interfaces the proof went through, and over which it failed."""
    mine = facts.get(name) or {}
    chosen = next((r for r in probes[name] if r.get("address") == address and r.get("ok")), {})
    source = str(chosen.get("local_address") or "")
    passed, failed = _of_master(mine, master, probes) if name == master else _of_other(
        mine, facts.get(master) or {}, _of_master(facts.get(master) or {}, master, probes), probes[name]
    )  # fmt: skip
    carries = interface_of(mine, source) if source else None
    return Proof(carries, tuple(passed), tuple(n for n in failed if n not in passed))


def _of_master(mine: Facts, master: str, probes: Probes) -> tuple[list[str], list[str]]:
    """An interface of the master's passed where all others reached its address."""
    passed: list[str] = []
    failed: list[str] = []
    others = [n for n in probes if n != master] or [master]
    for result in probes.get(master) or ():
        address = str(result.get("address"))
        interface = interface_of(mine, address) or interface_of(mine, str(result.get("local_address") or ""))
        if interface is not None and interface not in passed:
            reached = all(_ok(probes[n], address) for n in others)
            (passed if reached else failed).append(interface)
    return passed, failed


def _of_other(
    mine: Facts, masters: Facts, at_master: tuple[list[str], list[str]], results: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """A node's own: sources of answers passed; on-link ways that failed, failed. What was not tried (no
    address of the master in its subnet) shares the fate of the master's interface of the same name."""
    passed: list[str] = []
    failed: list[str] = []
    for result in results:
        address = str(result.get("address"))
        source = interface_of(mine, str(result.get("local_address") or "")) if result.get("ok") else None
        if source is not None and source not in passed:
            passed.append(source)
        way = on_link(mine, address) if not result.get("ok") and interface_of(masters, address) else None
        if way is not None:
            failed.append(way)
    for interface in nccl_interfaces(mine, virbr=False):
        if interface not in passed and interface not in failed:
            if interface in at_master[0]:
                passed.append(interface)
            elif interface in at_master[1]:
                failed.append(interface)
    return passed, failed
