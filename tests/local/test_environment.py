"""What ranks find around them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.local.running import BOUND, LocalRun

LOOKS = """import json, os, shutil, subprocess
found = {"which": shutil.which("own-tool"), "ran": subprocess.run(["own-tool"], stdout=subprocess.PIPE).stdout.decode(),
         "PATH": os.environ["PATH"]}
json.dump(found, open("../found", "w"))
"""


def interpreter(place: Path) -> Path:
    """A virtual environment's python, with a program beside it."""
    bin_ = place / "venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "python").symlink_to(Path(sys.executable).resolve())
    (place / "venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (bin_ / "own-tool").write_text("#!/bin/sh\necho mine\n")
    (bin_ / "own-tool").chmod(0o755)
    return bin_ / "python"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["absent", "another first"])
def test_programs_beside_the_training_interpreter_are_found(tmp_path: Path, elsewhere: bool) -> None:
    """torchrun, ninja: as after `activate`, without it."""
    python = interpreter(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    if elsewhere:
        (other / "own-tool").write_text("#!/bin/sh\necho another\n")
        (other / "own-tool").chmod(0o755)
    path = f"{other}:{os.environ['PATH']}"
    result = LocalRun(tmp_path, LOOKS, "--python", str(python), nodes=1, PATH=path).result()
    assert result["exit"] == 0, result["verdict"]
    found = json.loads((tmp_path / "found").read_text())
    assert (found["which"], found["ran"]) == (str(python.parent / "own-tool"), "mine\n")
    assert found["PATH"] == f"{python.parent}:{path}"


@pytest.mark.parametrize(
    "command", [["bash", "run.sh"], ["--launcher", "command", "bash", "run.sh"], ["--launcher", "command", "own-tool"]]
)
def test_a_shell_script_finds_them_too(tmp_path: Path, command: list[str]) -> None:
    """`--python` said which environment it is: a script that calls torchrun did not find it."""
    python = interpreter(tmp_path)
    (tmp_path / "run.sh").write_text("own-tool\n")
    words = ["run", "--local", "1", "--nproc", "1", "--python", str(python), "--json", *command]
    done = forked.call(words, cwd=tmp_path, env=dict(os.environ), timeout=BOUND)
    document = json.loads(done.stdout)
    assert document["exit"] == 0, document["verdict"]
    assert next(tmp_path.glob("runs/*/logs/node_*/rank_000.log")).read_text() == "mine\n"


@pytest.mark.slow
def test_a_path_that_the_user_sets_holds(tmp_path: Path) -> None:
    code = "import os\nopen('../found', 'w').write(os.environ['PATH'])\n"
    LocalRun(tmp_path, code, "--env", "PATH=/usr/bin:/bin", nodes=1).result()
    assert (tmp_path / "found").read_text() == "/usr/bin:/bin"
