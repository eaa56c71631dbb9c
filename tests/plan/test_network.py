"""The choice of MASTER_ADDR from the proof, and the sentence where there is none."""

from typing import Any

import pytest

from allranks.engines.orphans import left_alone
from allranks.plan.network import choose_address, offered, port_taken, share_network, target_words
from allranks.protocol.codec import encode
from allranks.protocol.messages import AddressProbe, PortFailure, SweptMessage
from allranks.protocol.plan_facts import NodeFacts, read_facts, read_probes
from allranks.protocol.processes import PortOwner, SweptProcess
from allranks.settings import RunSpec

PORT = 29500


def interface(name: str, *addresses: str, **parts: Any) -> dict[str, Any]:
    """`addr/prefix`; a third part is a label."""
    items: list[dict[str, Any]] = []
    for text in addresses:
        address, prefix, *label = text.split("/")
        scope = "host" if name == "lo" else "link" if address.startswith(("fe80", "169.254")) else "global"
        items.append({"address": address, "prefix": int(prefix), "family": 6 if ":" in address else 4, "scope": scope})
        items[-1] |= {"label": label[0]} if label else {}
    return {"name": name, "up": True, "running": True, "loopback": name == "lo", "addresses": items, **parts}


def node(number: int, *interfaces: dict[str, Any], machine: int | None = None, **parts: Any) -> dict[str, Any]:
    lo = interface("lo", "127.0.0.1/8", "::1/128")
    identity = {"boot_id": f"boot{number if machine is None else machine}", "netns": 1, "pidns": 1}
    return {"interfaces": [lo, *interfaces], "identity": identity, "nccl": {"environ": {}}, **parts}


def usual(number: int, *more: dict[str, Any]) -> dict[str, Any]:
    return node(number, interface("eth0", f"10.0.0.{number + 1}/24"), *more)


def ok(address: str, source: str) -> dict[str, Any]:
    return {"address": address, "ok": True, "seconds": 0.001, "local_address": source}


def bad(address: str, error: str = "timeout", text: str = "no answer", seconds: float = 6.0) -> dict[str, Any]:
    return {"address": address, "ok": False, "error": error, "text": text, "seconds": seconds}


def cluster(count: int = 3) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """One network, everybody reaches the master."""
    facts = {f"h{i}": usual(i) for i in range(count)}
    return facts, {n: [ok("10.0.0.1", f"10.0.0.{i + 1}")] for i, n in enumerate(facts)}


def facts_of(facts: dict[str, Any]) -> dict[str, NodeFacts]:
    return {name: read_facts(node) for name, node in facts.items()}


def probes_of(probes: dict[str, Any]) -> dict[str, tuple[AddressProbe, ...]]:
    return {name: read_probes(results) for name, results in probes.items()}


def choose(facts: Any, probes: Any, **spec: Any) -> Any:
    return choose_address(RunSpec.of(**spec), "h0", PORT, facts_of(facts), probes_of(probes))


# -- offers ----------------------------------------------------------------------------------------

TWO = [interface("eth0", "10.0.0.1/24", "fd00::1/64", "fe80::1/64"), interface("eth1", "192.168.7.1/24")]


@pytest.mark.parametrize(
    ("interfaces", "network", "expected"),
    [
        (TWO, None, ["10.0.0.1", "192.168.7.1", "fd00::1"]),
        (TWO, "192.168.0.0/16", ["192.168.7.1"]),
        (TWO, "192.168.0.0/16,10.0.0.0/8", ["192.168.7.1", "10.0.0.1"]),
        (TWO, "fd00::/8", ["fd00::1"]),
        (TWO, "172.16.0.0/12", []),
        ([interface("docker0", "172.17.0.1/16"), *TWO], None, ["10.0.0.1", "192.168.7.1", "fd00::1", "172.17.0.1"]),
        ([*TWO, interface("ib0", "10.9.0.1/24")], None, ["10.9.0.1", "10.0.0.1", "192.168.7.1", "fd00::1"]),
        ([interface("eth0", "8.8.4.4/24"), interface("eth1", "10.0.0.1/24")], None, ["10.0.0.1", "8.8.4.4"]),
        ([interface("eth0", "169.254.3.1/16")], None, []),
        ([interface("eth0", "10.0.0.1/24", up=False)], None, []),
        ([interface("eth0", "10.0.0.1/24", running=False)], None, []),
        ([interface("br-1", "172.18.0.1/16"), interface("veth1", "172.19.0.1/16")], None, ["172.18.0.1", "172.19.0.1"]),
        ([], None, []),
    ],
)
def test_offers(interfaces: list[dict[str, Any]], network: str | None, expected: list[str]) -> None:
    facts = {"h0": node(0, *interfaces), "h1": usual(1)}
    assert offered(facts_of(facts), "h0", network) == expected


