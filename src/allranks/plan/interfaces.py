"""Which interface NCCL and Gloo would take on a node, and what to set where that would be wrong.

NCCL (src/misc/socket.cc, ncclFindInterfaces and findInterfaces; src/include/socket.h: MAX_IFS 16):
NCCL_SOCKET_IFNAME, if longer than one character, is the whole answer. Else `ib*`; the subnet of
NCCL_COMM_ID (one interface); anything but docker*, lo*; docker*; lo* (from 2.28.9 on virbr* comes last).
`^` excludes and `=` is exact, both at the head of the list only (and `^=` is both). It walks
getifaddrs(3): all IPv4 addresses in interface order, then all IPv6; interfaces must be RUNNING, ::1 and
what NCCL_SOCKET_FAMILY excludes are skipped, a name counts once. So does RCCL.

Gloo in torch (torch/csrc/distributed/c10d/init.cpp and gloo/transport/tcp/device.cc): every name of
GLOO_SOCKET_IFNAME (split at commas, no signs) must exist and have an address; unset, the address that
the node's own host name resolves to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allranks.findings import Finding, Where
from allranks.protocol.interface_names import matches_interface
from allranks.protocol.plan_facts import NodeFacts, interface_of, local_addresses, network_of, plain

Unset = Callable[[str], str]  # how a variable is removed, in words
MAX_IFS = 16
# Interfaces that, as a rule, lead to containers or virtual machines of their own host only.
HOST_LOCAL = ("docker", "virbr", "veth", "br-", "cni", "flannel", "cali", "podman", "lxc", "lxd", "kube")


@dataclass(frozen=True)
class InterfaceChoice:
    """One node: the interface Gloo and NCCL will use, the environment that makes it so, and why.

    `gloo` and `nccl` are None where nothing is known; `nccl` may be a list with commas.
    """

    gloo: str | None
    nccl: str | None
    env: dict[str, str]
    explanation: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class InterfaceProof:
    """What the rendezvous check showed of a node's interfaces. `chosen` carries the master address; `passed` and
    `failed` are names; what is in neither was not tried."""

    chosen: str | None
    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def is_host_local(name: str) -> bool:
    """Names that bridges and pairs of container engines carry."""
    return name.startswith(HOST_LOCAL)


# -- NCCL's rule -----------------------------------------------------------------------------------


def nccl_interfaces(facts: NodeFacts) -> tuple[str, ...]:
    """List the interfaces that NCCL takes, the first of them for its bootstrap; empty: NCCL fails.

    It is the rule of before 2.28.9, by which virbr* counts as any other: where both agree a pin changes nothing.
    """
    settings = nccl_settings(facts)
    wanted = settings.get("NCCL_SOCKET_IFNAME", "")
    family = {"AF_INET": 4, "AF_INET6": 6}.get(settings.get("NCCL_SOCKET_FAMILY", ""))
    if len(wanted) > 1:
        return _matching(facts, wanted, family)
    names = _matching(facts, "ib", family)
    comm_id = settings.get("NCCL_COMM_ID", "")
    if not names and len(comm_id) > 1:
        names = _in_subnet_of(facts, comm_id)
    for stage in ("^docker,lo", "docker", "lo"):
        names = names or _matching(facts, stage, family)
    return names


def _matching(facts: NodeFacts, pattern: str, family: int | None) -> tuple[str, ...]:
    """findInterfaces(prefixList, …)."""
    names: list[str] = []
    for name, address, interface in local_addresses(facts):
        if not interface.running or address.family != (family or address.family) or plain(address.address) == "::1":
            continue
        if name not in names and matches_interface(name, pattern):
            names.append(name)
    return tuple(names[:MAX_IFS])


def _in_subnet_of(facts: NodeFacts, comm_id: str) -> tuple[str, ...]:
    """ncclFindInterfaceMatchSubnet: the first, running or not. A host name can't be resolved here."""
    text = comm_id[1:].partition("]")[0] if comm_id.startswith("[") else comm_id.rpartition(":")[0]
    try:
        wanted = ipaddress.ip_address(plain(text))
    except ValueError:
        return ()
    for name, address, _ in local_addresses(facts):
        if wanted in network_of(address):
            return (name,)
    return ()


