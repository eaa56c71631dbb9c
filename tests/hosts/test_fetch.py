"""allranks fetch on real hosts: what ranks have written comes back, from where it was cut off, and is the same."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch

WRITES = """
import os
rank = os.environ["RANK"]
out = os.environ["ALLRANKS_OUTPUT_DIR"]
os.makedirs(out + "/ckpt/step_1", exist_ok=True)
with open(out + "/ckpt/step_1/rank_%s.pt" % rank, "wb") as file:
    for block in range(40):
        file.write(bytes([int(rank) + block]) * 100_000)
open(out + "/ckpt/empty", "w").close()
open(out + "/notes of %s.txt" % rank, "w").write("done\\n")
if rank == "0":
    os.symlink("/etc/hostname", out + "/link")
    os.symlink("/etc", out + "/ckpt/door")
    os.mkfifo(out + "/pipe")
    open(out.encode() + b"/no-text-\\xff", "w").close()
"""


@pytest.fixture(scope="module")
def ended(bed2: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """A run of one rank on each of two hosts, which has left files there."""
    launch = Launch(bed2, tmp_path_factory.mktemp("wrote"))
    script = launch.work / "writes.py"
    script.write_text(WRITES)
    assert launch.start([str(script)]).result()["exit"] == 0, launch.stderr
    yield launch
    launch.forget()


def fetched(launch: Launch, place: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = launch.call("fetch", *words, "--output", str(place), "--json")
    assert done.returncode == code, (done.stderr, done.stdout)
    report = json.loads(done.stdout)
    return {node["node"]: node for node in report["nodes"]}


def files_below(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.stat().st_size for path in place.rglob("*") if path.is_file()}


def test_all_files_come_once_and_links_stay(ended: Launch, tmp_path: Path) -> None:
    nodes = fetched(ended, tmp_path)
    assert files_below(tmp_path) == {
        "node_00_h1/ckpt/empty": 0, "node_00_h1/ckpt/step_1/rank_0.pt": 4_000_000, "node_00_h1/notes of 0.txt": 5,
        "node_01_h2/ckpt/empty": 0, "node_01_h2/ckpt/step_1/rank_1.pt": 4_000_000, "node_01_h2/notes of 1.txt": 5,
    }  # fmt: skip
    assert [(nodes[h]["files"], nodes[h]["bytes"], nodes[h]["present"]) for h in ("h1", "h2")] == [
        (3, 4_000_005, 0)
    ] * 2
    assert (nodes["h1"]["skipped"], nodes["h2"]["skipped"]) == (4, 0)
    source = Path(ended.result()["outputs"]["h2"]) / "ckpt/step_1/rank_1.pt"
    there = ended.bed.host("h2").run(["sha256sum", str(source)]).stdout.split()[0]
    assert hashlib.sha256((tmp_path / "node_01_h2/ckpt/step_1/rank_1.pt").read_bytes()).hexdigest() == there
    again = fetched(ended, tmp_path)
    assert [(again[h]["files"], again[h]["bytes"], again[h]["present"]) for h in ("h1", "h2")] == [(3, 0, 2)] * 2


def test_a_command_runs_on_the_nodes_of_a_run(ended: Launch) -> None:
    """Over ssh, as the run has reached them; its host list may be another by now."""
    done = ended.call("exec", "--run", ended.run_dir.name, "--json", "hostname")
    nodes = {node["node"]: node["output"] for node in json.loads(done.stdout)["nodes"]}
    assert (done.returncode, nodes) == (0, {"h1": "h1\n", "h2": "h2\n"}), done.stderr


def test_a_fetch_goes_on_where_it_was_cut_off(ended: Launch, tmp_path: Path) -> None:
    fetched(ended, tmp_path, ended.run_dir.name, "rank_*.pt")
    whole = tmp_path / "node_00_h1/ckpt/step_1/rank_0.pt"
    data = whole.read_bytes()
    whole.unlink()
    whole.with_name(".rank_0.pt.part").write_bytes(data[:1_500_000])
    broken = tmp_path / "node_01_h2/ckpt/step_1/rank_1.pt"
    other = broken.read_bytes()
    broken.write_bytes(b"\0" + other[1:])
    nodes = fetched(ended, tmp_path, ended.run_dir.name, "rank_*.pt")
    assert nodes["h1"]["bytes"] == 2_500_000, "only the rest has come"
    assert nodes["h2"]["bytes"] == 4_000_000, "what differs has come again"
    assert (whole.read_bytes(), broken.read_bytes()) == (data, other)


def test_a_dry_run_lists_and_writes_nothing(ended: Launch, tmp_path: Path) -> None:
    done = ended.call("fetch", "--dry-run", "--output", str(tmp_path / "x"), ended.run_dir.name, "ckpt/step_1/*")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("h1  1 file, 3.81 MB in /")
    assert lines[1].split() == ["3.81", "MB", "ckpt/step_1/rank_0.pt"]
    assert not (tmp_path / "x").exists()


def test_a_host_that_is_down_is_named_and_the_other_comes(ended: Launch, tmp_path: Path) -> None:
    document = json.loads((ended.run_dir / "run.json").read_text())
    document["spec"]["connect_timeout"] = 3.0
    quick = tmp_path / "run"
    quick.mkdir()
    for name in ("result.json", "status.json", "events.jsonl"):
        os.symlink(ended.run_dir / name, quick / name)
    (quick / "run.json").write_text(json.dumps(document))
    ended.bed.host("h2").link_down()
    nodes = fetched(ended, tmp_path / "to", str(quick), code=4)
    assert (nodes["h1"]["files"], nodes["h2"]["files"]) == (3, 0)
    assert "h2" in nodes["h2"]["error"]


def test_a_run_that_left_nothing_has_nothing_to_fetch(launch: Launch, tmp_path: Path) -> None:
    """Each node was a failure: `… is not a directory`. It is one where the run's end has named files there."""
    script = launch.work / "idle.py"
    script.write_text("print('over')\n")
    result = launch.start([str(script)]).result()
    assert (result["exit"], result["outputs"]) == (0, {})
    done = launch.call("fetch", "--output", str(tmp_path / "to"))
    assert (done.returncode, done.stdout) == (0, "h1  nothing\nh2  nothing\n"), done.stderr
    result["outputs"] = {"h1": "/tmp/allranks-0/gone", "h2": "/tmp/allranks-0/gone"}
    (launch.run_dir / "result.json").write_text(json.dumps(result))
    done = launch.call("fetch", "--output", str(tmp_path / "to"))
    assert done.returncode == 4 and "something on the node has removed it" in done.stderr, done.stderr