def test_addresses_in_doubt_are_not_offered() -> None:
    eth0 = interface("eth0", "fd00::1/64", "fd00::2/64", "fd00::3/64")
    for address, flag in zip(eth0["addresses"], ("tentative", "temporary", "none"), strict=True):
        address["flags"] = [flag]
    facts = {"h0": node(0, eth0), "h1": usual(1)}
    assert offered(facts_of(facts), "h0", None) == ["fd00::3", "fd00::2"]


def test_one_machine_takes_loopback_first() -> None:
    facts = {f"local{i}": node(i, interface("eth0", "10.0.0.1/24"), machine=0) for i in range(2)}
    assert share_network(facts_of(facts))
    assert offered(facts_of(facts), "local0", None) == ["127.0.0.1", "::1", "10.0.0.1"]
    assert offered(facts_of({"h0": usual(0)}), "h0", None)[0] == "127.0.0.1"
    assert offered(facts_of(facts), "local0", "10.0.0.0/8") == ["10.0.0.1"]


def test_two_machines_or_namespaces_do_not_share() -> None:
    assert not share_network(facts_of({"a": usual(0), "b": usual(1)}))
    assert not share_network(facts_of({"a": usual(0), "b": {**usual(0), "identity": {"boot_id": "boot0", "netns": 2}}}))
    assert not share_network(facts_of({"a": {}, "b": {}}))


# -- choices ---------------------------------------------------------------------------------------


def test_all_reach_the_only_address() -> None:
    choice = choose(*cluster())
    assert choice.address == "10.0.0.1"
    assert choice.findings == ()
    assert choice.environment == {n: {"GLOO_SOCKET_IFNAME": "eth0"} for n in ("h0", "h1", "h2")}


