"""NCCL's and Gloo's own choice of interfaces, by table, and what is set where it would be wrong."""

from functools import partial
from typing import Any

import pytest
from tests.plan.test_network import interface

from allranks.findings import unset
from allranks.plan.interfaces import (
    InterfaceChoice,
    InterfaceProof,
    choose_interfaces,
    gloo_default,
    nccl_interfaces,
    nccl_settings,
)
from allranks.protocol.plan_facts import NodeFacts, interface_of, on_link, read_facts


def choose(
    name: str, facts: NodeFacts, proof: InterfaceProof, pin: bool = True, of_run: Any = (), forwarded: Any = ()
) -> InterfaceChoice:
    return choose_interfaces(name, facts, proof, pin, partial(unset, of_run=of_run, forwarded=forwarded))


LO = interface("lo", "127.0.0.1/8", "::1/128")
ETH0 = interface("eth0", "10.0.0.1/24", "fe80::1/64")
ETH1 = interface("eth1", "10.1.0.1/24")
IB0 = interface("ib0", "10.9.0.1/24")
IB1 = interface("ib1", "10.9.1.1/24")
DOCKER = interface("docker0", "172.17.0.1/16")
VIRBR = interface("virbr0", "192.168.122.1/24")
V6 = interface("eth6", "fd00::1/64", "fe80::6/64")


def node(*interfaces: dict[str, Any], **parts: Any) -> NodeFacts:
    environ = parts.pop("environ", {})
    return read_facts({"interfaces": list(interfaces), "nccl": {"environ": environ, **parts.pop("nccl", {})}, **parts})


@pytest.mark.parametrize(
    ("interfaces", "environ", "expected"),
    [
        ([LO, ETH0], {}, "eth0"),
        ([LO, ETH0, ETH1], {}, "eth0,eth1"),
        ([LO, ETH1, ETH0], {}, "eth1,eth0"),
        ([LO, ETH0, IB0], {}, "ib0"),
        ([LO, ETH0, IB0, IB1], {}, "ib0,ib1"),
        ([LO, DOCKER, ETH0], {}, "eth0"),
        ([LO, DOCKER], {}, "docker0"),
        ([LO], {}, "lo"),
        ([LO, VIRBR, ETH0], {}, "virbr0,eth0"),  # as before 2.28.9, and in RCCL
        ([LO, VIRBR], {}, "virbr0"),
        ([], {}, ""),
        ([LO, interface("eth0", "10.0.0.1/24", running=False), ETH1], {}, "eth1"),
        ([LO, interface("eth0"), ETH1], {}, "eth1"),  # no address
        ([LO, V6, ETH0], {}, "eth0,eth6"),  # getifaddrs: all IPv4, then all IPv6
        ([LO, V6, ETH0], {"NCCL_SOCKET_FAMILY": "AF_INET6"}, "eth6,eth0"),  # link-local counts
        ([LO, V6, ETH0], {"NCCL_SOCKET_FAMILY": "AF_INET"}, "eth0"),
        ([LO, V6, ETH0], {"NCCL_SOCKET_FAMILY": "inet"}, "eth0,eth6"),
        ([interface("eth0", "10.0.0.1/24", "10.7.0.1/24/eth0:1")], {}, "eth0,eth0:1"),  # label is a name
        ([interface(f"eth{i}", f"10.{i}.0.1/24") for i in range(20)], {}, ",".join(f"eth{i}" for i in range(16))),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "eth1"}, "eth1"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "eth"}, "eth0,eth1"),  # prefix
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "=eth"}, ""),  # exact
        ([LO, ETH0, ETH1, IB0], {"NCCL_SOCKET_IFNAME": "=eth1,ib0"}, "eth1,ib0"),  # order of the kernel
        ([LO, ETH0, ETH1, IB0], {"NCCL_SOCKET_IFNAME": "ib0,eth1"}, "eth1,ib0"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "^eth0"}, "lo,eth1"),  # lo is not excluded then
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "^lo,eth0"}, "eth1"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "^=eth,lo"}, "eth0,eth1"),
        ([LO, ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "e"}, "eth0,eth1"),  # one character is ignored
        ([LO, ETH0, IB0], {"NCCL_SOCKET_IFNAME": "en"}, ""),  # set and wrong: NCCL fails
        ([LO, ETH0, ETH1], {"NCCL_COMM_ID": "10.1.0.9:4000"}, "eth1"),
        ([LO, ETH0, V6], {"NCCL_COMM_ID": "[fd00::9]:4000"}, "eth6"),
        ([LO, ETH0, ETH1, IB0], {"NCCL_COMM_ID": "10.1.0.9:4000"}, "ib0"),  # ib goes first
        ([LO, ETH0, ETH1], {"NCCL_COMM_ID": "10.2.0.9:4000"}, "eth0,eth1"),
        ([LO, ETH0], {"NCCL_COMM_ID": "host:4000"}, "eth0"),
    ],
)
def test_nccl_rule(interfaces: list[dict[str, Any]], environ: dict[str, str], expected: str) -> None:
    assert ",".join(nccl_interfaces(node(*interfaces, environ=environ))) == expected


