"""--sync: the caller's tree, which no node has, is shipped, run, and gone again; results stay."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed, Host
from tests.hosts.launching import BOUND, PYTHON, Launch
from tests.hosts.test_faults_start import done, nothing_left, refused, told
from tests.hosts.waiting import wait_until

PROGRAM = """
import json, os, sys, time
import helper
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open("data.txt") as file:
    data = file.read()
print("TOLD " + json.dumps({"cwd": os.getcwd(), "data": data, "helper": helper.VALUE, "file": __file__,
                            "above": sorted(os.listdir("..")), "attempt": attempt}), flush=True)
if "write" in sys.argv and os.environ["RANK"] == "1":
    with open("checkpoint.txt", "a") as file:
        file.write("attempt %d\\n" % attempt)
if "wait" in sys.argv and attempt == 0:
    time.sleep(600)
if "fail" in sys.argv and attempt == 0:
    if os.environ["RANK"] == "1":
        raise ConnectionError("fails once")
    time.sleep(600)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Short: node directories below it have sockets."""
    path = Path(tempfile.mkdtemp(prefix="bedS-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def git(repo: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *who, "-C", str(repo), *words], check=True, capture_output=True)


@pytest.fixture
def launch(bed2: Bed, place: Path) -> Iterator[Launch]:
    """Called from `jobs` of a repository that is on no host; what was committed is not what lies there."""
    found = Launch(bed2, place)
    repo = place / "project"
    jobs = repo / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "train.py").write_text("raise SystemExit('what was committed')\n")
    (jobs / "data.txt").write_text("committed")
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "first")
    (jobs / "train.py").write_text(PROGRAM)
    (jobs / "data.txt").write_text("changed")
    (jobs / "helper.py").write_text("VALUE = 'not even tracked'\n")
    (repo / ".gitignore").write_text("secret\n__pycache__\n")
    (repo / "secret").write_text("stays here")
    for host in bed2.hosts:
        host.mount_empty(repo)
        assert host.run(["ls", "-A", str(repo)]).stdout == ""
    found.work = jobs
    yield found
    found.forget()


def node_dir(launch: Launch, index: int) -> Path:
    uid = json.loads((launch.run_dir / "run.json").read_text())["uid"]
    return Path("/tmp/allranks-0", uid, f"node_{index:02d}")


def sessions(host: Host) -> set[int]:
    """sshd's processes that serve allranks' connections."""
    return {p.pid for p in host.pids() if p.command.startswith("sshd: root@notty")}


def test_the_callers_tree_runs_where_it_is_not(bed2: Bed, launch: Launch) -> None:
    done(bed2, launch.start(["train.py"], "--sync"))
    for rank in (0, 1):
        found = told(launch, rank)
        assert found["cwd"] == f"{node_dir(launch, rank)}/tree/jobs"
        assert (found["data"], found["helper"]) == ("changed", "not even tracked")
        assert found["file"].endswith("train.py") and found["above"] == [".gitignore", "jobs"]
    (tree,) = launch.events("tree")
    assert (tree["root"], tree["files"]) == (str(launch.work.parent), 4)
    arrived = {e["node"]: e["path"] for e in launch.events("tree-arrived")}
    assert arrived == {"h1": f"{node_dir(launch, 0)}/tree", "h2": f"{node_dir(launch, 1)}/tree"}


def test_the_callers_tree_runs_from_a_controller_on_a_node(bed2: Bed, launch: Launch) -> None:
    for host in bed2.hosts:
        host.run("rm -f ~/.ssh/config")  # and what dials takes it on
    state = {"XDG_STATE_HOME": str(launch.place / "state")}
    done(bed2, launch.start(["train.py"], "--sync", "--controller", "h1", env=state))
    for rank in (0, 1):
        found = told(launch, rank)
        assert (found["cwd"], found["data"]) == (f"{node_dir(launch, rank)}/tree/jobs", "changed")
    (tree,) = launch.events("tree")
    assert (tree["root"], tree["files"]) == (str(launch.work.parent), 4)
    assert json.loads((launch.run_dir / "run.json").read_text())["controller"]["host"] == "h1"
    assert not list(launch.run_dir.glob("tree*")) and not list(launch.run_dir.glob("controller.sh"))


def test_what_the_program_writes_is_kept_and_named(bed2: Bed, launch: Launch) -> None:
    launch.start(["train.py", "write"], "--sync", json_=False)
    assert launch.wait() == 0, launch.stdout
    kept = node_dir(launch, 1) / "tree"
    assert re.search(rf"^outputs +h2:{kept}$", launch.stdout, re.M), launch.stdout
    assert re.search(rf"^sync +4 files, .* of {launch.work.parent}$", launch.stdout, re.M), launch.stdout
    result: dict[str, Any] = json.loads((launch.run_dir / "result.json").read_text())
    assert result["outputs"] == {"h2": str(kept)}
    wait_until(lambda: not any(h.pids() for h in bed2.hosts), BOUND, "hosts without a process")
    assert (kept / "jobs/checkpoint.txt").read_text() == "attempt 0\n"
    assert (kept / "jobs/data.txt").read_text() == "changed"
    assert not node_dir(launch, 0).exists(), "nothing was written on h1"
    assert set(os.listdir(kept.parent)) <= {"tree", "tree.json"}


def test_a_further_attempt_goes_on_in_the_same_tree(bed2: Bed, launch: Launch) -> None:
    result = launch.start(["train.py", "write", "fail"], "--sync", "--retries", "1").done()
    assert [a["outcome"] for a in result["attempts"]] == ["failed", "done"]
    for rank in (0, 1):
        found = json.loads(launch.log(rank, 1).split("TOLD ", 1)[1].splitlines()[0])
        assert (found["cwd"], found["attempt"]) == (f"{node_dir(launch, rank)}/tree/jobs", 1)
    assert len(launch.events("tree-arrived")) == 2
    checkpoint = Path(result["outputs"]["h2"]) / "jobs/checkpoint.txt"
    assert checkpoint.read_text() == "attempt 0\nattempt 1\n"


def test_a_new_agent_after_attach_has_no_tree(bed2: Bed, launch: Launch) -> None:
    """The controller that took the run over has no tree to send: the run ends, and names the node and the reason."""
    launch.start(["train.py", "wait"], "--sync", "--retries", "2").until("rank-started", 2)
    logs = launch.run_dir / "logs"
    wait_until(lambda: sum("TOLD" in log.read_text() for log in logs.rglob("rank_*.log")) == 2, BOUND, "they run")
    launch.kill_launcher()
    launch.begin("attach", "--json", cwd=launch.place)
    launch.until("controller-attached")
    os.kill(bed2.host("h2").processes_with_env("RANK=1")[0].ppid, signal.SIGKILL)  # the agent
    result = launch.result()
    (attempt,) = result["attempts"]
    assert (attempt["decision"], result["verdict"]["where"]["node"]) == ("finish", "h2"), result
    assert attempt["reason"] == "a node needs the working tree of --sync, and the controller that had it has ended"
    wait_until(lambda: not any(h.pids() for h in bed2.hosts), BOUND, "hosts without a process")


def test_nothing_is_fetched_from_a_node_that_has_an_older_tree(bed2: Bed, launch: Launch) -> None:
    """The same path on the nodes holds something else: it is neither run nor touched."""
    for host in bed2.hosts:
        host.run(f"mkdir -p {launch.work}; echo 'raise SystemExit(9)' > {launch.work}/train.py")
    done(bed2, launch.start(["train.py"], "--sync"))
    assert {told(launch, rank)["data"] for rank in (0, 1)} == {"changed"}
    for host in bed2.hosts:
        assert host.run(["ls", str(launch.work)]).stdout == "train.py\n"


@pytest.mark.slow
def test_a_program_that_fails_leaves_nothing_either(bed2: Bed, launch: Launch) -> None:
    result = launch.start(["train.py", "fail"], "--sync").result()
    assert result["exit"] == 1 and result["verdict"]["where"]["rank"] == 1, result["verdict"]
    assert "fails once" in result["verdict"]["message"]
    nothing_left(bed2, launch)


@pytest.mark.parametrize("json_", [False, True])
def test_dry_run_says_what_would_be_shipped(bed2: Bed, launch: Launch, json_: bool) -> None:
    words = ["--hosts", str(bed2.hostfile_names), "--nproc", "1", "--sync", "--dry-run", *(["--json"] if json_ else [])]
    said = launch.call("run", *words, "--", "train.py")
    assert said.returncode == 0, said.stderr
    root = str(launch.work.parent)
    size = sum((launch.work / n).stat().st_size for n in ("train.py", "data.txt", "helper.py")) + 19
    if json_:
        document = json.loads(said.stdout)
        sync = document["sync"]
        assert (sync["root"], sync["below"], sync["files"], sync["bytes"]) == (root, "jobs", 4, size)
        assert {r["workdir"] for n in document["nodes"] for r in n["ranks"]} == {"<node dir>/tree/jobs"}
    else:
        assert f"would ship 4 files ({size} bytes) of {root} to <node dir>/tree on each node" in said.stdout
        assert "cd '<node dir>/tree/jobs' && " in said.stdout
    assert not launch.runs.exists() and not any(h.pids() for h in bed2.hosts)


def test_a_node_whose_disk_is_too_small(bed2: Bed, launch: Launch, place: Path) -> None:
    disk = place / "disk"
    disk.mkdir()
    bed2.host("h2").small_tmpfs(disk, "1m")
    (launch.work / "weights.bin").write_bytes(os.urandom(2 << 20))
    launch.start(["train.py"], "--sync", "--node-dir", str(disk))
    verdict = refused(bed2, launch, "disk-full", "h2")
    assert verdict["message"].startswith(f"h2 has no room for the synced tree in {disk}/allranks-0/")
    assert "No space left on device (5 MB needed, 0 MB free)" in verdict["message"]
    assert "--node-dir" in verdict["remedy"]
    assert list(disk.iterdir()) == [] and bed2.host("h2").run(["ls", "-A", str(disk)]).stdout == ""


@pytest.mark.slow
def test_a_connection_that_breaks_while_it_travels(bed2: Bed, launch: Launch) -> None:
    """It goes on where it was; the ranks never know."""
    (launch.work / "weights.bin").write_bytes(os.urandom(6 << 20))
    host = bed2.host("h2")
    host.rate("4mbit")
    launch.start(["train.py"], "--sync", "--lease", "30s")
    launch.until("node-ready", 2)
    archive = node_dir(launch, 1) / "tree.tar.gz"
    wait_until(lambda: archive.exists() and archive.stat().st_size > 200_000, BOUND, "a part of the archive on h2")
    (session,) = sessions(host)
    host.kill(session)
    wait_until(lambda: sessions(host) - {session}, BOUND, "another connection")
    assert "h2" not in {e["node"] for e in launch.events("tree-arrived")}
    host.rate(None)
    done(bed2, launch)
    assert [e["node"] for e in launch.events("tree-arrived")].count("h2") == 1
    assert told(launch, 1)["data"] == "changed"


def test_virtual_nodes_have_a_tree_each(launch: Launch) -> None:
    said = launch.call("run", "--local", "2", "--nproc", "1", "--python", PYTHON, "--sync", "--json", "--", "train.py")
    assert said.returncode == 0, said.stderr
    assert [told(launch, rank)["cwd"] for rank in (0, 1)] == [f"{node_dir(launch, n)}/tree/jobs" for n in (0, 1)]
    wait_until(lambda: not node_dir(launch, 0).parent.exists(), BOUND, "no node directory")


def test_detached_the_tree_is_shipped_all_the_same(bed2: Bed, launch: Launch) -> None:
    """And it is the tree of that moment, whatever is changed while it travels."""
    for host in bed2.hosts:
        host.rate("24mbit")
    (launch.work / "weights.bin").write_bytes(os.urandom(1 << 20))
    words = ["--hosts", str(bed2.hostfile_names), "--nproc", "1", "--python", PYTHON, "--sync", "--detach"]
    said = launch.call("run", *words, "--", "train.py")
    assert said.returncode == 0, said.stderr
    assert "keep this machine awake: nodes that hear nothing from it for 1m end their ranks\n" in said.stdout
    (launch.work / "data.txt").write_text("changed later")
    wait_until(lambda: (launch.run_dir / "result.json").exists(), BOUND, "the end of the run")
    assert json.loads((launch.run_dir / "result.json").read_text())["exit"] == 0
    assert {told(launch, rank)["data"] for rank in (0, 1)} == {"changed"}
    launch.all_gone()
    nothing_left(bed2, launch)