def test_stubs_in_different_subnets_share_the_fate_of_the_masters() -> None:
    facts = {f"h{i}": node(i, interface("bad0", f"10.66.{i}.1/24"), interface("eth0", f"10.0.0.{i + 1}/24"))
             for i in range(2)}  # fmt: skip
    probes = {
        "h0": [ok("10.66.0.1", "10.66.0.1"), ok("10.0.0.1", "10.0.0.1")],
        "h1": [bad("10.66.0.1", "unreachable", "Network is unreachable", 0.0), ok("10.0.0.1", "10.0.0.2")],
    }
    environment = choose(facts, probes).environment
    assert environment["h0"]["NCCL_SOCKET_IFNAME"] == environment["h1"]["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_routed_rails_are_not_pinned_to_one() -> None:
    """Every node a subnet a rail: the kernel takes one source for all, which says nothing of the others."""
    facts = {f"h{i}": node(i, *(interface(f"eth{r}", f"10.{r}.{i}.1/24") for r in range(4))) for i in range(2)}
    probes = {
        "h0": [ok(f"10.{r}.0.1", f"10.{r}.0.1") for r in range(4)],
        "h1": [ok(f"10.{r}.0.1", "10.0.1.1") for r in range(4)],
    }
    assert choose(facts, probes).environment == {n: {"GLOO_SOCKET_IFNAME": "eth0"} for n in facts}


def test_the_address_that_all_reach_wins_over_the_better_one() -> None:
    facts = {f"h{i}": node(i, interface("eth0", f"10.0.0.{i + 1}/24"), interface("eth1", f"10.1.0.{i + 1}/24"))
             for i in range(3)}  # fmt: skip
    probes = {n: [ok("10.0.0.1", f"10.0.0.{i + 1}"), ok("10.1.0.1", f"10.1.0.{i + 1}")] for i, n in enumerate(facts)}
    assert choose(facts, probes).address == "10.0.0.1"
    probes["h2"][0] = bad("10.0.0.1")
    choice = choose(facts, probes)
    assert choice.address == "10.1.0.1"
    wanted = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert choice.environment == dict.fromkeys(facts, wanted)


def test_virtual_nodes() -> None:
    facts = {f"local{i}": node(i, interface("eth0", "10.0.0.1/24"), machine=0) for i in range(2)}
    probes = {n: [ok("127.0.0.1", "127.0.0.1"), ok("::1", "::1"), ok("10.0.0.1", "10.0.0.1")] for n in facts}
    choice = choose_address(RunSpec(), "local0", PORT, facts_of(facts), probes_of(probes))
    assert choice.address == "127.0.0.1"
    assert choice.environment == {n: {"GLOO_SOCKET_IFNAME": "lo"} for n in facts}


def test_a_name_that_is_loopback_on_the_master_only() -> None:
    facts, _ = cluster(2)
    probes = {"h0": [ok("h0", "127.0.0.1")], "h1": [ok("h0", "10.0.0.2")]}
    choice = choose(facts, probes, master_addr="h0")
    assert choice.address == "h0"
    assert choice.environment == {n: {"GLOO_SOCKET_IFNAME": "eth0"} for n in facts}
    assert choice.findings == ()


def test_the_users_gloo_setting_that_is_wrong_on_one_node_fails() -> None:
    facts, probes = cluster()
    for name in facts:
        facts[name]["nccl"]["environ"] = {"GLOO_SOCKET_IFNAME": "eth0"}
    facts["h2"]["interfaces"][1]["name"] = "ens3"
    (finding,) = choose(facts, probes).findings
    assert (finding.id, finding.status) == ("no-interface", "fail")
    assert (finding.where.node, finding.where.interface) == ("h2", "eth0")
    assert "It has lo, ens3" in finding.message


def test_gloo_families_that_cannot_meet() -> None:
    facts = {
        "h0": node(0, interface("eth0", "10.0.0.1/24", "fd00::1/64")),
        "h1": node(1, interface("eth0", "fd00::2/64")),
    }
    probes = {
        "h0": [ok("10.0.0.1", "10.0.0.1"), ok("fd00::1", "fd00::1")],
        "h1": [bad("10.0.0.1"), ok("fd00::1", "fd00::2")],
    }
    choice = choose(facts, probes)
    assert choice.address == "fd00::1"
    assert [(f.id, f.status) for f in choice.findings if f.id == "ipv6-problem"] == [("ipv6-problem", "warn")]


# -- failures --------------------------------------------------------------------------------------

NO_ROUTE = "No route to host"


@pytest.mark.parametrize(
    ("result", "cause", "reason"),
    [
        (bad("10.0.0.1", seconds=6.0), "port-blocked", "no answer, as where a firewall drops it"),
        (bad("10.0.0.1", "refused", "Connection refused", 0.001), "port-blocked", "refused, though the master listens"),
        (bad("10.0.0.1", "unreachable", NO_ROUTE, 0.001), "port-blocked", "a firewall rejects it"),
        (bad("10.0.0.1", "unreachable", NO_ROUTE, 3.1), "master-unreachable", "no route to host"),
        (bad("10.0.0.1", "unreachable", "Network is unreachable", 0.0), "master-unreachable", "network is unreachable"),
        (bad("10.0.0.1", "foreign", "another program answers on this port", 0.0), "wrong-interface", "another program"),
    ],
)
def test_one_node_does_not_reach_the_only_address(result: dict[str, Any], cause: str, reason: str) -> None:
    facts, probes = cluster()
    probes["h2"] = [result]
    choice = choose(facts, probes)
    assert choice.address is None
    (finding,) = choice.findings
    assert (finding.id, finding.status) == (cause, "fail")
    assert encode(finding.where) == {"node": "h2", "peer": "h0", "port": PORT}
    assert reason in finding.message and "h2" in finding.message and "10.0.0.1" in finding.message
    assert finding.evidence[0].startswith("10.0.0.1: ")


def test_the_sentence_about_a_filtered_port() -> None:
    facts, probes = cluster(4)
    probes["h3"] = [bad("10.0.0.1")]
    (finding,) = choose(facts, probes, master_port=PORT).findings
    assert finding.message == (
        "h3 cannot reach 10.0.0.1 port 29500 on h0: no answer, as where a firewall drops it, but h1 and h2 can reach it"
    )
    assert "on h0: `sudo ufw allow from 10.0.0.0/24 to any port 29500 proto tcp" in finding.remedy
    assert "rule family=ipv4 source address=10.0.0.0/24 port port=29500 protocol=tcp accept" in finding.remedy


def test_a_free_port_cannot_be_opened_beforehand() -> None:
    facts, probes = cluster()
    probes["h2"] = [bad("10.0.0.1")]
    (finding,) = choose(facts, probes).findings
    assert "sudo ufw allow from 10.0.0.0/24 to any proto tcp" in finding.remedy
    assert "--master-port" in finding.remedy


def test_nobody_but_the_master_gets_an_answer() -> None:
    facts, probes = cluster()
    facts["h1"], facts["h2"] = (node(i, interface("eth0", f"172.30.0.{i}/24")) for i in (1, 2))
    probes["h1"], probes["h2"] = [bad("10.0.0.1")], [bad("10.0.0.1")]
    choice = choose(facts, probes)
    assert [(f.id, f.where.node) for f in choice.findings] == [("master-unreachable", name) for name in ("h1", "h2")]


def test_the_address_most_nodes_reach_is_the_one_explained() -> None:
    facts = {f"h{i}": node(i, interface("eth0", f"10.0.0.{i + 1}/24"), interface("eth1", f"10.1.0.{i + 1}/24"))
             for i in range(4)}  # fmt: skip
    probes = {n: [bad("10.0.0.1"), ok("10.1.0.1", f"10.1.0.{i + 1}")] for i, n in enumerate(facts)}
    probes["h0"] = [ok("10.0.0.1", "10.0.0.1"), ok("10.1.0.1", "10.1.0.1")]
    probes["h3"] = [ok("10.0.0.1", "10.0.0.4"), bad("10.1.0.1")]
    choice = choose(facts, probes)
    assert choice.address is None
    (finding,) = choice.findings
    assert "h3 cannot reach 10.1.0.1" in finding.message
    assert finding.evidence[0].startswith("10.0.0.1: reached in")


REFUSED = ("refused", "Connection refused", 0.0)
TAKEN = "10.0.0.2 is not an address of h0, the first host of the list (it has 10.0.0.1"


@pytest.mark.parametrize(
    ("address", "of_master", "of_other", "cause", "says"),
    [
        ("train0", ok("train0", "10.0.0.1"), bad("train0", "resolution", "Name or service not known", 0.0),
         "name-resolution", "h1 cannot resolve --master-addr train0: Name or service not known"),
        ("127.0.0.1", ok("127.0.0.1", "127.0.0.1"), bad("127.0.0.1", *REFUSED),
         "wrong-interface", "every node's own loopback"),
        ("10.0.0.2", bad("10.0.0.2", *REFUSED), bad("10.0.0.2", *REFUSED), "wrong-interface", TAKEN),
    ],
    ids=["a name that one node does not know", "loopback", "an address of another machine"],
)  # fmt: skip
def test_a_master_addr_that_is_wrong(address: str, of_master: Any, of_other: Any, cause: str, says: str) -> None:
    facts, _ = cluster(2)
    first = choose(facts, {"h0": [of_master], "h1": [of_other]}, master_addr=address).findings[0]
    assert (first.id, first.where.node) == (cause, "h0" if says == TAKEN else "h1")
    assert says in first.message


def test_the_same_bridge_address_everywhere() -> None:
    facts = {f"h{i}": node(i, interface("docker0", "172.17.0.1/16")) for i in range(2)}
    probes = {"h0": [ok("172.17.0.1", "172.17.0.1")], "h1": [bad("172.17.0.1", *REFUSED)]}
    (finding,) = choose(facts, probes).findings
    assert finding.message == "172.17.0.1 is not only h0's: h1 has the same address on docker0"


def test_no_address_at_all() -> None:
    facts = {"h0": node(0), "h1": usual(1)}
    (finding,) = choose(facts, {"h0": [], "h1": []}, network="10.0.0.0/8").findings
    assert (finding.id, finding.status) == ("no-interface", "fail")
    assert "in --network 10.0.0.0/8" in finding.message


def test_a_node_that_could_not_try() -> None:
    facts, probes = cluster()
    probes["h1"] = []
    (finding,) = choose(facts, probes).findings
    assert finding.where.node == "h1" and "not tried" in finding.message


HOLDER = PortFailure(29511, "EADDRINUSE", owner=PortOwner(pid=4242, command="python train.py", user="kim"))


def test_the_fix_for_a_held_port_names_the_port_and_the_nodes() -> None:
    """`clean --foreign` looks at the default port on this machine, unless it is told otherwise."""
    spec = RunSpec.of(hosts="my hosts.txt", master_port=29511)
    clean = "allranks clean --foreign --master-port 29511 --hosts 'my hosts.txt'"
    assert port_taken("h1", HOLDER, target_words(spec)).remedy.endswith(clean)
    dead = HOLDER._replace(owner=PortOwner(pid=4242, run="a-1-abcdef", run_lives=False))
    assert port_taken("h1", dead, target_words(spec)).remedy.endswith("clean --orphans --hosts 'my hosts.txt'`")
    other = SweptProcess(4242, 1, "python train.py", why="holds port 29511")
    (line,) = left_alone({"h1": SweptMessage(foreign=[other]), "h2": SweptMessage(foreign=[])}, spec)
    assert line.startswith("left alone, because no run of allranks started it: h1 pid 4242 holds port 29511")
    assert line.endswith(clean)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RunSpec.of(hosts="h1,h2"), "--hosts h1,h2"),
        (RunSpec.of(local=2), "--local 2"),
        (RunSpec(), "--local 1"),
        (RunSpec.of(slurm=True), "--hosts HOSTS"),
    ],
)
def test_nodes_in_a_command(spec: RunSpec, words: str) -> None:
    assert target_words(spec) == words


def test_the_fix_of_a_variable_names_the_option_that_set_it() -> None:
    facts, probes = cluster()
    for one in facts.values():
        one["nccl"] = {"environ": {"GLOO_SOCKET_IFNAME": "ens3"}}
    choice = choose(facts, probes, env={"GLOO_SOCKET_IFNAME": "ens3"})
    assert choice.findings and all("from --env, or from [env]" in finding.remedy for finding in choice.findings)
