"""Roles on real hosts: servers beside trainers on the same nodes, and whose end a run is."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hosts.bed import Bed
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
    result = launch.start([], "--roles", "roles.toml", "--no-check", nproc=None).result()
    assert (result["exit"], result["verdict"]) == (0, None), launch.stderr
    assert result["roles"]["rollout"]["nodes"] == ["h1-rollout", "h2-rollout"]
    logs = {path.parent.name: path.read_text() for path in launch.run_dir.glob("logs/*/rank_00[13].log")}
    assert "trainer sees 0,1 3 4 1\n" in logs["node_01_h2"], logs
    assert "server sees '2' 2\n" in logs["node_03_h2-rollout"], logs
    nodes = json.loads((launch.run_dir / "run.json").read_text())["nodes"]
    assert [(node["name"], node["role"]) for node in nodes] == [
        ("h1", "trainer"), ("h2", "trainer"), ("h1-rollout", "rollout"), ("h2-rollout", "rollout"),
    ]  # fmt: skip
    assert launch.alive() == []
