"""The choice of MASTER_ADDR: the best of the master's addresses that all nodes have reached. Pure.

`offered` says which addresses to try, `choose_address` reads the proof, `explain` says why it failed.
The order of offers: --network, names of container bridges last, ib* first (as NCCL does), IPv4 before
IPv6, private before public, the kernel's own order.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.findings import Finding, Where
from allranks.settings import RunSpec

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
    subnet,
)

MAX_OFFERS = 16
AT_ONCE = 0.9  # seconds
ARP_SECONDS = 3.5
_UNUSABLE = ("tentative", "dadfailed", "deprecated")

Result = Mapping[str, Any]
Probes = Mapping[str, Sequence[Result]]


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
        key = (
            inside[:1],
            not loopback,
            is_host_local(name),
            not name.startswith("ib"),
            item["family"],
            "temporary" in (item.get("flags") or ()),
            not address.is_private,
            at,
        )
        ranked.append((key, Offer(item["address"], name, item["family"])))
    return tuple(offer for _, offer in sorted(ranked, key=lambda pair: pair[0])[:MAX_OFFERS])


def share_network(facts: Mapping[str, Facts]) -> bool:
    """Whether all nodes are in one network namespace of one machine (virtual nodes, or a single one)."""
    places = {same_network(f) for f in facts.values()}
    return len(facts) == 1 or (len(places) == 1 and None not in places)


def same_network(facts: Facts) -> tuple[str, int] | None:
    """Equal for nodes in one network namespace; None where unknown."""
    identity = facts.get("identity") or {}
    boot = identity.get("boot_id")
    netns = identity.get("netns")
    return (str(boot), int(netns)) if boot and netns else None


# -- what the proof says ---------------------------------------------------------------------------


def choose_address(spec: RunSpec, master: str, port: int, facts: Mapping[str, Facts], probes: Probes) -> Choice:
    """Reads every node's results; the first offer that all nodes reached becomes MASTER_ADDR."""
    order = _order(spec, master, facts)
    if not order:
        return Choice(None, (no_address(spec, master),))
    reached = {a: {n for n in probes if _ok(probes[n], a)} for a in order}
    for address in order:
        if len(reached[address]) == len(probes):
            return _chosen(spec, master, address, facts, probes)
    best = max(order, key=lambda a: (len(reached[a]), -order.index(a)))
    late = [n for n in probes if n not in reached[best]]
    findings = [explain(n, best, master, port, spec, facts, probes) for n in late]
    wrong = [f for f in findings if f.where.node == master and f.id == "wrong-interface"]
    return Choice(None, tuple(wrong or findings))  # a wrong --master-addr explains what the others saw


def _order(spec: RunSpec, master: str, facts: Mapping[str, Facts]) -> list[str]:
    if spec.master_addr:
        return [spec.master_addr]
    return [o.address for o in offered(facts, master, spec.network)]


def _ok(results: Sequence[Mapping[str, Any]], address: str) -> bool:
    return any(r.get("ok") for r in results if r.get("address") == address)


def no_address(spec: RunSpec, master: str) -> Finding:
    """The master has no address to offer."""
    inside = f" in --network {spec.network}" if spec.network else ""
    return Finding(
        "no-interface",
        "fail",
        f"{master} has no address{inside} that other nodes could use",
        f"show its addresses with `ssh {master} ip -br addr` and choose with --network CIDR",
        Where(node=master),
    )


def target_words(spec: RunSpec) -> str:
    """How the user named the nodes, to be put into another command."""
    if spec.hosts:
        return f"--hosts {shlex.quote(spec.hosts)}"
    return "--hosts HOSTS" if spec.slurm else f"--local {spec.local or 1}"


