"""Why a node did not reach the master's port: the cause, in one sentence, with a remedy to paste. Pure.

What the kernel says, and what it means (tcp(7), arp(7)): on the node's own subnet an absent host gives
"No route to host" after about 3 s of ARP, so silence there means that the port is filtered; "No route to
host" at once is a firewall that rejects (firewalld's default), "refused" on a port that we know to listen
is one too, or another machine with the same address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from allranks.findings import Finding, Where
from allranks.spec import RunSpec

from .interfaces import Facts, getifaddrs, interface_of, on_link, subnet

AT_ONCE = 0.9  # seconds; ARP gives up after about 3

Result = Mapping[str, Any]


def explain(
    node: str, address: str, master: str, port: int, spec: RunSpec, facts: Mapping[str, Facts],
    probes: Mapping[str, Sequence[Result]],
) -> Finding:  # fmt: skip
    """The finding about one node that did not reach `address`, the one that most nodes reached."""
    result = next((r for r in probes[node] if r.get("address") == address), {"error": "not tried"})
    mine, masters = facts.get(node) or {}, facts.get(master) or {}
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


def _ok(results: Sequence[Result], address: str) -> bool:
    return any(r.get("ok") for r in results if r.get("address") == address)


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
        has = ", ".join(a["address"] for _, a, i in getifaddrs(masters) if not i.get("loopback")) or "none"
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
    error, seconds = result.get("error"), float(result.get("seconds") or 0.0)
    text = str(result.get("text") or "")
    if error == "refused":
        return "port-blocked", "refused, though the master listens: a firewall rejects it"
    if error == "unreachable" and "host" in text.lower() and seconds < AT_ONCE:
        return "port-blocked", f"{text or 'unreachable'} at once: a firewall rejects it"
    if error == "unreachable":
        return "master-unreachable", (text or "no route").lower()
    if error == "timeout" and (is_on_link or others_reach):
        return "port-blocked", "no answer, as where a firewall drops it"
    if error == "timeout":
        return "master-unreachable", "no answer from the address"
    return "master-unreachable", text or str(error)


def _remedy(
    cause: str, address: str, master: str, port: int, spec: RunSpec, mine: Facts, masters: Facts
) -> str:
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
