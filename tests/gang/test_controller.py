"""An error of allranks' own ends the run and the launcher: nothing waits, nothing is left."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until

from allranks.cluster.nodes import virtual_cluster
from allranks.engines.ssh import ssh_reach
from allranks.gang import session as sessions
from allranks.protocol.codec import encode
from allranks.protocol.jsontext import DecodeError, JsonObject
from allranks.protocol.messages import Message, read_message
from allranks.report.live import OutputView
from allranks.settings import RunSpec

pytestmark = pytest.mark.processes


def left(work: Path) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(work) and int(pid) != os.getpid():
                found.append(pid)
        except OSError:
            continue
    return found


def start(tmp_path: Path, *command: str) -> sessions.Session:
    spec = RunSpec.of(command=command, local=1, nproc=2, runs_dir=str(tmp_path / "runs"), grace=0.2)
    (tmp_path / "work").mkdir()
    work = str(tmp_path / "work")
    return sessions.create(spec, virtual_cluster(1), ssh_reach(spec), dict(os.environ), work, OutputView)


SLOW_TO_DIE = """
import mmap, os, sys, threading, time
held = mmap.mmap(-1, 800 << 20)  # given back by the last thread, after the first is a zombie
try:
    held.madvise(23)  # MADV_POPULATE_WRITE: a third of what writing costs
except OSError:
    held.write(bytes(800 << 20))
for _ in range(20):
    threading.Thread(target=time.sleep, args=(1000,)).start()
open(f"ready-{os.environ['RANK']}", "w").close()
while len([n for n in os.listdir() if n.startswith("ready")]) < 2:
    time.sleep(0.05)
os._exit(3) if os.environ["RANK"] == "1" else time.sleep(1000)
"""


def test_a_node_is_clean_once_all_exits_are_known(tmp_path: Path) -> None:
    session = start(tmp_path, sys.executable, "-c", SLOW_TO_DIE)
    result = encode(session.run())
    events = session.run_dir.read_lines()[0]
    kinds = [e["event"] for e in events if e["event"] in ("rank-exit", "node-clean", "note")]
    assert kinds == ["rank-exit", "rank-exit", "node-clean"]
    assert result["verdict"]["victims"] == [0]


@pytest.mark.parametrize("method", ["_judge", "_output", "_look_at_ranks"])
def test_a_bug_of_ours_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    session = start(tmp_path, "sh", "-c", "echo hello; exec sleep 1000" if method != "_judge" else "exit 3")

    def broken(*args: object) -> None:
        if method != "_look_at_ranks" or any(r.pid for r in session.controller.gang.roster.ranks()):
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(session.controller, method, broken)
    result = encode(session.run())
    assert (result["exit"], result["verdict"]["cause"], result["verdict"]["where"]) == (70, "internal-error", {})
    assert "ZeroDivisionError: a bug (test_controller.py:" in result["verdict"]["message"]
    wait_until(lambda: not left(tmp_path / "work"), 60.0, "the end of all processes")


@pytest.mark.parametrize("check", [True, False])
def test_a_launcher_that_is_not_installed(tmp_path: Path, check: bool) -> None:
    """It is said before ranks start; without checks, by the verdict."""
    launcher = next((name for name in ("colossalai", "accelerate") if find_spec(name) is None), None)
    if launcher is None:
        pytest.skip("every launcher is installed here")
    spec = RunSpec.of(
        command=("train.py",), launcher=launcher, local=2, nproc=1, check=check, grace=0.2, python=sys.executable,
        runs_dir=str(tmp_path / "runs"),
    )  # fmt: skip
    (tmp_path / "train.py").touch()
    session = sessions.create(spec, virtual_cluster(2), ssh_reach(spec), dict(os.environ), str(tmp_path), OutputView)
    result = encode(session.run())
    verdict = result["verdict"]
    assert (verdict["cause"], result["exit"]) == ("missing-module", 3 if check else 1), verdict
    assert f"no module {launcher} in {sys.executable}" in verdict["message"]
    assert f"-m pip install {launcher}" in verdict["remedy"]


@pytest.mark.parametrize(("kind", "field"), [("hello", "$.hostname"), ("facts", "$.facts.interfaces")])
def test_a_node_whose_first_words_cannot_be_read_ends_the_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, field: str
) -> None:
    """Neither --init-timeout nor the wait for the agent's first word passes."""

    def read(frame: JsonObject) -> Message:
        if frame["type"] == kind:
            raise DecodeError(f"{field}: expected a text, got 5")
        return read_message(frame)

    monkeypatch.setattr("allranks.gang.controller.read_message", read)
    session = start(tmp_path, "sh", "-c", "exit 0")
    result = encode(session.run())
    assert result["exit"] == 4
    assert "local0" in result["verdict"]["message"] and field in result["verdict"]["message"]
    assert not [e for e in session.run_dir.read_lines()[0] if e["event"] == "init-timeout"]