def port_taken(master: str, error: Mapping[str, Any], target: str) -> Finding:
    """The master could not open its port; `error` is what the gate's listener said (see node.gate.port_failure).

    `target` names the nodes in commands.
    """
    port = int(error.get("port") or 0)
    owner = error.get("owner") or {}
    held = ""
    if owner.get("pid"):
        held = f" by pid {owner['pid']} ({owner.get('command') or '?'}, user {owner.get('user') or '?'})"
    elif owner:
        held = " by a process that is not visible to you"
    if error.get("errno") != "EADDRINUSE":
        return Finding(
            "unknown",
            "fail",
            f"{master} could not open port {port}: {error.get('text')}",
            "try another --master-port",
            Where(node=master, port=port),
        )
    remedy = "use --master-port 0 for a free one"
    run = re.sub(r"-[0-9a-f]{6}$", "", str(owner.get("run") or ""))  # gang/session.py: a uid is a name and six digits
    if run and owner.get("run_lives"):
        held = f" by your run {run}, which goes on{held.replace(' by ', ': ', 1)}"
        remedy += f", or end that run first: allranks stop {run}"
    elif run:
        held = f" by what is left of your run {run}{held.replace(' by ', ': ', 1)}"
        remedy += f", or end it: allranks clean --leftovers {target}"
    elif owner.get("pid"):
        clean = f"allranks clean --foreign --master-port {port} {target}"
        remedy += f", or end that process, if it is yours: {clean}"
    return Finding(
        "port-in-use",
        "fail",
        f"port {port} on {master} is held{held or ' by another program'}",
        remedy,
        Where(node=master, port=port),
    )


