"""The choice of MASTER_ADDR: the best of the master's addresses that all nodes have reached. Pure.

`offered` says which addresses to try, `choose_address` reads the rendezvous check, `explain` says why it failed.
The order of offers: --network, names of container bridges last, ib* first (as NCCL does), IPv4 before
IPv6, private before public, the kernel's own order.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from allranks.findings import Finding, Where, unset
from allranks.protocol.messages import AddressProbe, PortFailure
from allranks.protocol.plan_facts import NodeFacts, global_addresses, interface_of, local_addresses, network_of, on_link
from allranks.protocol.processes import PortOwner
from allranks.settings import RunSpec
from allranks.settings.secrets import redact_text
from allranks.settings.table import ENGINE_FLAGS
from allranks.text import join_names, one_line

from .interfaces import InterfaceChoice, InterfaceProof, Unset, choose_interfaces, is_host_local, nccl_interfaces

MAX_OFFERS = 16
AT_ONCE = 0.9  # seconds
ARP_SECONDS = 3.5
_UNUSABLE = frozenset(("tentative", "dadfailed", "deprecated"))
_NOTHING = NodeFacts()
_LEAVE_OUT = "drop --master-addr: allranks finds the best address by itself"
_CHOOSE = "choose the network that joins the nodes with --network CIDR"

Probes = Mapping[str, Sequence[AddressProbe]]


@dataclass(frozen=True)
class Choice:
    """`address` is None where no address serves all nodes; then a finding with status fail says why."""

    address: str | None
    findings: tuple[Finding, ...] = ()
    interfaces: Mapping[str, InterfaceChoice] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, dict[str, str]]:
        """Give the variables of each node that make it so."""
        return {name: choice.env for name, choice in self.interfaces.items()}


# -- what to try -----------------------------------------------------------------------------------


def offered(facts: Mapping[str, NodeFacts], master: str, network: str | None) -> list[str]:
    """List the master's addresses, best first; loopback (then first) only where all nodes share it."""
    return _offers_of(facts.get(master, _NOTHING), share_network(facts), network)


def _offers_of(node: NodeFacts, shared: bool, network: str | None) -> list[str]:
    networks = [ipaddress.ip_network(n, strict=False) for n in (network or "").split(",") if n]
    ranked = []
    for name, item, interface in local_addresses(node):
        flags = item.flags or ()
        usable = interface.running and item.scope == "global"
        if interface.loopback:
            usable = shared and item.address in ("127.0.0.1", "::1")
        if not (usable and interface.up) or _UNUSABLE & set(flags):
            continue
        address = ipaddress.ip_address(item.address)
        inside = [i for i, n in enumerate(networks) if address in n]
        if networks and not inside:
            continue
        key = (
            inside[:1],
            not interface.loopback,
            is_host_local(name),
            not name.startswith("ib"),
            item.family,
            "temporary" in flags,
            not address.is_private,
        )
        ranked.append((key, item.address))
    ranked.sort(key=lambda pair: pair[0])
    return [address for _, address in ranked[:MAX_OFFERS]]


def share_network(facts: Mapping[str, NodeFacts]) -> bool:
    """Whether all nodes are in one network namespace of one machine (virtual nodes, or a single one)."""
    identities = [node.identity for node in facts.values()]
    places = {(one.boot_id, one.netns) if one.boot_id and one.netns else None for one in identities}
    return len(facts) == 1 or (len(places) == 1 and None not in places)


# -- what the check showed -------------------------------------------------------------------------