def nccl_settings(facts: NodeFacts) -> dict[str, str]:
    """Give the settings that NCCL reads on a node, by name."""
    return {name: value for name, (value, _) in facts.nccl.settings().items()}


def who_speaks(facts: NodeFacts) -> str | None:
    """Who other than us decides NCCL's interfaces on this node, or None."""
    environ = facts.nccl.environ_
    for key in ("NCCL_SOCKET_IFNAME", "NCCL_COMM_ID", "NCCL_SOCKET_FAMILY", "NCCL_NET_PLUGIN", "NCCL_NET"):
        if environ.get(key):
            return f"{key}={environ[key]}"
        for path, text in facts.nccl.conf.items():
            if any(line.strip().startswith(key + "=") for line in text.splitlines()):
                return f"{key} in {path}"
    if facts.nccl.plugins:
        return f"the plug-in {facts.nccl.plugins[0]}"
    return None


# -- Gloo's rule -----------------------------------------------------------------------------------


def gloo_default(facts: NodeFacts) -> str | None:
    """Name the interface that Gloo takes by itself: that of the address of the node's host name."""
    for address in facts.own_name.addresses:
        name = interface_of(facts, address)
        if name is not None:
            return name
        if address.startswith("127."):
            return "lo"  # 127.0.1.1 is on no interface by name, and yet lo answers
    return None


def _gloo_names(facts: NodeFacts) -> list[str]:
    """List the names of the user's GLOO_SOCKET_IFNAME; Gloo ignores one character (strlen > 1)."""
    value = facts.nccl.environ_.get("GLOO_SOCKET_IFNAME", "")
    if len(value) <= 1:
        return []
    return [w for w in value.split(",") if w]


def _judge_gloo(
    node: str, facts: NodeFacts, names: Sequence[str], proof: InterfaceProof, unset: Unset
) -> list[Finding]:
    is_running = {name: interface.running for name, _, interface in local_addresses(facts)}
    setting = f"GLOO_SOCKET_IFNAME is {','.join(names)}, but"
    remedy = f"{unset('GLOO_SOCKET_IFNAME')}: allranks sets it on every node"
    if proof.chosen:
        remedy += f" (here to {proof.chosen})"
    findings = []
    for name in names:
        where = Where(node=node, interface=name)
        if name[0] in "^=":
            message = f"{node}: {setting} Gloo takes exact names, and the sign {name[0]!r} is for NCCL"
            findings.append(Finding("no-interface", "fail", message, remedy, where))
        elif name not in is_running:
            others = ", ".join(is_running) or "none"
            message = f"{setting} {node} has no interface {name} with an address. It has {others}"
            findings.append(Finding("no-interface", "fail", message, remedy, where))
        elif not is_running[name]:
            message = f"{node}: {setting} {name} is down, so peers cannot reach it"
            findings.append(Finding("wrong-interface", "fail", message, remedy, where))
        elif name in proof.failed and name not in proof.passed:
            message = f"{node}: {setting} the rendezvous check failed over {name}"
            findings.append(Finding("wrong-interface", "warn", message, remedy, where))
    return findings


# -- the choice ------------------------------------------------------------------------------------


def choose_interfaces(node: str, facts: NodeFacts, proof: InterfaceProof, pin: bool, unset: Unset) -> InterfaceChoice:
    """One node's settings; `pin` False where all ranks share one network namespace, `unset` as in `findings`."""
    gloo = _choose_gloo(node, facts, proof, unset)
    nccl = _choose_nccl(node, facts, proof, pin, unset)
    return InterfaceChoice(
        gloo.gloo,
        nccl.nccl,
        {**gloo.env, **nccl.env},
        gloo.explanation + nccl.explanation,
        gloo.findings + nccl.findings,
    )