def test_conf_files_do_not_override() -> None:
    conf = {
        "/home/a/.nccl.conf": "# NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=eth1\n",
        "/etc/nccl.conf": "NCCL_SOCKET_IFNAME=ib0\nX=1",
    }
    facts = node(LO, ETH0, ETH1, nccl={"conf": conf}, environ={"NCCL_DEBUG": "WARN"})
    assert nccl_settings(facts) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth1", "X": "1"}
    assert nccl_interfaces(facts) == ("eth1",)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["10.1.0.1"], "eth1"), (["127.0.1.1"], "lo"), (["127.0.0.1", "10.1.0.1"], "lo"), ([], None),
        (["10.66.0.1", "10.0.0.1"], "eth0"), (["fe80::1"], "eth0"),
    ],
)  # fmt: skip
def test_gloo_takes_the_own_names_interface(addresses: list[str], expected: str | None) -> None:
    assert gloo_default(node(LO, ETH0, ETH1, own_name={"addresses": addresses})) == expected


def test_addresses_and_interfaces() -> None:
    facts = node(LO, ETH0, V6, interface("eth9", "10.5.0.1/24/eth9:0"))
    assert interface_of(facts, "10.0.0.1") == "eth0"
    assert interface_of(facts, "::ffff:10.0.0.1") == "eth0"
    assert interface_of(facts, "FE80::1%eth0") == "eth0"
    assert interface_of(facts, "10.5.0.1") == "eth9:0"
    assert interface_of(facts, "example") is None
    assert on_link(facts, "10.0.0.77") == "eth0"
    assert on_link(facts, "fd00::77") == "eth6"
    assert on_link(facts, "127.0.0.5") is None


# -- what is set -----------------------------------------------------------------------------------