def choose_address(
    spec: RunSpec,
    master: str,
    port: int,
    facts: Mapping[str, NodeFacts],
    probes: Probes,
    forwarded: Collection[str] = (),
) -> Choice:
    """Read every node's results; the first offer that all nodes reached becomes MASTER_ADDR.

    `forwarded` are the names of the caller's variables that the ranks get.
    """
    address = spec.rendezvous.master_addr
    order = [address] if address else offered(facts, master, spec.rendezvous.network)
    if not order:
        return Choice(None, (no_address(spec, master),))
    check = _Check(spec, master, port, facts, probes)
    reached = {a: {n for n in probes if _result_of(probes[n], a).ok} for a in order}
    best = max(order, key=lambda a: len(reached[a]))  # the first of those that most reach
    late = [n for n in probes if n not in reached[best]]
    if not late:
        return check.chosen(best, partial(unset, of_run=spec.launch.env, forwarded=forwarded))
    others = [n for n in probes if n in reached[best] and n != master]
    findings = [check.explain(n, best, others) for n in late]
    wrong = [f for f in findings if f.where.node == master and f.id == "wrong-interface"]
    return Choice(None, tuple(wrong or findings))  # a wrong --master-addr explains what the others saw


def _result_of(results: Sequence[AddressProbe], address: str) -> AddressProbe:
    return next((r for r in results if r.address == address and r.ok), AddressProbe(""))


def no_address(spec: RunSpec, master: str) -> Finding:
    """Find that the master has no address to offer."""
    inside = f" in --network {spec.rendezvous.network}" if spec.rendezvous.network else ""
    message = f"{master} has no address{inside} that other nodes could use"
    remedy = f"show its addresses with `ssh {master} ip -br addr` and choose with --network CIDR"
    return Finding("no-interface", "fail", message, remedy, Where(node=master))


def target_words(spec: RunSpec) -> str:
    """How the user named the nodes, to be put into another command."""
    if spec.target.hosts:
        return f"--hosts {shlex.quote(spec.target.hosts)}"
    if any(spec.value(flag) for flag in ENGINE_FLAGS):
        return "--hosts HOSTS"  # `clean`, which is mostly meant, takes no engine
    return f"--local {spec.target.local or 1}"


def not_tried(node: str, error: str) -> Finding:
    """Find that a node could not look for the master; no link is at fault."""
    message = f"{node} could not try the master's addresses: {one_line(redact_text(error), 300)}"
    remedy = f"see whether {node} has processes, open files and memory left for this user (`ulimit -a`, `free -h`)"
    return Finding("unknown", "fail", message, remedy, Where(node=node))


