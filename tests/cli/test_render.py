"""allranks render: shown, written, never over a file, as JSON."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests import forked

from allranks.plan.render import RENDERERS

pytestmark = pytest.mark.processes


def render(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.call(["render", *words], cwd=cwd, env={**os.environ, "NO_COLOR": "1"})


def test_files_are_written_once(tmp_path: Path) -> None:
    words = ("torchrun", "--hosts", "h[1-2]", "--nproc", "8", "--output", "launch")
    assert render(tmp_path, *words, "--", "train.py").returncode == 0
    scripts = sorted((tmp_path / "launch").iterdir())
    assert [s.name for s in scripts] == ["node_00_h1.sh", "node_01_h2.sh"]
    assert all(os.access(s, os.X_OK) for s in scripts)
    again = render(tmp_path, *words, "--", "other.py")
    assert again.returncode == 2 and "launch/node_00_h1.sh exists. --force replaces it" in again.stderr
    assert "train.py" in scripts[0].read_text()
    assert render(tmp_path, *words, "--force", "--", "other.py").returncode == 0
    assert "other.py" in scripts[0].read_text()
    (victim := tmp_path / "victim").write_text("mine")
    scripts[0].unlink()
    scripts[0].symlink_to(victim)
    assert render(tmp_path, *words, "--force", "--", "third.py").returncode == 0
    assert victim.read_text() == "mine" and "third.py" in scripts[0].read_text()
    assert os.access(scripts[0], os.X_OK)


def test_as_json_with_the_users_own_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n")
    done = render(tmp_path, "accelerate", "--hosts", "h[1-8]", "--nproc", "8", "--json", "--",
                  "accelerate", "launch", "--config_file", "a.yaml", "train.py")  # fmt: skip
    files = json.loads(done.stdout)["files"]
    assert len(files) == 16
    assert "distributed_type: FSDP" in files["node_07_h8.yaml"] and "num_processes: 64" in files["node_07_h8.yaml"]


def test_what_cannot_be_known_is_asked_for(tmp_path: Path) -> None:
    for words, said in (
        (("torchrun", "--hosts", "h1,h2", "--", "t.py"), "h1: how many ranks?"),
        (("torchrun", "--nproc", "8", "--", "t.py"), "which nodes?"),
        (("torchrun", "--hosts", "h1", "--nproc", "8"), "training command is missing"),
        (("accelerate", "--hosts", "h1", "--nproc", "2", "--", "torchrun", "t.py"), "starts with torchrun"),
        (("pbs", "--", "t.py"), "unknown command"),
    ):
        done = render(tmp_path, *words)
        assert done.returncode == 2 and said in done.stderr, done.stderr


INSIDE = ["--launcher", "torchrun", "--lease", "90s", "--stop-grace", "2m", "--init-timeout", "20m", "--hang-timeout",
          "30m", "--pg-timeout", "1h", "--grace", "5s", "--data-path", "/data", "--debug"]  # fmt: skip
EXPECTED = ["--launcher=torchrun", "--lease=90", "--stop-grace=120", "--init-timeout=1200", "--hang-timeout=1800",
            "--pg-timeout=3600", "--grace=5", "--data-path=/data", "--debug"]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "words"),
    [("kubernetes", ["--image", "x"]), ("skypilot", []), ("slurm", [])],
)
def test_what_allranks_takes_inside_is_taken_by_render(tmp_path: Path, what: str, words: list[str]) -> None:
    """Times, --debug, --data-path and --launcher had to stand in an allranks.toml."""
    done = render(tmp_path, what, "--nodes", "2", *words, *INSIDE, "--json", "--", "train.py")
    assert done.returncode == 0, done.stderr
    text = "\n".join(json.loads(done.stdout)["files"].values())
    assert [word for word in EXPECTED if word not in text] == []
    if what == "kubernetes":
        assert "terminationGracePeriodSeconds: 135" in text


@pytest.mark.parametrize("option", [["--debug"], ["--lease", "90s"], ["--launcher", "torchrun"], ["--data-path", "/d"]])
def test_an_option_that_nothing_would_take_is_refused(tmp_path: Path, option: list[str]) -> None:
    done = render(tmp_path, "torchrun", "--hosts", "h1,h2", "--nproc", "2", *option, "--", "train.py")
    assert done.returncode == 2
    assert f"{option[0]} is not an option of `allranks render torchrun`, but of `run`" in done.stderr


@pytest.mark.parametrize(
    ("what", "words", "written"),
    [
        ("torchrun", ["--hosts", "h1,h2", "--nproc", "2"], "export NCCL_IB_HCA='mlx5_0,mlx5 1'"),
        ("accelerate", ["--hosts", "h1,h2", "--nproc", "2"], "export NCCL_IB_HCA='mlx5_0,mlx5 1'"),
        ("deepspeed", ["--hosts", "h1,h2", "--nproc", "2"], "export NCCL_IB_HCA='mlx5_0,mlx5 1'"),
        ("slurm", ["--nodes", "2"], "export NCCL_IB_HCA='mlx5_0,mlx5 1'"),
        ("kubernetes", ["--nodes", "2", "--image", "x"], "name: NCCL_IB_HCA\n          value: mlx5_0,mlx5 1"),
        ("skypilot", ["--nodes", "2"], "NCCL_IB_HCA: mlx5_0,mlx5 1"),
    ],
)
def test_what_run_hands_on_of_the_environment_is_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, words: list[str], written: str
) -> None:
    """`run` forwarded NCCL_* from the shell, and the rendered files trained without them."""
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0,mlx5 1")
    monkeypatch.setenv("NCCL_TIMEOUT", "9")
    monkeypatch.setenv("TORCH_TOKEN", "hunter2")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("MY_OWN", "here")
    done = render(tmp_path, what, *words, "--env", "NCCL_DEBUG=INFO", "--json", "--", "train.py")
    assert done.returncode == 0, done.stderr
    text = "\n".join(json.loads(done.stdout)["files"].values())
    assert written in text
    assert "WARN" not in text and "MY_OWN" not in text and "hunter2" not in text
    assert "NCCL_TIMEOUT" not in text, "it is read by allranks alone (--pg-timeout)"


def test_every_renderer_is_among_those() -> None:
    assert set(RENDERERS) == {"torchrun", "accelerate", "deepspeed", "slurm", "kubernetes", "skypilot"}
