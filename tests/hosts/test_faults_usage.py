"""What is asked for wrongly: one sentence, exit code 2, one JSON document, and nothing is started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.test_faults_start import done, told


def document(said: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
    """The one JSON document on standard output, and nothing else there; the same words on standard error."""
    assert said.returncode == code, said
    assert len(said.stdout.splitlines()) == 1 and said.stdout.endswith("\n")
    found: dict[str, Any] = json.loads(said.stdout)
    assert (found["schema"], found["exit"]) == (1, code)
    assert "Traceback" not in said.stderr
    return found


@pytest.fixture
def no_ssh(bed2: Bed, tmp_path: Path) -> Launch:
    """A launch on a machine whose `ssh` says that it was called."""
    launch = Launch(bed2, tmp_path)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/ssh-was-called\nexit 255\n")
    ssh.chmod(0o755)
    return launch


def call(launch: Launch, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A verb that must reach no node and make no run directory."""
    path = f"{launch.place}/bin:{launch.environment()['PATH']}"
    said = launch.call(*words, env={"PATH": path, **env})
    assert not (launch.place / "ssh-was-called").exists()
    assert not launch.runs.exists()
    assert launch.alive() == []
    return said


# -- usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("run", "--hosts", "h1"), ("run", "--hosts", "h1", "--"), ("run",)])
def test_run_without_a_command(no_ssh: Launch, words: tuple[str, ...]) -> None:
    said = call(no_ssh, *words)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("allranks: the training command is missing\nhint: allranks run ")
    at = words.index("--") if "--" in words else len(words)
    found = document(call(no_ssh, *words[:at], "--json", *words[at:]), 2)
    assert "the training command is missing" in found["error"]


def test_a_command_without_the_two_dashes(no_ssh: Launch) -> None:
    """Options of the script are not taken for allranks' own, and its own in front of the script are refused."""
    said = call(no_ssh, "run", "--hosts", "h1", "--dry-run", "--json", "train.py", "--epochs", "3", "--json")
    assert said.returncode == 0, said
    (node,) = json.loads(said.stdout)["nodes"]
    assert node["ranks"][0]["argv"][-4:] == ["train.py", "--epochs", "3", "--json"]
    found = document(call(no_ssh, "run", "--json", "--hosts", "h1", "--epochs", "3", "train.py"), 2)
    assert "--epochs" in found["error"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("h1\nh2:8\n", 2, "slots=8"),
        ("# nodes\nh1 slots=many\n", 2, "slots"),
        ("h1\nh2 gpus=8\n", 2, "gpus"),
        ("h1\n\nh1\n", 3, "already"),
        ("h1\n-oProxyCommand=reboot\n", 2, "-oProxyCommand"),
        ("h1\nh2;reboot\n", 2, "h2;reboot"),
        ("h1\nnode[04-01]\n", 2, "04-01"),
        ("# nobody\n", 1, "no host"),
    ],
)
def test_a_bad_hostfile(no_ssh: Launch, text: str, line: int, words: str) -> None:
    hostfile = no_ssh.place / "hosts.txt"
    hostfile.write_text(text)
    said = call(no_ssh, "run", "--hosts", str(hostfile), "--", "train.py")
    assert said.returncode == 2
    assert said.stderr.startswith(f"allranks: {hostfile}:{line}: ") and words in said.stderr
    found = document(call(no_ssh, "run", "--hosts", str(hostfile), "--json", "--", "train.py"), 2)
    assert found["error"].startswith(f"{hostfile}:{line}: ")


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (("run", "--hosts", "no/such/file", "--json", "--", "x.py"), {}, "no/such/file"),
        (("run", "--hosts", "h1", "--nproc", "some", "--json", "--", "x.py"), {}, "--nproc"),
        (("run", "--hosts", "h1", "--nodes", "3", "--json", "--", "x.py"), {}, "--nodes 3"),
        (("run", "--hosts", "h1", "--lease", "soon", "--json", "--", "x.py"), {}, "--lease"),
        (("run", "--hosts", "h1", "--local", "2", "--json", "--", "x.py"), {}, "--local"),
        (("run", "--hosts", "h1", "--env", "RANK=3", "--json", "--", "x.py"), {}, "RANK"),
        (("run", "--hosts", "h1", "--env", "NOT_SET_HERE", "--json", "--", "x.py"), {}, "NOT_SET_HERE"),
        (("run", "--hosts", "h1", "--config", "none.toml", "--json", "--", "x.py"), {}, "none.toml"),
        (("run", "--hosts", "h1", "--no-such-option", "--json", "--", "x.py"), {}, "--no-such-option"),
        (("run", "--json", "--hosts"), {}, "--hosts"),
        (("run", "--hosts", "h1", "--json", "--", "x.py"), {"WORLD_SIZE": "eight"}, "WORLD_SIZE"),
        (("launch", "--json"), {}, "launch"),
        (("status", "no-such-run", "--json"), {}, "no-such-run"),
        (("logs", "no-such-run", "--json"), {}, "no-such-run"),
        (("attach", "no-such-run", "--json"), {}, "no-such-run"),
        (("stop", "no-such-run", "--json"), {}, "no-such-run"),
    ],
)  # fmt: skip
def test_json_for_usage_errors(no_ssh: Launch, words: tuple[str, ...], env: dict[str, str], said: str) -> None:
    assert said in document(call(no_ssh, *words, **env), 2)["error"]


