"""An engine that reaches its nodes by another command than ssh: only this command is called, from run to fetch."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines import behind_a_command
from tests.hosts.waiting import wait_until
from tests.shell import Shell

from allranks import engines
from allranks.cluster import Node
from allranks.engines.controlled import end_without_controller
from allranks.engines.ssh_errors import explain
from allranks.runs.directory import RunDirectory
from allranks.runs.view import View
from allranks.settings.runspec import Launch

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
NODE = Node(0, "h1", "h1")
TRAIN = """import os, pathlib
pathlib.Path(os.environ["ALLRANKS_OUTPUT_DIR"], "of_" + os.environ["RANK"]).write_text("it")
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hosts for which the command was called, one a line; each is this machine. ssh fails."""
    called = tmp_path / "calls"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, lines in (("reach", f"echo $1 >> {shlex.quote(str(called))}\nshift\nexec \"$@\""), ("ssh", "exit 99")):
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(engines, "LISTED", behind_a_command.__name__)
    return called


def test_a_run_and_its_files(calls: Path, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("run", "--hosts", "h1,h2", "--nproc", "1", "--python", sys.executable)
    assert "\nh2: reach h2 /bin/sh -s\n" in shell(*words, "--dry-run", "train.py").out
    ran = shell(*words, "train.py")
    assert (ran.code, "[h2 1] rank 1 of 2" in ran.out) == (0, True), ran
    assert calls.read_text().split() == ["h1", "h2"]
    fetched = shell("fetch")
    assert fetched.code == 0, fetched
    assert sorted(path.name for path in tmp_path.glob("runs/*/outputs/**/of_*")) == ["of_0", "of_1"]


def test_a_run_whose_controller_was_killed_is_ended(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import time\nopen('up', 'w').close()\ntime.sleep(600)\n")
    words = ["allranks", "run", "--hosts", "h1", "--nproc", "1", "--python", sys.executable, "train.py"]
    program = "import sys\nfrom allranks import engines\nfrom allranks.cli.main import main\n"
    program += f"engines.LISTED = {behind_a_command.__name__!r}\nsys.argv = {words}\nmain()\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL) as controller:
        try:
            wait_until((tmp_path / "up").exists, 60, "the rank")
        finally:
            controller.kill()
    (run,) = RunDirectory.list_runs(tmp_path / "runs")
    assert end_without_controller(run, 1.0, View()) == []
    assert calls.read_text().split() == ["h1", "h1"]


def test_a_command_that_fails_is_told_in_its_own_words() -> None:
    transport = behind_a_command.Reach(Launch())
    found = transport.failure(NODE, b"", "starting\nh1: no such machine\n", 3)
    assert found.message == "h1: reach ended with code 3 before the node answered: h1: no such machine"
    assert found.remedy == "try it by hand: echo hostname | reach h1 /bin/sh -s"
    for finding in (found, transport.silence(NODE, 12.0), transport.mute(NODE, 12.0)):
        assert "ssh" not in finding.message + finding.remedy and finding.where.node == "h1"
    assert "`echo 'uptime && timeout 5 ls -ld /tmp /var/tmp' | reach h1 /bin/sh -s`" in transport.mute(NODE, 1.0).remedy


def test_a_key_of_an_unusual_name_that_ssh_offered_is_a_key() -> None:
    """The fix was ssh-keygen, which may overwrite the key that another host takes."""
    node = Node(0, "h2", "h2")
    offered = "debug1: Offering public key: /keys/mine ED25519 SHA256:x explicit\n"
    refused = "root@h2: Permission denied (publickey).\n"
    assert explain(node, refused, 255, have_key=False).remedy == "ssh-keygen -t ed25519\nssh-copy-id h2"
    assert explain(node, offered + refused, 255, have_key=False).remedy == "ssh-copy-id h2"