def port_taken(master: str, failure: PortFailure, target: str) -> Finding:
    """Find that the master could not open its port; `failure` is what its listener said.

    `target` names the nodes in commands.
    """
    port = failure.port or 0
    owner = failure.owner or PortOwner()
    where = Where(node=master, port=port)
    if failure.errno != "EADDRINUSE":
        message = f"{master} could not open port {port}: {failure.text}"
        return Finding("unknown", "fail", message, "try another --master-port", where)
    held = ""
    if owner.pid:
        held = f" by pid {owner.pid} ({owner.command or '?'}, user {owner.user or '?'})"
    elif any(owner):
        held = " by a process that is not visible to you"
    remedy = "use --master-port 0 for a free one"
    run = re.sub(r"-[0-9a-f]{6}$", "", owner.run or "")  # gang/session.py: a uid is a name and six digits
    if run and owner.run_lives:
        held = f" by your run {run}, which goes on{held.replace(' by ', ': ', 1)}"
        remedy += f", or end that run first: allranks stop {run}"
    elif run:
        held = f" by what is left of your run {run}{held.replace(' by ', ': ', 1)}"
        remedy += f", or end it with `allranks clean --orphans {target}`"
    elif owner.pid:
        clean = f"allranks clean --foreign --master-port {port} {target}"
        remedy += f", or end that process, if it is yours: {clean}"
    message = f"port {port} on {master} is held{held or ' by another program'}"
    return Finding("port-in-use", "fail", message, remedy, where)


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Virtual nodes share their interfaces: one finding a cause is enough."""
    return list({(f.id, f.where.interface): f for f in reversed(findings)}.values())[::-1]


def _mixed_families(choices: Mapping[str, InterfaceChoice], facts: Mapping[str, NodeFacts]) -> list[Finding]:
    """Gloo takes the first address of its interface: some IPv4 and some IPv6 cannot meet."""
    families: dict[int, list[str]] = {}
    for name, choice in choices.items():
        for interface, address, _ in local_addresses(facts.get(name, _NOTHING)):
            if interface == choice.gloo:
                families.setdefault(address.family, []).append(name)
                break
    if len(families) < 2:
        return []
    family, odd = min(families.items(), key=lambda entry: len(entry[1]))
    message = f"Gloo will use IPv{family} on {', '.join(odd)} and IPv{10 - family} on the other nodes"
    remedy = "give every node's interface an IPv4 address, or choose another with --network"
    return [Finding("ipv6-problem", "warn", message, remedy, Where(node=odd[0]))]


class _Check:
    """The rendezvous check: what each node has tried of the master's addresses, and what is known of the nodes."""

    def __init__(self, spec: RunSpec, master: str, port: int, facts: Mapping[str, NodeFacts], probes: Probes) -> None:
        self._spec = spec
        self._master = master
        self._port = port
        self._facts = facts
        self._masters = facts.get(master, _NOTHING)
        self._probes = probes
        addresses = [{r.address for r in results if r.ok} for results in probes.values()]
        self._common = set.intersection(*addresses) if addresses else set()  # those that every node reached

    def _of(self, node: str) -> NodeFacts:
        return self._facts.get(node, _NOTHING)

    def chosen(self, address: str, unset: Unset) -> Choice:
        """Return the choice of an address that all nodes reached, with the interfaces that go with it."""
        shared = share_network(self._facts)
        at_master = self._ways(self._master)
        choices: dict[str, InterfaceChoice] = {}
        for name in self._probes:
            ways = at_master if name == self._master else self._ways_of_other(name, at_master)
            passed = tuple(way for way, has_passed in ways.items() if has_passed)
            failed = tuple(way for way, has_passed in ways.items() if not has_passed)
            carries = self._way(name, _result_of(self._probes[name], address))
            proof = InterfaceProof(carries, passed, failed)
            choices[name] = choose_interfaces(name, self._of(name), proof, not shared, unset)
        findings = [f for c in choices.values() for f in c.findings]
        findings += _mixed_families(choices, self._facts)
        return Choice(address, tuple(_once(findings) if shared else findings), choices)

    def _ways_of_other(self, node: str, at_master: Mapping[str, bool]) -> dict[str, bool]:
        """Say of the interfaces of a node that is not the master whether the check went through one.

        What was not tried (no address of the master in its subnet) shares the fate of the master's interface of the
        same name.
        """
        ways = self._ways(node)
        for name in nccl_interfaces(self._of(node)):
            if name in at_master:
                ways.setdefault(name, at_master[name])
        return ways

    def _ways(self, node: str) -> dict[str, bool]:
        """Say of a node's own interfaces whether the check went through one.

        What leads to an address that only some nodes reached has failed for all: NCCL joins every node with every
        other.
        """
        ways: dict[str, bool] = {}
        for result in self._probes.get(node) or ():
            name = self._way(node, result)
            if name is not None:
                ways[name] = ways.get(name, False) or result.address in self._common
        return ways

    def _way(self, node: str, result: AddressProbe) -> str | None:
        """Name the interface of a try: the source of an answer, and the on-link way where there was none.

        The master's own is that behind the address. A name may be loopback for itself (127.0.1.1) and something else
        for the others: then it is the interface in the subnet that they came from.
        """
        here = self._of(node)
        source = interface_of(here, result.local_address or "")
        if node != self._master:
            if result.ok:
                return source
            return on_link(here, result.address) if interface_of(self._masters, result.address) else None
        name = interface_of(here, result.address) or source
        if name == "lo":
            others = (results for other, results in self._probes.items() if other != node)
            sources = dict.fromkeys(_result_of(results, result.address).local_address for results in others)
            ways = (on_link(here, source) for source in sources if source)
            return next(filter(None, ways), name)
        return name

    # -- why a node did not reach it -------------------------------------------------------------------
    # What the kernel says and what it means (tcp(7), arp(7)): on the node's own subnet an absent host gives
    # "No route to host" after about 3 s of ARP, so longer silence there means that the port is filtered; "No
    # route to host" at once is a firewall that rejects (firewalld's default); "refused" on a port that we
    # know to listen is one too, or another machine with the same address.

    def explain(self, node: str, address: str, others: Sequence[str]) -> Finding:
        """Find why one node did not reach `address`, the one that most nodes reached: `others`, beside the master."""
        master = self._master
        tries = self._probes[node]
        result = next((r for r in tries if r.address == address), AddressProbe(address, error="not tried"))
        wrong = self._wrong_address(node, address, result)
        if wrong is not None:
            label, message, remedy = wrong
        else:
            label, why = _cause(result, _is_on_link(self._of(node), address), bool(others))
            contrast = f", but {join_names(others)} can reach it" if others else ""
            message = f"{node} cannot reach {address} port {self._port} on {master}: {why}{contrast}"
            remedy = _other_route(address, master, self._masters)
            if label == "port-blocked":
                port = self._port if self._spec.rendezvous.master_port else None
                remedy = _open_port(master, port, _source(self._of(node), address))
        where = Where(node=node, peer=master, port=self._port)
        return Finding(label, "fail", message, remedy, where, tuple(map(_evidence, tries)))

    def _wrong_address(self, node: str, address: str, result: AddressProbe) -> tuple[str, str, str] | None:
        """Cases where the address itself is at fault, whatever the error was: label, message, remedy."""
        master = self._master
        wanted = f"--master-addr {address}" if self._spec.rendezvous.master_addr else address
        if result.error == "resolution":
            remedy = f"put the name into /etc/hosts of {node}, or give an IP address with --master-addr"
            return "name-resolution", f"{node} cannot resolve {wanted}: {result.text or ''}", remedy
        ip = _ip(address)
        if node == master:
            if ip is None or interface_of(self._masters, address) is not None or address.startswith("127."):
                return None
            others = ", ".join(global_addresses(self._masters)) or "none"
            message = f"{wanted} is not an address of {master}, the first host of the list (it has {others})"
            return "wrong-interface", message, _LEAVE_OUT
        if address == "localhost" or (ip is not None and ip.is_loopback):
            message = f"{wanted} is every node's own loopback: {node} can't reach {master} by it"
            return "wrong-interface", message, _LEAVE_OUT
        interface = interface_of(self._of(node), address) if ip is not None else None
        if interface is not None:
            message = f"{address} is not only {master}'s: {node} has the same address on {interface}"
            return "wrong-interface", message, _CHOOSE
        if result.error == "foreign":
            message = f"{node} reaches another program at {wanted}: that address leads to another machine"
            return "wrong-interface", message, _CHOOSE
        return None


