"""Checks of code, data, storage and leftovers with the real host, on this machine: real repositories, trees,
a real listener, a real process that an earlier run left.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_node_check import PARTS
from tests.hosts.waiting import BOUND, wait_until
from tests.interpreters import OLDEST

from allranks.agent import checks
from allranks.agent import node_check as facts
from allranks.agent.checks import NodeHost
from allranks.agent.processes import machine, read_process
from allranks.gang.plugins import built_in
from allranks.preflight.checks import code_tree
from allranks.preflight.judge import judge
from allranks.protocol.codec import decode
from allranks.protocol.orders import SetupOrder

pytestmark = pytest.mark.processes

SOURCE = Path(facts.__file__).parents[2]
SCRIPT = "import json, sys; sys.path.insert(0, sys.argv[1]); from allranks.agent.node_check import collect; " \
         "from allranks.protocol.codec import decode; from allranks.protocol.orders import SetupOrder; " \
         "print(json.dumps(collect(decode(SetupOrder, json.loads(sys.argv[2])))))"  # fmt: skip
PYTHONS = [p for p in ("/usr/bin/python3", OLDEST) if p and Path(p).exists()]
GIT_ENV = {
    **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@x", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@x",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}  # fmt: skip
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def look(check: str, workdir: Path, command: tuple[str, ...] = ("train.py",), **request: Any) -> Any:
    """What a check finds on this machine."""
    asked = {"workdir": str(workdir), "command": list(command), "environ": dict(os.environ), **request}
    basic = facts.collect(decode(SetupOrder, asked))
    return checks.collect_checks([check], NodeHost(asked, asked["environ"], basic))[check]


def said(check: str, *found: Any) -> list[str]:
    """The messages about nodes h0, h1, … that found this."""
    nodes = {f"h{i}": {check: one, "workdir": {"exists": True, "path": "/w"}} for i, one in enumerate(found)}
    return [f.message for f in judge({}, nodes, [built_in()[check]])]


def git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=where, env=GIT_ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    (top / "train.py").write_text("lr = 1\n")
    (top / "model.py").write_text("x\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    return top


@needs_git
def test_the_commit_is_what_git_says(repository: Path, tmp_path: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    expected = {"top": str(repository), "commit": head, "branch": "main"}
    assert look("code_git", repository) == expected
    below = repository / "src" / "deep"
    below.mkdir(parents=True)
    assert look("code_git", below) == expected
    link = tmp_path / "link"
    link.symlink_to(below)
    assert look("code_git", link) == expected
    git(repository, "branch", "other")
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git/refs/heads/main").exists()
    assert look("code_git", repository) == expected
    git(repository, "checkout", "-q", "--detach")
    assert look("code_git", repository) == {**expected, "branch": None}
    assert look("code_git", tmp_path) is None
    git(tmp_path, "init", "-q", "-b", "main")
    assert look("code_git", tmp_path) == {"top": str(tmp_path), "commit": None, "branch": "main"}


@needs_git
def test_a_worktree_has_a_commit_of_its_own(repository: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", "-b", "side/x", str(tree))
    (tree / "train.py").write_text("lr = 3\n")
    git(tree, "commit", "-qam", "two")
    found = look("code_git", tree)
    assert found == {"top": str(tree), "commit": git(tree, "rev-parse", "HEAD"), "branch": "side/x"}
    (message,) = said("code_git", look("code_git", repository), look("code_git", repository), found)
    assert message.startswith(f"h2 is at commit {found['commit'][:10]} (the other 2 are at ")


IMPORTING = """import torch, os.path, conf as c; import late
from model.net import Net, \\
    Other
from model import (heads,  # a module of the package
    tails)
    from .  import nothing
