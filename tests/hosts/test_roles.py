"""Roles on real hosts: servers beside trainers on the same nodes, and whose end a run is."""

import json
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.joining import Joined
from tests.hosts.launching import Launch

SERVER = """
import http.server, os, sys
print("server sees", repr(os.environ["CUDA_VISIBLE_DEVICES"]), os.environ["WORLD_SIZE"], flush=True)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
TRAINER = """
import os, sys, urllib.request
for address in sys.argv[1].split(","):
    urllib.request.urlopen("http://%s:%s" % (address, sys.argv[2])).read()
seen = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]
print("trainer sees", *seen, flush=True)
"""
ROLES = """
[roles.trainer]
command = "train.py {rollout.addresses} 18080"
gpus = "0-1"
after = ["rollout"]

[roles.rollout]
command = "python3 serve.py 0.0.0.0 18080"
with = "trainer"
gpus = "2"
ready = "http://{address}:18080/"
"""


def test_servers_share_the_nodes_of_the_trainer(bed2: Bed, tmp_path: Path) -> None:
    """Each node has an agent for each of its roles, and each role its own GPUs and ranks."""
    launch = Launch(bed2, tmp_path)
    for name, text in (("serve.py", SERVER), ("train.py", TRAINER), ("roles.toml", ROLES)):
        (launch.work / name).write_text(text)
    result = launch.start([], "--roles", "roles.toml", "--no-check", nproc=None).done()
    assert result["roles"]["rollout"]["nodes"] == ["h1-rollout", "h2-rollout"]
    logs = {path.parent.name: path.read_text() for path in launch.run_dir.glob("logs/*/rank_00[13].log")}
    assert "trainer sees 0,1 3 4 1\n" in logs["node_01_h2"], logs
    assert "server sees '2' 2\n" in logs["node_03_h2-rollout"], logs
    nodes = json.loads((launch.run_dir / "run.json").read_text())["nodes"]
    assert [(node["name"], node["role"]) for node in nodes] == [
        ("h1", "trainer"), ("h2", "trainer"), ("h1-rollout", "rollout"), ("h2-rollout", "rollout"),
    ]  # fmt: skip


APART = """
[roles.rollout]
command = "python3 serve.py 0.0.0.0 {rollout.port.http}"
env = { CUDA_VISIBLE_DEVICES = "7" }
nodes = 1
ready = "http://{address}:{rollout.port.http}/"

[roles.trainer]
command = "train.py {rollout.addresses} {rollout.port.http}"
env = { CUDA_VISIBLE_DEVICES = "0" }
nodes = 2
after = ["rollout"]
"""


@pytest.fixture
def joined(bed4: Bed, tmp_path: Path) -> Joined:
    """The programs and roles of a run that every host joins by itself."""
    joined = Joined(bed4, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    for name, text in (("serve.py", SERVER), ("train.py", TRAINER), ("roles.toml", APART)):
        (work / name).write_text(text)
    return joined


def test_nodes_that_join_have_the_role_of_their_number(joined: Joined) -> None:
    """Each makes its role's command from its own file; addresses and ports come from node 0."""
    for rank in (2, 0, 1):
        joined.start(joined.bed.hosts[rank], rank, [], "--roles", "roles.toml", nnodes=3)
    assert joined.codes() == {"h1": 0, "h2": 0, "h3": 0}, joined.said("h1")
    logs = {path.parent.name: path.read_text() for path in joined.run_dir.glob("logs/*/rank_*.log")}
    assert "server sees '7' 1\n" in logs["node_00_h1"], logs
    assert "trainer sees 0 0 2 0\n" in logs["node_01_h2"], logs
    assert "trainer sees 0 1 2 0\n" in logs["node_02_h3"], logs
    result = joined.document("result.json")
    nodes = {name: role["nodes"] for name, role in result["roles"].items()}
    assert nodes == {"rollout": ["h1"], "trainer": ["h2", "h3"]}
    joined.nothing_left()


def test_a_joined_role_that_fails_is_named_on_every_node(joined: Joined) -> None:
    (joined.place / "work" / "train.py").write_text("raise ValueError('out of tune')")
    joined.start(joined.bed.hosts[0], 0, [], "--roles", "roles.toml", nnodes=3)
    joined.start(joined.bed.hosts[1], 1, [], "--roles", "roles.toml", nnodes=3)
    joined.start(joined.bed.hosts[2], 2, [], "--roles", "roles.toml", nnodes=3)
    assert set(joined.codes().values()) == {1}
    verdict = joined.document("verdict.json")
    assert (verdict["cause"], verdict["where"]["role"]) == ("program-exception", "trainer")
    assert "trainer" in joined.said("h1") and "out of tune" in joined.said("h3")
    joined.nothing_left()


def test_other_roles_on_a_node_and_roles_that_do_not_fit_are_refused(joined: Joined) -> None:
    """The start is refused before anything runs; the others are told."""
    h1, h2, h3, _ = joined.bed.hosts
    joined.start(h3, 2, [], "--roles", "roles.toml", nnodes=4)
    assert joined.codes("h3") == {"h3": 2}
    assert "--nnodes 4: the roles have 3 nodes" in joined.said("h3")
    other = APART.replace("{rollout.addresses}", "10.0.0.9")
    (joined.place / "work" / "other.toml").write_text(other)
    joined.start(h1, 0, [], "--roles", "roles.toml", nnodes=3)
    joined.start(h2, 1, [], "--roles", "other.toml", nnodes=3)
    assert joined.codes("h1", "h2")["h1"] == 2
    assert "was started with `rollout: python3 serve.py" in joined.said("h1"), joined.said("h1")
    joined.nothing_left()