def never_reached(node: str, facts: NodeFacts, tried: Sequence[AddressProbe]) -> Finding:
    """Why a node that joins never reached node 0; `tried` are its last tries, `facts` hold its interfaces."""
    result = tried[0]
    label, why, remedy = _never_reached(node, facts, result)
    message = f"{node} cannot reach node 0 at {result.address} port {result.port}: {why}"
    where = Where(node=node, peer=result.address, port=result.port)
    return Finding(label, "fail", message, remedy, where, tuple(map(_evidence, tried)))


def _never_reached(node: str, facts: NodeFacts, result: AddressProbe) -> tuple[str, str, str]:
    """Label, reason and remedy. Unlike in the rendezvous check it is not known that a program listens."""
    address = result.address
    text = result.text or ""
    ip = result.ip or address
    if result.error == "resolution":
        remedy = f"put the name into /etc/hosts of {node}, or give an IP address with --master-addr"
        return "name-resolution", f"the name cannot be resolved ({text})", remedy
    if address != "localhost" and ip != address and ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
        remedy = f"correct the name in /etc/hosts of {node}, or give an IP address with --master-addr"
        return "hostname-resolves-to-loopback", f"the name is {ip} here, which is this node itself", remedy
    if result.error == "foreign":
        holder = f"ss -tlnp 'sport = :{result.port}'"
        return "port-in-use", text, f"choose another --port on all nodes, or see on {address} who holds it: {holder}"
    if result.error == "refused":
        remedy = "see whether node 0 runs with the same --port, and whether --master-addr is its address"
        return "master-unreachable", "refused: nothing listens there, or a firewall rejects it", remedy
    label, why = _cause(result, _is_on_link(facts, ip), False)
    if label == "port-blocked":
        return label, why, _open_port(address, result.port, _source(facts, ip))
    return label, why, _other_route(ip, address, _NOTHING)


