"""What `check` says of the ranks' network settings: value, who set it, why."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from allranks.preflight.rank_network import NetworkSetting, explain
from allranks.settings import RunSpec

CASE = json.loads((Path(__file__).parents[1] / "preflight/checks/gate/proved.json").read_text())
SPEC = RunSpec.of(hosts="h1,h2,h3")
PORT = {"hca": "mlx5_0", "port": 1, "active": True, "layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}


def settings(node: str = "h2", **change: Any) -> dict[str, NetworkSetting]:
    """Of a node whose facts were changed."""
    facts = copy.deepcopy(CASE["facts"])
    facts[node] |= change
    return {s.name: s for s in explain(SPEC, CASE["request"]["gate"], facts)[node]}


def nccl(conf: dict[str, str] | None = None, **environ: str) -> dict[str, Any]:
    return {"nccl": {"environ": environ, "conf": conf or {}, "plugins": [], "rdma": []}}


def test_gloo_is_set_by_allranks_and_nccl_left_alone() -> None:
    found = settings()
    assert found["GLOO_SOCKET_IFNAME"][1:3] == ("eth0", "allranks")
    assert found["NCCL_SOCKET_IFNAME"][1:3] == ("(eth0)", "NCCL's default")
    assert "NCCL_IB_HCA" not in found


def test_what_a_user_has_set_stays_and_says_where() -> None:
    found = settings(**nccl({"/etc/nccl.conf": "# site\nNCCL_SOCKET_IFNAME = =eth0\n"}, GLOO_SOCKET_IFNAME="eth0"))
    assert found["GLOO_SOCKET_IFNAME"][1:3] == ("eth0", "environment")
    assert found["NCCL_SOCKET_IFNAME"][1:3] == ("=eth0", "/etc/nccl.conf")


def test_an_active_port_is_used_and_its_settings_are_shown() -> None:
    found = settings(fabric=[PORT, {**PORT, "hca": "mlx5_1", "active": False}])
    assert found["NCCL_IB_DISABLE"][1:] == ("(0)", "NCCL's default", "RDMA is used")
    assert found["NCCL_IB_HCA"].why == "uses mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR))"
    assert "NCCL_IB_GID_INDEX" not in found and "NTHREADS x NSOCKS" not in found


def test_roce_has_a_gid_index() -> None:
    roce = {**PORT, "layer": "Ethernet"}
    assert settings(fabric=[roce])["NCCL_IB_GID_INDEX"][1:3] == ("(-1)", "NCCL's default")
    forced = settings(fabric=[roce], **nccl(NCCL_IB_GID_INDEX="3"))["NCCL_IB_GID_INDEX"]
    assert forced[1:3] == ("3", "environment") and "EINVAL" in forced.why


def test_disabled_rdma_shows_the_sockets() -> None:
    found = settings(fabric=[PORT], **nccl(NCCL_IB_DISABLE="1", NCCL_NSOCKS_PERTHREAD="4"))
    assert found["NCCL_IB_DISABLE"].why.startswith("sockets, though mlx5_0:1")
    assert found["NTHREADS x NSOCKS"].value == "auto x 4"
    assert "do nothing but on AWS and GCP" in found["NTHREADS x NSOCKS"].why


def test_peers_are_counted_by_interface() -> None:
    pairs = {
        "h1": {"ok": True, "address": "10.0.0.1", "local_address": "10.0.0.2",
               "ways": [{"ok": False, "address": "10.0.0.9", "error": "timeout"}]},
        "h3": {"ok": True, "address": "10.0.0.3", "local_address": "10.0.0.2", "ways": []},
    }  # fmt: skip
    assert settings(pairs=pairs)["peers' addresses reached"].value == "eth0 2 of 3"


@pytest.mark.parametrize("gate", [{}, {"name": "h1", "port": 0, "error": {"errno": "EADDRINUSE"}}])
def test_nothing_is_said_without_a_proof(gate: dict[str, Any]) -> None:
    assert explain(SPEC, gate, CASE["facts"]) == {}
