"""The first N nodes, what is this machine, and virtual nodes."""

import pytest

from allranks.cluster import Cluster
from allranks.cluster.hostfile import parse_hostfile
from allranks.cluster.nodes import make_cluster, set_aside, virtual_cluster
from allranks.errors import UsageError

TEXT = "me@h1\nh2 slots=4\nh3:2222\nh4\n"


def cluster_of(text: str, first: int | None = None, local: str = "", caller: str = "you") -> Cluster:
    """The cluster of a hostfile; `local`: hosts that are this machine."""
    nodes = parse_hostfile(text, "hosts.txt")
    is_local = local.split().__contains__
    return make_cluster(nodes, source="hosts.txt", first=first, is_local=is_local, caller=caller)


def test_all_nodes_in_order() -> None:
    cluster = cluster_of(TEXT, local="h2")
    assert [(n.index, n.name, n.is_local) for n in cluster.nodes] == [
        (0, "h1", False), (1, "h2", True), (2, "h3", False), (3, "h4", False)
    ]  # fmt: skip
    assert (cluster.master.name, cluster.source, len(cluster)) == ("h1", "hosts.txt", 4)


def test_the_first_n_are_indexed_from_zero() -> None:
    nodes = parse_hostfile(TEXT, "x")[1:]
    cluster = make_cluster(nodes, source="x", first=2, is_local=lambda host: False)
    assert [(n.index, n.name) for n in cluster.nodes] == [(0, "h2"), (1, "h3")]


def test_more_nodes_than_hosts_says_how_many_there_are() -> None:
    with pytest.raises(UsageError, match=r"--nodes 5: hosts\.txt has 4 hosts. Set --nodes from 1 to 4"):
        cluster_of(TEXT, 5)


@pytest.mark.parametrize(("caller", "first_is_local"), [("you", False), ("me", True)])
def test_an_own_port_or_another_user_goes_by_ssh(caller: str, first_is_local: bool) -> None:
    cluster = cluster_of(TEXT, local="h1 h2 h3 h4", caller=caller)
    assert [n.is_local for n in cluster.nodes] == [first_is_local, True, False, True]


def test_virtual_nodes() -> None:
    cluster = virtual_cluster(3)
    assert [(n.index, n.name) for n in cluster.nodes] == [(0, "local0"), (1, "local1"), (2, "local2")]
    assert all(n.is_local for n in cluster.nodes) and cluster.source == "--local 3"


FOUR = "h1 slots=4\nh2 slots=4\nh3 slots=2\nh4 slots=2\n"


@pytest.mark.parametrize(
    ("spares", "nodes", "working", "standing_by"),
    [
        (1, None, ["h1", "h2", "h3"], ["h4"]),
        (2, 1, ["h1"], ["h3", "h4"]),
        (1, 2, ["h1", "h2"], ["h4"]),
        (0, 2, ["h1", "h2"], []),
    ],
)
def test_the_last_hosts_stand_by(spares: int, nodes: int | None, working: list[str], standing_by: list[str]) -> None:
    cluster = set_aside(cluster_of(FOUR), spares, nodes, 1)
    assert ([n.name for n in cluster.nodes], [n.name for n in cluster.spares]) == (working, standing_by)
    assert [n.index for n in cluster.spares] == [3 - i for i in range(len(standing_by))][::-1]


@pytest.mark.parametrize(("spares", "nodes"), [(4, None), (9, None), (2, 3), (1, 4)])
def test_there_must_be_hosts_enough(spares: int, nodes: int | None) -> None:
    with pytest.raises(UsageError, match=rf"--spares {spares}: hosts.txt has 4 hosts. Add hosts, or set fewer"):
        set_aside(cluster_of(FOUR), spares, nodes, 1)


def test_a_spare_that_fits_nowhere_is_refused() -> None:
    assert set_aside(cluster_of(FOUR), 1, None, None).spares[0].name == "h4", "it fits in the place of h3"
    with pytest.raises(UsageError, match=r"h4 has slots=2 in hosts\.txt, and every node runs 4 ranks or more"):
        set_aside(cluster_of(FOUR), 1, 2, None)
    with pytest.raises(UsageError, match="every node runs 3 ranks or more"):
        set_aside(cluster_of(FOUR), 1, None, 3)
    assert set_aside(cluster_of("h1\nh2\n"), 1, None, 8).spares, "nothing says how many it can take"