def _open_port(master: str, port: int | None, source: str) -> str:
    """Say how a firewall of the master lets a node in; `port` is None where each attempt takes a free one."""
    if port is None:
        ufw = f"sudo ufw allow from {source} to any proto tcp"
        firewalld = f"sudo firewall-cmd --zone=trusted --add-source={source}"
        one_port = ". Or open one port and name it with --master-port"
    else:
        ufw = f"sudo ufw allow from {source} to any port {port} proto tcp"
        family = "ipv6" if ":" in source else "ipv4"
        rule = f"rule family={family} source address={source} port port={port} protocol=tcp accept"
        firewalld = f"sudo firewall-cmd --add-rich-rule='{rule}'"
        one_port = ""
    return f"on {master}: `{ufw}` or `{firewalld}`{one_port}. NCCL and Gloo need high ports between all nodes as well"


def _other_route(address: str, master: str, masters: NodeFacts) -> str:
    others = ", ".join(global_addresses(masters))
    of_master = f" ({master} has {others})" if others else ""
    return f"check the route with `ip route get {address}`, or choose with --network CIDR{of_master}"


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an address, which may have a zone; None for a name."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _is_on_link(here: NodeFacts, address: str) -> bool:
    return _ip(address) is not None and on_link(here, address) is not None


def _evidence(result: AddressProbe) -> str:
    seconds = f"{result.seconds or 0} s"
    if result.ok:
        return f"{result.address}: reached in {seconds}"
    return f"{result.address}: {result.error} ({result.text or result.error}) after {seconds}"


def _cause(result: AddressProbe, is_on_link: bool, others_reach: bool) -> tuple[str, str]:
    """(label, reason) from the error, where the address is one of the master's."""
    error = result.error
    seconds = result.seconds or 0.0
    text = result.text or ""
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


def _source(here: NodeFacts, address: str) -> str:
    """Whom to let in: the subnet both are in, else the node's own first address of that family."""
    wanted = _ip(address)
    if wanted is None:
        return "NODE_ADDRESS"
    addresses = [a for _, a, i in local_addresses(here) if not i.loopback and a.scope == "global"]
    for item in addresses:
        if wanted in network_of(item):
            return str(network_of(item))
    return next((a.address for a in addresses if a.family == wanted.version), "NODE_ADDRESS")


MAX_WAYS = 15


def main_addresses(
    network: str | None,
    master_addresses: Sequence[str],
    facts: Mapping[str, NodeFacts],
    interfaces: Mapping[str, InterfaceChoice],
) -> dict[str, str]:
    """Each node's address on the interface that Gloo will use (the way to the master); without
    that choice, the first address that would be offered. Nodes without any are left out."""
    family = next((ip.version for ip in map(_ip, master_addresses) if ip is not None), 4)
    addresses = {}
    shared = share_network(facts)  # once: each of the nodes asks
    for name, node in facts.items():
        gloo = interfaces[name].gloo if name in interfaces else None
        of_gloo = [item for local, item, _ in local_addresses(node) if local == gloo and item.family == family]
        usable = [item.address for item in of_gloo if item.scope != "link"]
        usable = usable or _offers_of(node, shared, network)
        if usable:
            addresses[name] = usable[0]
    return addresses


def other_ways(node: NodeFacts, peer: NodeFacts, main: str) -> list[str]:
    """List a peer's further addresses on subnets that this node is on as well: rails, a storage network."""
    ways = []
    for name, item, interface in local_addresses(peer):
        usable = interface.running and item.scope == "global" and not interface.loopback
        if usable and item.address != main and not is_host_local(name) and on_link(node, item.address):
            ways.append(item.address)
    return ways[:MAX_WAYS]
