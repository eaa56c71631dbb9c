"""The verbs on this machine: exit codes, one JSON document, help with an example."""

import json
import os
import subprocess
import sys

import pytest
import tomllib
from tests import forked

pytestmark = pytest.mark.processes


def call(*words, cwd, env=None):
    return forked.call(words, cwd=cwd, env={**os.environ, "NO_COLOR": "1", **(env or {})})


def test_version_and_usage(tmp_path):
    """Also as people start it: in an interpreter of its own."""
    python = [sys.executable, "-m", "allranks"]
    assert subprocess.run([*python, "--version"], capture_output=True, text=True).stdout == "allranks 0.1.0\n"
    done = subprocess.run([*python, "status", "nothing"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr == call("status", "nothing", cwd=tmp_path).stderr
    assert call("--version", cwd=tmp_path).stdout.strip() == "allranks 0.1.0"
    assert call(cwd=tmp_path).returncode == 2
    assert "example" in call("--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--local", "2"], "the training command is missing"),
        (["run", "--lr", "3", "train.py"], "hint: allranks run --help-all"),
        (["run", "--hosts", "-oProxyCommand=x", "--", "x.py"], "--hosts"),
        (["run", "--hosts", "h1,h2"], "hint: allranks run --hosts h1,h2 train.py"),
        (["run", "--slurm"], "hint: allranks run --slurm train.py"),
        (["run", "--hosts", "h1,,h2", "x.py"], "a host name is missing beside a comma"),
        (["rnu", "--hosts", "h 1", "x.py"], "unknown verb\nhint: allranks run --hosts 'h 1' x.py"),
        (["fly"], "fly: unknown verb. Expected one of run, "),
    ],
)
def test_wrong_use_is_exit_2_and_one_sentence(words, said, tmp_path):
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("allranks: ") and said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_from_start_to_logs(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")
    done = call("run", "--local", "2", "--nproc", "2", "--json", "--", "train.py", "--json", "--", "a b", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit"], document["verdict"]) == (0, 0, None)
    assert document["program_exit"] == {"rank": 0, "code": 0, "signal": None}
    assert "rank 3 ['--json', '--', 'a b']" in done.stderr
    shown = call("logs", "--rank", "3", cwd=tmp_path).stdout
    assert shown == "[local1 3] rank 3 ['--json', '--', 'a b']\n"
    lines = call("logs", "--json", cwd=tmp_path).stdout.splitlines()
    assert sorted(json.loads(line)["rank"] for line in lines) == [0, 1, 2, 3]
    status = json.loads(call("status", "--json", cwd=tmp_path).stdout)
    assert status["state"] == "done"
    assert [r["state"] for n in status["nodes"] for r in n["ranks"]] == ["exited"] * 4
    attached = call("attach", cwd=tmp_path)
    assert attached.returncode == 0 and "done after" in attached.stdout


def test_dry_run_does_nothing_and_hides_secrets(tmp_path):
    words = ["run", "--hosts", "h1,h2", "--nproc", "2", "--dry-run", "--env", "API_TOKEN=abc123", "--env", "HF_TOKEN"]
    kept = {"HF_HOME": "/hf123456", "LD_LIBRARY_PATH": "/of/this/machine", "HF_TOKEN": "abc123", "UCX_TLS": "tcp"}
    done = call(*words, "--", "train.py", "--api-key", "abc123", cwd=tmp_path, env={"PATH": "/nowhere", **kept})
    assert done.returncode == 0
    for text in ("h2: ssh -T ", "BatchMode=yes", "RANK=3", "WORLD_SIZE=4", "API_TOKEN", "nothing was done"):
        assert text in done.stdout
    names = "variables forwarded: HF_TOKEN, UCX_TLS. Set here and not forwarded: HF_HOME, LD_LIBRARY_PATH"
    assert f"{names} (--env NAME forwards one)" in done.stdout
    assert "abc123" not in done.stdout + done.stderr and "/hf123456" not in done.stdout
    assert not (tmp_path / "runs").exists()


def test_init_writes_settings_that_run_reads(tmp_path):
    (tmp_path / "train.py").write_text("print('from the file')\n")
    (tmp_path / "hosts.txt").write_text("localhost slots=2  # this machine\n")
    assert call("init", cwd=tmp_path).returncode == 0
    tomllib.loads((tmp_path / "allranks.toml").read_text())
    assert "exists" in call("init", cwd=tmp_path).stderr
    done = call("run", "--", "train.py", cwd=tmp_path)
    assert "(from hosts.txt)" in done.stdout and "from the file" in done.stdout, done.stderr


def test_clean_takes_old_looks_of_check_too(tmp_path):
    names = ["check-20260101-000000", "check-20260101-000000-2", "check-20260102-000000"]
    others = ["check-20260103", "check-mine"]
    for name in names + others:
        (tmp_path / "runs" / name / "evidence").mkdir(parents=True)
        (tmp_path / "runs" / name / "evidence" / "preflight.json").write_text("{}")
        os.utime(tmp_path / "runs" / name, (0, 0))
    (tmp_path / "runs" / "check-20250101-000000").mkdir()  # nothing in it: not one of ours
    os.utime(tmp_path / "runs" / "check-20250101-000000", (0, 0))
    assert call("clean", "--keep", "5", "--yes", cwd=tmp_path).stdout == "removed 0 of 0 runs and 0 of 3 checks\n"
    listed = call("clean", "--keep", "1", "--dry-run", cwd=tmp_path).stdout
    assert listed.endswith("would remove 0 of 0 runs and 2 of 3 checks\n"), "each kind is counted by itself"
    found = json.loads(call("clean", "--keep", "1", "--yes", "--json", cwd=tmp_path).stdout)
    assert found["removed"] == names[:2]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["check-20250101-000000", names[2], *others]