PINS = [
    # interfaces, proof, environment that is set
    ([LO, ETH0, ETH1], InterfaceProof("eth1", ("eth0", "eth1")), {"GLOO_SOCKET_IFNAME": "eth1"}),
    (
        [LO, IB0, ETH0, ETH1], InterfaceProof("eth0", ("eth0", "eth1"), ("ib0",)),
        {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0,eth1"},
    ),
    ([LO, ETH0, IB0], InterfaceProof("eth0", ("eth0", "ib0")), {"GLOO_SOCKET_IFNAME": "eth0"}),  # InfiniBand stays
    ([LO, ETH0, ETH1], InterfaceProof("eth0", ("eth0",)), {"GLOO_SOCKET_IFNAME": "eth0"}),  # a rail that was not tried
    (
        [LO, ETH0, interface("br-4711", "172.20.0.1/16")], InterfaceProof("eth0", ("eth0",)),
        {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"},
    ),
    (
        [LO, ETH0, VIRBR], InterfaceProof("eth0", ("eth0", "docker0"), ()),
        {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"},
    ),
    ([LO, ETH0], InterfaceProof(None, (), ()), {}),
]  # fmt: skip


@pytest.mark.parametrize(("interfaces", "proof", "expected"), PINS)
def test_what_is_set(interfaces: list[dict[str, Any]], proof: InterfaceProof, expected: dict[str, str]) -> None:
    choice = choose("h1", node(*interfaces), proof)
    assert choice.env == expected
    assert choice.findings == ()
    assert len(choice.explanation) == 2


def test_never_pinned_where_all_share_a_network() -> None:
    choice = choose("h1", node(LO, ETH0, ETH1), InterfaceProof("lo", ("lo",), ("eth0",)), pin=False)
    assert choice.env == {"GLOO_SOCKET_IFNAME": "lo"}


def test_other_settings_of_nccl_decide_no_interface() -> None:
    parts = {"environ": {"NCCL_IB_HCA": "mlx5_0"}, "nccl": {"conf": {"/etc/nccl.conf": "NCCL_DEBUG=INFO"}}}
    choice = choose("h1", node(LO, ETH0, ETH1, **parts), InterfaceProof("eth1", ("eth1",), ("eth0",)))
    assert choice.env["NCCL_SOCKET_IFNAME"] == "=eth1"


@pytest.mark.parametrize(
    ("parts", "speaker"),
    [
        ({"environ": {"NCCL_SOCKET_IFNAME": "eth0"}}, "NCCL_SOCKET_IFNAME=eth0"),
        ({"environ": {"NCCL_NET_PLUGIN": "ofi"}}, "NCCL_NET_PLUGIN=ofi"),
        ({"nccl": {"conf": {"/etc/nccl.conf": "NCCL_SOCKET_IFNAME=eth0"}}}, "NCCL_SOCKET_IFNAME in /etc/nccl.conf"),
        ({"nccl": {"plugins": ["libnccl-net-ofi.so"]}}, "the plug-in libnccl-net-ofi.so"),
    ],
)
def test_who_speaks_is_left_alone_and_warned(parts: dict[str, Any], speaker: str) -> None:
    choice = choose("h1", node(LO, ETH0, ETH1, **parts), InterfaceProof("eth1", ("eth1",), ("eth0",)))
    assert choice.env == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert [(f.id, f.status, f.where.node) for f in choice.findings] == [("wrong-interface", "warn", "h1")]
    assert f" because of {speaker}," in choice.findings[0].message
    assert "--env NCCL_SOCKET_IFNAME==eth1" in choice.findings[0].remedy


def test_bootstrap_interface_that_was_not_tried_is_a_warning() -> None:
    choice = choose("h1", node(LO, IB0, ETH0), InterfaceProof("eth0", ("eth0",)))
    assert choice.env == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert [f.id for f in choice.findings] == ["wrong-interface"]
    assert choice.findings[0].message == "h1: NCCL will take ib0, which was not part of the rendezvous check"


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("eth0", []),
        ("eth0,eth1", []),
        ("e", []),  # one character is ignored
        ("ens3", [("no-interface", "fail")]),
        ("eth0,ens3", [("no-interface", "fail")]),
        ("^docker0", [("no-interface", "fail")]),
        ("=eth0", [("no-interface", "fail")]),
        ("eth9", [("no-interface", "fail")]),  # there, but without an address
        ("bad0", [("wrong-interface", "warn")]),
    ],
)
def test_gloo_set_by_the_user(value: str, ids: list[tuple[str, str]]) -> None:
    facts = node(
        LO, ETH0, ETH1, interface("eth9"), interface("bad0", "10.66.0.1/24"), environ={"GLOO_SOCKET_IFNAME": value}
    )
    choice = choose("h1", facts, InterfaceProof("eth0", ("eth0", "eth1"), ("bad0",)))
    assert [(f.id, f.status) for f in choice.findings if "GLOO" in f.message] == ids
    assert ("GLOO_SOCKET_IFNAME" in choice.env) == (value == "e")


@pytest.mark.parametrize(
    ("origins", "says"),
    [
        ({"of_run": ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}, "from --env, or from [env]"),
        ({"forwarded": ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}, "in this shell"),
        ({}, ""),
    ],
    ids=["--env or [env]", "the caller's shell", "the node"],
)
def test_a_fix_says_where_the_variable_was_set(origins: dict[str, tuple[str, ...]], says: str) -> None:
    """`unset` in the shell does not help where --env or settings file has the value."""
    facts = node(LO, ETH0, environ={"GLOO_SOCKET_IFNAME": "ens3", "NCCL_SOCKET_IFNAME": "ens"})
    choice = choose("h1", facts, InterfaceProof("eth0", ("eth0",)), **origins)
    assert len(choice.findings) == 2
    for finding in choice.findings:
        assert says in finding.remedy
        assert finding.remedy.startswith("remove" if "of_run" in origins else "unset")