def test_json_for_other_failures(bed2: Bed, tmp_path: Path) -> None:
    """A refused start, an unreachable node, a failing program: `result` reads the one document each time."""
    missing = Launch(bed2, tmp_path / "a").start(["no-such-script.py"])
    unreachable = Launch(bed2, tmp_path / "b").start(program("tell.py"), hosts="h1,no-such-host")
    no_module = Launch(bed2, tmp_path / "c").start(["-m", "no_such_module"])
    failing = Launch(bed2, tmp_path / "d").start(program("p_crash.py"))
    for launch, code in ((missing, 3), (unreachable, 4), (no_module, 3), (failing, 1)):
        result = launch.result()
        assert (result["schema"], result["exit"], bool(result["verdict"]["cause"])) == (1, code, True)
        assert len(launch.stdout.splitlines()) == 1
        assert launch.alive() == []


# -- dry run ---------------------------------------------------------------------------------------


def test_dry_run_starts_nothing_and_hides_secrets(no_ssh: Launch) -> None:
    words = ["run", "--hosts", "h1,h2", "--nproc", "2", "--dry-run", "--env", "WANDB_API_KEY=sk-123456", "--env",
             "HF_TOKEN", "--env", "PLAIN=visible", "--"]  # fmt: skip
    command = ["train.py", "--lr", "1e-3", "two words", "--api-key", "sk-123456"]
    tuned = {"UCX_TLS": "tcp", "FI_PROVIDER": "efa", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    kept = {"HF_HOME": "/hf123456", "LD_LIBRARY_PATH": "/of/this/machine"}
    said = call(no_ssh, *words, *command, HF_TOKEN="hf-123456", WANDB_API_KEY="sk-123456", **tuned, **kept)
    assert said.returncode == 0, said.stderr
    assert "123456" not in said.stdout + said.stderr
    names = "variables forwarded: CUDA_DEVICE_MAX_CONNECTIONS, FI_PROVIDER, HF_TOKEN, UCX_TLS. Set here and not "
    assert f"{names}forwarded: HF_HOME, LD_LIBRARY_PATH (--env NAME forwards one)" in said.stdout
    for text in ("h2: ssh -T ", "BatchMode=yes", "rank 3: cd ", "--lr 1e-3 'two words'", "PLAIN=visible",
                 "WANDB_API_KEY", "HF_TOKEN", "WORLD_SIZE=4", "MASTER_ADDR", "nothing was done"):  # fmt: skip
        assert text in said.stdout
    found = json.loads(call(no_ssh, *words[:-1], "--json", *words[-1:], *command, HF_TOKEN="hf-123456").stdout)
    assert (found["schema"], found["world_size"], [n["name"] for n in found["nodes"]]) == (1, 4, ["h1", "h2"])
    assert "123456" not in json.dumps(found)
    rank = found["nodes"][1]["ranks"][1]
    assert (rank["rank"], rank["env"]["LOCAL_RANK"], rank["env"]["PLAIN"]) == (3, "1", "visible")
    assert rank["argv"][-5:-2] == ["--lr", "1e-3", "two words"]


# -- the plan --------------------------------------------------------------------------------------


def test_unequal_slots_and_a_contradicting_world_size(bed2: Bed, tmp_path: Path) -> None:
    """The plan holds, and what contradicts it is said with both numbers."""
    hostfile = tmp_path / "hosts.txt"
    hostfile.write_text("h1 slots=1\nh2 slots=3\n")
    launch = Launch(bed2, tmp_path).start(program("tell.py"), hosts=str(hostfile), nproc=None, env={"WORLD_SIZE": "16"})
    result = done(bed2, launch)
    assert [told(launch, r)["env"]["LOCAL_WORLD_SIZE"] for r in range(4)] == ["1", "3", "3", "3"]
    assert [told(launch, r)["env"]["WORLD_SIZE"] for r in range(4)] == ["4"] * 4
    (finding,) = [f for f in result["findings"] if f["id"] == "world-size-mismatch"]
    assert finding["status"] == "warn"
    assert "WORLD_SIZE=16" in finding["message"] and "4 ranks (h1 1, h2 3)" in finding["message"]


def test_unequal_slots_are_shown(bed2: Bed, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts.txt"
    hostfile.write_text("h1 slots=2\nh2 slots=1\n")
    launch = Launch(bed2, tmp_path).start(program("tell.py"), hosts=str(hostfile), nproc=None, json_=False)
    assert launch.process is not None and launch.process.wait(60) == 0, launch.stderr
    assert "h1 slots=2, h2 slots=1" in launch.stdout
    assert "3 in all: h1 2, h2 1" in launch.stdout