def _choose_gloo(node: str, facts: NodeFacts, proof: InterfaceProof, unset: Unset) -> InterfaceChoice:
    names = _gloo_names(facts)
    if names:
        value = ",".join(names)
        findings = tuple(_judge_gloo(node, facts, names, proof, unset))
        return InterfaceChoice(value, None, {}, (f"GLOO_SOCKET_IFNAME={value}: set by you",), findings)
    if proof.chosen is None:
        return InterfaceChoice(gloo_default(facts), None, {}, ("GLOO_SOCKET_IFNAME: left to Gloo",))
    default = gloo_default(facts)
    setting = f"GLOO_SOCKET_IFNAME={proof.chosen}"
    why = f"{setting}: it carries the way to the master. Gloo by itself would take {default or 'none'}"
    return InterfaceChoice(proof.chosen, None, {"GLOO_SOCKET_IFNAME": proof.chosen}, (why,))


def _choose_nccl(node: str, facts: NodeFacts, proof: InterfaceProof, pin: bool, unset: Unset) -> InterfaceChoice:
    taken = nccl_interfaces(facts)
    bad = [n for n in taken if n not in proof.passed and (n in proof.failed or is_host_local(n))]
    good = _pins(proof)
    speaker = who_speaks(facts)
    text = ",".join(taken)
    if pin and bad and good and speaker is None:
        value = "=" + ",".join(good)
        why = f"NCCL by itself would take {text}, and {' and '.join(bad)} did not pass the rendezvous check"
        setting = {"NCCL_SOCKET_IFNAME": value}
        return InterfaceChoice(None, ",".join(good), setting, (f"NCCL_SOCKET_IFNAME={value}: {why}",))
    is_doubtful = bool(bad) or (speaker is None and _is_unproved(taken, proof))
    if pin and is_doubtful:
        findings: tuple[Finding, ...] = (_warn(node, taken, bad, good, speaker),)
    else:
        findings = _nothing(node, facts, taken, speaker, unset)
    return InterfaceChoice(None, text or None, {}, (_left(text, speaker),), findings)


def _pins(proof: InterfaceProof) -> list[str]:
    """Every interface that passed; loopback and container bridges only where nothing else did. Labels
    (eth0:1) can't be named: NCCL cuts a list's words at the colon."""
    names = [n for n in proof.passed if ":" not in n]
    real = [n for n in names if n != "lo" and not is_host_local(n)]
    return real or [n for n in names if n != "lo"] or names


def _is_unproved(taken: Sequence[str], proof: InterfaceProof) -> bool:
    """NCCL's bootstrap interface was not tried, while another one passed."""
    return bool(taken) and bool(proof.passed) and taken[0] not in proof.passed


def _left(text: str, speaker: str | None) -> str:
    if speaker is not None:
        return f"NCCL_SOCKET_IFNAME: left alone, {speaker} decides"
    return f"NCCL_SOCKET_IFNAME: not set, NCCL by itself takes {text or 'no interface'}"


def _nothing(
    node: str, facts: NodeFacts, taken: Sequence[str], speaker: str | None, unset: Unset
) -> tuple[Finding, ...]:
    if taken or speaker is None or not facts.interfaces:
        return ()
    message = f"{node}: {speaker} matches no running interface, so NCCL would not start there"
    remedy = f"{unset('NCCL_SOCKET_IFNAME')}, or show the names with `ip -br addr`"
    return (Finding("no-interface", "warn", message, remedy, Where(node=node)),)


def _warn(node: str, taken: Sequence[str], bad: Sequence[str], good: Sequence[str], speaker: str | None) -> Finding:
    names = bad or taken[:1]
    what = "did not pass the rendezvous check" if bad else "was not part of the rendezvous check"
    cause = f" because of {speaker}" if speaker is not None else ""
    message = f"{node}: NCCL will take {', '.join(names)}{cause}, which {what}"
    setting = f"--env NCCL_SOCKET_IFNAME=={','.join(good)}" if good else "choose with --env NCCL_SOCKET_IFNAME==NAME"
    remedy = f"if NCCL cannot connect at its start: {setting}"
    return Finding("wrong-interface", "warn", message, remedy, Where(node=node, interface=names[0]))