def _chosen(spec: RunSpec, master: str, address: str, facts: Mapping[str, Facts], probes: Probes) -> Choice:
    shared = share_network(facts)
    common = reached_by_all(probes)
    proofs = {name: proof_of(name, master, address, facts, probes, common) for name in probes}
    choices = {
        name: choose_interfaces(name, facts.get(name) or {}, proof, pin=not shared) for name, proof in proofs.items()
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
    return [
        Finding(
            "ipv6-problem",
            "warn",
            message,
            "give every node's interface an IPv4 address, or choose another with --network",
            Where(node=odd[0]),
        )
    ]


def reached_by_all(probes: Probes) -> frozenset[str]:
    """Addresses that every node reached."""
    sets = [{str(r.get("address")) for r in results if r.get("ok")} for results in probes.values()]
    return frozenset(set.intersection(*sets)) if sets else frozenset()


def proof_of(
    name: str, master: str, address: str, facts: Mapping[str, Facts], probes: Probes, common: frozenset[str]
) -> Proof:
    """Which of a node's interfaces the proof went through, and over which it failed. What leads to an
    address that only some nodes reached has failed for all: NCCL joins every node with every other."""
    mine = facts.get(name) or {}
    masters = facts.get(master) or {}
    at_master = _of_master(masters, master, probes, common)
    if name == master:
        carries = _of_result(mine, _result_of(probes[name], address), probes, master)
        passed, failed = at_master
    else:
        carries = interface_of(mine, str(_result_of(probes[name], address).get("local_address") or ""))
        passed, failed = _of_other(mine, masters, at_master, probes[name], common)
    return Proof(carries, tuple(passed), tuple(n for n in failed if n not in passed))


def _result_of(results: Sequence[Result], address: str) -> Result:
    return next((r for r in results if r.get("address") == address and r.get("ok")), {})


def _of_result(mine: Facts, result: Result, probes: Probes, master: str) -> str | None:
    """The master's interface behind an address or name of its own. A name may be loopback for itself
    (127.0.1.1) and something else for the others: then the interface in the subnet they came from."""
    address = str(result.get("address") or "")
    name = interface_of(mine, address) or interface_of(mine, str(result.get("local_address") or ""))
    if name == "lo":
        sources = [_result_of(probes[n], address).get("local_address") for n in probes if n != master]
        return next((way for way in (on_link(mine, str(s)) for s in sources if s) if way is not None), name)
    return name


def _of_master(mine: Facts, master: str, probes: Probes, common: frozenset[str]) -> tuple[list[str], list[str]]:
    """Its interfaces by the addresses it offered."""
    passed: list[str] = []
    failed: list[str] = []
    for result in probes.get(master) or ():
        interface = _of_result(mine, result, probes, master)
        if interface is not None:
            (passed if result.get("address") in common else failed).append(interface)
    return list(dict.fromkeys(passed)), failed


def _of_other(
    mine: Facts,
    masters: Facts,
    at_master: tuple[list[str], list[str]],
    results: Sequence[Result],
    common: frozenset[str],
) -> tuple[list[str], list[str]]:
    """A node's own: sources of answers, and on-link ways where there was none. What was not tried (no
    address of the master in its subnet) shares the fate of the master's interface of the same name."""
    passed: list[str] = []
    failed: list[str] = []
    for result in results:
        address = str(result.get("address"))
        if result.get("ok"):
            way = interface_of(mine, str(result.get("local_address") or ""))
        else:
            way = on_link(mine, address) if interface_of(masters, address) else None
        if way is not None:
            (passed if result.get("address") in common else failed).append(way)
    tried = {*passed, *failed}
    for interface in nccl_interfaces(mine, virbr=False):
        if interface not in tried and interface in at_master[0]:
            passed.append(interface)
        elif interface not in tried and interface in at_master[1]:
            failed.append(interface)
    return list(dict.fromkeys(passed)), failed


# -- why a node did not reach it -------------------------------------------------------------------
# What the kernel says and what it means (tcp(7), arp(7)): on the node's own subnet an absent host gives
# "No route to host" after about 3 s of ARP, so longer silence there means that the port is filtered; "No
# route to host" at once is a firewall that rejects (firewalld's default); "refused" on a port that we
# know to listen is one too, or another machine with the same address.


def explain(
    node: str, address: str, master: str, port: int, spec: RunSpec, facts: Mapping[str, Facts], probes: Probes
) -> Finding:
    """The finding about one node that did not reach `address`, the one that most nodes reached."""
    result = next((r for r in probes[node] if r.get("address") == address), {"error": "not tried"})
    mine = facts.get(node) or {}
    masters = facts.get(master) or {}
    reached = [n for n in probes if n not in (node, master) and _ok(probes[n], address)]
    place = f"{address} port {port} on {master}"
    where = Where(node=node, peer=master, port=port)
    evidence = tuple(_evidence(r) for r in probes[node])
    finding = _wrong_address(node, address, master, spec, mine, masters, result)
    if finding is None:
        cause, why = _cause(result, bool(on_link(mine, address) if _is_ip(address) else None), bool(reached))
        contrast = f"; {_names(reached)} can reach it" if reached else ""
        message = f"{node} cannot reach {place}: {why}{contrast}"
        finding = (cause, message, _remedy(cause, address, master, port, spec, mine, masters))
    return Finding(finding[0], "fail", finding[1], finding[2], where, evidence)


def never_reached(
    node: str, spec: RunSpec, interfaces: Sequence[Mapping[str, Any]], tried: Sequence[Result]
) -> Finding:
    """Why a node that joins never reached node 0; `tried` are its last tries, `interfaces` its own ones."""
    result = tried[0]
    mine = {"interfaces": list(interfaces)}
    address = str(result.get("address"))
    port = int(result.get("port") or 0)
    cause, why, remedy = _never_reached(node, dataclasses.replace(spec, master_port=port), mine, address, result)
    message = f"{node} cannot reach node 0 at {address} port {port}: {why}"
    evidence = tuple(_evidence(found) for found in tried)
    return Finding(cause, "fail", message, remedy, Where(node=node, peer=address, port=port), evidence)


def _never_reached(node: str, spec: RunSpec, mine: Facts, address: str, result: Result) -> tuple[str, str, str]:
    """Label, reason and remedy. Unlike in the rendezvous check it is not known that anybody listens."""
    error = result.get("error")
    text = str(result.get("text") or "")
    port = spec.master_port
    ip = str(result.get("ip") or address)
    if error == "resolution":
        remedy = f"put the name into /etc/hosts of {node}, or give an IP address with --master-addr"
        return "name-resolution", f"the name cannot be resolved ({text})", remedy
    if address != "localhost" and ip != address and ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
        remedy = f"correct the name in /etc/hosts of {node}, or give an IP address with --master-addr"
        return "hostname-resolves-to-loopback", f"the name is {ip} here, which is this node itself", remedy
    if error == "foreign":
        held = f"ss -tlnp 'sport = :{port}'"
        return "port-in-use", text, f"choose another --port on all nodes, or see on {address} who holds it: {held}"
    if error == "refused":
        remedy = "see whether node 0 runs with the same --port, and whether --master-addr is its address"
        return "master-unreachable", "refused: nothing listens there, or a firewall rejects it", remedy
    cause, why = _cause(result, _is_ip(ip) and on_link(mine, ip) is not None, False)
    return cause, why, _remedy(cause, ip, address, port, spec, mine, {})


def _evidence(result: Result) -> str:
    if result.get("ok"):
        return f"{result.get('address')}: reached in {result.get('seconds', 0)} s"
    text = result.get("text") or result.get("error")
    return f"{result.get('address')}: {result.get('error')} ({text}) after {result.get('seconds', 0)} s"


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _wrong_address(
    node: str, address: str, master: str, spec: RunSpec, mine: Facts, masters: Facts, result: Result
) -> tuple[str, str, str] | None:
    """Cases where the address itself is at fault, whatever the error was."""
    given = f"--master-addr {address}" if spec.master_addr else address
    if result.get("error") == "resolution":
        remedy = f"put the name into /etc/hosts of {node}, or give an IP address with --master-addr"
        return "name-resolution", f"{node} cannot resolve {given}: {result.get('text', '')}", remedy
    if node == master:
        own_ones = [a["address"] for _, a, i in getifaddrs(masters) if a.get("scope") == "global"]
        has = ", ".join(own_ones) or "none"
        if _is_ip(address) and interface_of(masters, address) is None and not address.startswith("127."):
            message = f"{given} is no address of {master}, the first host of the list (it has {has})"
            return "wrong-interface", message, "drop --master-addr: allranks finds the best address by itself"
        return None
    own = interface_of(mine, address) if _is_ip(address) else None
    loops = address == "localhost" or (_is_ip(address) and ipaddress.ip_address(address).is_loopback)
    if loops:
        message = f"{given} is every node's own loopback: {node} can't reach {master} by it"
        return "wrong-interface", message, "drop --master-addr: allranks finds the best address by itself"
    if own is not None:
        message = f"{address} is not only {master}'s: {node} has the same address on {own}"
        return "wrong-interface", message, "choose the network that joins the nodes with --network CIDR"
    if result.get("error") == "foreign":
        message = f"{node} reaches another program at {given}: that address leads to another machine"
        return "wrong-interface", message, "choose the network that joins the nodes with --network CIDR"
    return None


def _cause(result: Result, is_on_link: bool, others_reach: bool) -> tuple[str, str]:
    """(label, reason) from the error, where the address is one of the master's."""
    error = result.get("error")
    seconds = float(result.get("seconds") or 0.0)
    text = str(result.get("text") or "")
    if error == "refused":
        return "port-blocked", "refused, though the master listens: a firewall rejects it"
    if error == "unreachable" and "host" in text.lower() and seconds < AT_ONCE:
        return "port-blocked", f"{text or 'unreachable'} at once: a firewall rejects it"
    if error == "unreachable":
        return "master-unreachable", (text or "no route").lower()
    if error == "timeout" and (others_reach or (is_on_link and seconds > ARP_SECONDS)):
        return "port-blocked", "no answer, as where a firewall drops it"
    if error == "timeout":
        return "master-unreachable", "no answer from the address"
    return "master-unreachable", text or str(error)


def _remedy(cause: str, address: str, master: str, port: int, spec: RunSpec, mine: Facts, masters: Facts) -> str:
    if cause != "port-blocked":
        has = [a["address"] for _, a, i in getifaddrs(masters) if a.get("scope") == "global"]
        other = f" ({master} has {', '.join(has)})" if has else ""
        return f"check the route with `ip route get {address}`, or choose with --network CIDR{other}"
    source = _source(mine, address)
    if spec.master_port:
        ufw = f"sudo ufw allow from {source} to any port {port} proto tcp"
        cmd = f"sudo firewall-cmd --add-rich-rule='rule family={_family(source)} source address={source} port "
        cmd += f"port={port} protocol=tcp accept'"
    else:
        ufw = f"sudo ufw allow from {source} to any proto tcp"
        cmd = f"sudo firewall-cmd --zone=trusted --add-source={source}"
    extra = "" if spec.master_port else "; or open one port and name it with --master-port"
    return f"on {master}: {ufw} (or: {cmd}){extra}; NCCL and Gloo need high ports between all nodes as well"


def _source(mine: Facts, address: str) -> str:
    """Whom to let in: the subnet both are in, else the node's own first address of that family."""
    if not _is_ip(address):
        return "NODE_ADDRESS"
    wanted = ipaddress.ip_address(address.partition("%")[0])
    own = [a for _, a, i in getifaddrs(mine) if not i.get("loopback") and a.get("scope") == "global"]
    for item in own:
        if wanted in subnet(item):
            return str(subnet(item))
    same = [a["address"] for a in own if a["family"] == wanted.version]
    return same[0] if same else "NODE_ADDRESS"


def _family(source: str) -> str:
    return "ipv6" if ":" in source else "ipv4"