SHARDS = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
rank, out = dist.get_rank(), os.environ["ALLRANKS_OUTPUT_DIR"]
dcp.save({"w%d" % rank: torch.full((3,), float(rank + 1))}, checkpoint_id=out + "/ck")
open(out + "/log.txt", "w").write("rank %d" % rank)
dist.destroy_process_group()
"""


def test_shards_of_all_nodes_come_into_one_tree_that_dcp_loads(launch: Launch) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    (launch.work / "shards.py").write_text(SHARDS)
    assert launch.start(["shards.py"]).result()["exit"] == 0, launch.stderr
    done = launch.call("fetch", "--merge", "*")
    tree = launch.run_dir / "outputs/merged"
    assert done.returncode == 0 and f"all nodes  -> {tree}" in done.stdout, done
    assert "log.txt differs: that of h1 is there, others are " in done.stdout
    assert (tree / "log.txt").read_text() == "rank 0"
    state = {f"w{rank}": torch.zeros(3) for rank in range(2)}
    checkpoint.load(state, checkpoint_id=tree / "ck", no_dist=True)
    assert [state[f"w{rank}"].tolist() for rank in range(2)] == [[1.0] * 3, [2.0] * 3]
    report = json.loads(launch.call("fetch", "--merge", "--json", "l?g.txt").stdout)
    assert (report["merged"], report["differing"]) == (str(tree), ["log.txt"])
