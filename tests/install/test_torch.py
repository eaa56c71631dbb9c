"""`make test-torch TORCH="2.4.1 2.15.0"`: the wheel with each of these releases of torch in the training interpreter.

A release that is not installed here comes from PyPI into `.venv-torch/RELEASE` (5 GB, CUDA's libraries are part of it).
The path of an interpreter that has torch stands for a release too: agents and ranks run in it.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.install.packages import BIN, ROOT, TRAIN, call, run

RELEASES = os.environ.get("ALLRANKS_TEST_TORCH", "").split() or [
    pytest.param("", marks=pytest.mark.skip(reason="make test-torch"))
]
STUCK = TRAIN.replace("    optimizer.zero_grad()", "    if rank == 1 and step == 50: import time; time.sleep(3600)\n"
                      "    optimizer.zero_grad()")  # fmt: skip
OLD_NUMPY = (2, 3)  # torch 2.3 is the first whose C extensions know NumPy 2 (its release notes)


@pytest.fixture(scope="module", params=RELEASES)
def python(request: pytest.FixtureRequest) -> str:
    """The training interpreter: with the release of torch, made once and kept."""
    release = request.param
    if os.path.isabs(release):
        return str(release)
    if version("torch").split("+")[0] == release:
        return sys.executable
    place = ROOT / ".venv-torch" / release
    interpreter = place / "bin/python"
    if call(str(interpreter), "-c", "import torch", cwd=ROOT).returncode if interpreter.exists() else True:
        numpy = "numpy<2" if tuple(map(int, release.split(".")[:2])) < OLD_NUMPY else "numpy"
        run(str(BIN / "uv"), "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, str(place))
        run(str(BIN / "uv"), "pip", "install", "--quiet", "--python", str(interpreter), f"torch=={release}", numpy)
    return str(interpreter)


def both(python: str) -> list[str]:
    return ["--python", python, "--agent-python", python]


def test_it_trains(installed: Path, python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    output = run(str(installed), "run", "--local", "2", "--nproc", "1", *both(python), "train.py", cwd=tmp_path)
    assert "all 2 ranks initialised" in output and "step 100 loss 0.0" in output


def test_a_hang_has_its_culprit(installed: Path, python: str, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    options = ["--local", "2", "--nproc", "1", *both(python), "--hang-timeout", "20s"]
    done = call(str(installed), "run", *options, "stuck.py", cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "VERDICT   rank 1 on local1 is at stuck.py:" in done.stdout and "cause   straggler" in done.stdout


def test_collectives_and_checks_pass(installed: Path, python: str, tmp_path: Path) -> None:
    options = ["--local", "2", *both(python)]
    tested = call(str(installed), "test", *options, "--nproc", "1", "--size", "4MB", "--timeout", "10m", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    checked = call(str(installed), "check", *options, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