# import never
"""


def test_modules_that_the_script_imports(tmp_path: Path) -> None:
    """A helper that differs trains with LR 1 on one node and with LR 2 on another."""
    code = {"train_py": IMPORTING, "conf_py": "LR = 1", "model__net_py": "from ..conf import LR\nfrom . import deep",
            "model__deep_py": "", "model__tails_py": "", "model__heads__a_py": "", "never_py": ""}  # fmt: skip
    found = []
    for number, lr in enumerate((1, 1, 2)):
        top = plant(tmp_path / str(number), **{**code, "conf_py": f"LR = {lr}"})
        (top / "model/heads/__init__.py").write_text("")
        found.append(look("code_script", top))
    assert sorted(found[0]["imported"]) == [
        "conf.py", "model/deep.py", "model/heads/__init__.py", "model/net.py", "model/tails.py"
    ]  # fmt: skip
    assert found[0]["size"] == len(IMPORTING)
    assert look("code_script", tmp_path, ("-m", "pkg")) is look("code_script", tmp_path, ("true",)) is None
    old, new = (one["imported"]["conf.py"][:8] for one in found[1:])
    assert said("code_script", *found) == [f"h2 has version {new} of conf.py (the other 2 have {old})"]
    (tmp_path / "2/conf.py").unlink()
    (tmp_path / "2/model/tails.py").write_text("#")
    found[2] = look("code_script", tmp_path / "2")
    (message,) = said("code_script", *found)
    assert message == f"h2 has no conf.py (the other 2 have {old}), and model/tails.py differs too"


def plant(top: Path, **files: str) -> Path:
    for name, text in files.items():
        path = top / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


@pytest.mark.parametrize("python", PYTHONS)
def test_trees_by_content(tmp_path: Path, python: str) -> None:
    code = {"train_py": "1", "model__net_py": "2", "data__load_py": "3", "conf_yaml": "4"}
    one, two = plant(tmp_path / "one", **code), plant(tmp_path / "two", **{**code, "model__net_py": "x"})
    same = plant(tmp_path / "same", **code, run_log="a", runs__x_txt="b", data__big_bin="c", pkg__x_pyc="d")
    (same / ".hidden").write_text("e")
    os.symlink("nowhere", same / "dangling.py")
    found = [look("code_tree", path, python=python) for path in (one, two, same)]
    assert found[0]["count"] == 4
    assert found[0]["digest"] == found[2]["digest"] != found[1]["digest"]
    assert found[0]["cut"] == ""
    assert set(found[0]["files"]) == {"train.py", "model/net.py", "data/load.py", "conf.yaml"}
    (message,) = said("code_tree", *found)
    assert message == "/w on h1 differs from the other 2: model/net.py"


def test_a_tree_without_a_training_interpreter(tmp_path: Path) -> None:
    plant(tmp_path, train_sh="1")
    assert look("code_tree", tmp_path, ("sh", "train.sh"))["files"].keys() == {"train.sh"}


def test_a_large_tree_is_cut(tmp_path: Path) -> None:
    for i in range(5100):
        (tmp_path / f"f{i:04d}.py").touch()
    (tmp_path / "a.py").write_text("1")
    found = look("code_tree", tmp_path)
    assert (found["count"], found["cut"], found["files"]) == (5000, "5101 files", None)
    (tmp_path / "a.py").write_text("2")
    again = look("code_tree", tmp_path)
    assert again["digest"] != found["digest"]
    assert said("code_tree", found, found, again) == ["/w on h2 differs from the other 2: /"]


def test_data_does_not_use_up_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_tree, "PROGRAM", code_tree.PROGRAM.replace("200000", "3"))
    plant(tmp_path, data__1_jpg="", data__2_jpg="", data__3_jpg="", src__net_py="1", train_py="2")
    assert look("code_tree", tmp_path)["files"].keys() == {"train.py", "src/net.py"}


def hold(tmp_path: Path, sizes: dict[str, int]) -> Path:
    """A directory of data that holds these files alone."""
    top = tmp_path / "data"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    for name, size in sizes.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(bytes(size))
    return top


@pytest.mark.parametrize("python", PYTHONS)
def test_data_by_name_and_size(tmp_path: Path, python: str) -> None:
    found = []
    for names in (["a-0.bin", "b-0.bin", "sub/c-0.bin"],) * 2 + (["a-0.bin", "sub/c-0.bin"],):
        top = hold(tmp_path, dict.fromkeys(names, 1000))
        (top / "lost+found").mkdir()
        (top / ".nfs0001").touch()
        (top / "linked").symlink_to(top / "sub")
        found.append(look("data_listing", tmp_path, data_paths=[str(top)], python=python))
    (one,) = found[0].values()
    assert (one["kind"], one["count"], one["bytes"], one["cut"]) == ("directory", 4, 3000, "")
    assert found[0] == found[1]
    assert said("data_listing", *found) == [
        f"{top} holds 3 files (2 KB) on h2, and 4 files (3 KB) on h0 and h1: h2 lacks b-0.bin"
    ]


def test_of_two_nodes_the_one_with_a_part_of_the_data_is_odd(tmp_path: Path) -> None:
    found = []
    for sizes in ({"a": 1, "b": 2}, {"a": 1}, {"a": 1, "c": 3}, {}):
        found.append(look("data_listing", tmp_path, data_paths=[str(hold(tmp_path, sizes))]))
    assert [first_status(found[0], other) for other in found[1:]] == [("fail", "h1"), ("warn", "h0"), ("fail", "h1")]
    assert first_status(found[1], found[0]) == ("fail", "h0")


def first_status(*found: Any) -> tuple[str, str | None]:
    documents = {f"h{n}": {"data_listing": facts} for n, facts in enumerate(found)}
    finding = judge({}, documents, [built_in()["data_listing"]])[0]
    return finding.status, finding.where.node


@pytest.mark.parametrize("size", [0, 10, (1 << 20) + 5, (3 << 20) + 1])
def test_a_file_by_its_ends(tmp_path: Path, size: int) -> None:
    path = tmp_path / "corpus.bin"
    path.write_bytes(bytes(size))
    first = look("data_listing", tmp_path, data_paths=[str(path)])
    assert first[str(path)]["bytes"] == size
    assert look("data_listing", tmp_path, data_paths=[str(path)]) == first
    if size:
        path.write_bytes(bytes(size - 1) + b"x")
        assert look("data_listing", tmp_path, data_paths=[str(path)]) != first


def test_absent_data_is_for_data_paths_to_say(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    found = look("data_listing", tmp_path, data_paths=[absent])
    assert (found[absent]["kind"], found[absent]["why"]) == ("unreadable", "No such file or directory")
    basic = facts.collect(SetupOrder(workdir=str(tmp_path), data_paths=(absent, str(tmp_path))))
    (finding,) = judge({}, {"h0": basic}, [built_in()["data_paths"]])
    assert (finding.id, finding.status, finding.message) == ("missing-file", "fail", f"h0 has no {absent}")


def test_a_file_is_written_and_removed(tmp_path: Path) -> None:
    odd = tmp_path / "it's a $HOME"
    odd.mkdir()
    found = look("storage_write", odd, output_dir=str(odd / "not" / "yet"))
    assert [(one["what"], one["tried"]) for one in found] == [
        ("the working directory", str(odd)), ("the output directory", str(odd))
    ]  # fmt: skip
    assert all(one["seconds"] < 30 for one in found)
    assert list(odd.iterdir()) == []
    assert [m for m in said("storage_write", found) if "can't" in m] == []


@contextlib.contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def test_a_full_and_a_read_only_file_system(tmp_path: Path) -> None:
    with mounted(tmp_path / "full", "size=16k") as full:
        (full / "x").write_bytes(bytes(16384))
        (message,) = said("storage_write", look("storage_write", full))
        assert message == f"the working directory {full} on h0 can't be written: no space or inodes left"
        assert [p.name for p in full.iterdir()] == ["x"]
    with mounted(tmp_path / "ro", "ro") as closed:
        found = look("storage_write", tmp_path, output_dir=str(closed))
        assert said("storage_write", found) == [
            f"the output directory {closed} on h0 can't be written: the file system is read-only"
        ]


@contextlib.contextmanager
def sleeping(**env: str) -> Iterator[int]:
    child = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], **env})
    try:
        wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", 60, "exec")
        yield child.pid
    finally:
        child.kill()
        child.wait()


def left(tmp_path: Path, **request: Any) -> Any:
    return look("leftovers", tmp_path, node_dir=str(tmp_path), **request)["runs"]


def test_what_a_dead_agent_left(tmp_path: Path) -> None:
    uid = f"zz-{uuid.uuid4().hex}"  # another run of the tests may look for the like on this machine
    me = read_process(os.getpid())
    assert me is not None
    path = tmp_path / f"allranks-{os.getuid()}" / uid / "n0"
    path.mkdir(parents=True)
    with sleeping(ALLRANKS_MARK=f"{uid}/n0") as pid:
        assert uid not in left(tmp_path)  # no journal yet, and it is young
        journal = {"event": "agent", "machine": machine(), "keepers": [[me.pid, me.start]]}
        (path / "journal.jsonl").write_text(json.dumps(journal) + "\n")
        assert uid not in left(tmp_path)  # this process is its agent
        (path / "journal.jsonl").write_text(json.dumps({**journal, "keepers": [[me.pid, me.start + 1]]}) + "\n")
        assert left(tmp_path)[uid] == [[pid, "sleep"]]
        assert uid not in left(tmp_path, uid=uid)
        elsewhere = [journal["machine"][0], journal["machine"][1], "pid:[1]"]
        (path / "journal.jsonl").write_text(json.dumps({**journal, "keepers": [], "machine": elsewhere}) + "\n")
        assert uid not in left(tmp_path)


ORPHAN = """
import os, subprocess, sys
env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h1"}
child = subprocess.Popen(["sleep", "600"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


def test_an_orphan_of_another_launcher(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=BOUND)
    pid = int(done.stdout)
    try:
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", 60, "exec")
        process = read_process(pid)
        if process is None or process.parent != 1:
            pytest.skip("orphans do not fall to process 1 here")
        found = look("leftovers", tmp_path)
        init = Path("/proc/1/comm").read_text()
        if init.startswith(("python", "bash", "sh")):
            pytest.skip(f"process 1 is {init.strip()}")
        assert [pid, "sleep"] in found["orphans"]
        assert [pid, "sleep"] not in look("leftovers", tmp_path, environ={
            **os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h1"})["orphans"]  # fmt: skip
    finally:
        os.kill(pid, 9)


def test_packages_are_those_of_the_interpreter(tmp_path: Path) -> None:
    code = "import sys, importlib.metadata as m; print(m.version('numpy'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    found = look("packages", tmp_path, python=sys.executable)
    assert found.get("numpy") == (done.stdout.strip() or None)
    assert look("packages", tmp_path, ("true",)) is None


@pytest.mark.torch
def test_torch_is_imported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "train.py").touch()
    found = look("torch_import", tmp_path, python=sys.executable)
    assert found["version"] == torch.__version__
    assert found["distributed"] and "gloo" in found["backends"]
    assert 0 < found["seconds"] < 120
    (tmp_path / "random.py").write_text("raise ValueError('not that one')\n")  # as the program would see it
    broken = look("torch_import", tmp_path, python=sys.executable)
    assert "random" in broken["failed"] or "not that one" in broken["failed"]
    platform = look("torch_build", tmp_path, python=sys.executable)["platform"]
    assert platform in ("CPU only", f"CUDA {torch.version.cuda}")


@pytest.mark.skipif(OLDEST is None, reason="needs Python 3.8")
def test_all_of_them_under_the_oldest_python(tmp_path: Path) -> None:
    assert OLDEST is not None
    names = ["packages", "torch_build", "torch_import", "settings", "code_git", "code_tree",
             "code_script", "data_listing", "storage_write", "leftovers"]  # fmt: skip
    (tmp_path / "train.py").write_text("1\n")
    asked = {"checks": names, "workdir": str(tmp_path), "command": ["train.py"], "data_paths": [str(tmp_path)],
             "python": OLDEST, "master_port": 1}  # fmt: skip
    words = [OLDEST, "-I", "-S", "-c", SCRIPT, str(SOURCE), json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert set(found) == {*PARTS, *names} and done.stderr == ""
    assert {name: part["error"] for name, part in found.items() if isinstance(part, dict) and "error" in part} == {}
    assert found["interpreter"]["version"].startswith("3.8.")
    assert found["code_tree"]["count"] == 1
    assert judge({}, {"h0": found}, [built_in()[n] for n in names if n != "leftovers"]) == []
