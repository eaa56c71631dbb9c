"""What ranks find around them."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.local.running import LocalRun

LOOKS = """import json, os, shutil, subprocess
found = {"which": shutil.which("own-tool"), "ran": subprocess.run(["own-tool"], stdout=subprocess.PIPE).stdout.decode(),
         "PATH": os.environ["PATH"]}
json.dump(found, open("../found", "w"))
"""


def put_tool(directory: Path, says: str) -> None:
    directory.mkdir(parents=True)
    (directory / "own-tool").write_text(f"#!/bin/sh\necho {says}\n")
    (directory / "own-tool").chmod(0o755)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A virtual environment's python, with a program beside it."""
    place = tmp_path / "venv" / "bin"
    put_tool(place, "mine")
    (place / "python").symlink_to(Path(sys.executable).resolve())
    (place.parent / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return place / "python"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["absent", "another first"])
def test_programs_beside_the_training_interpreter_are_found(tmp_path: Path, python: Path, elsewhere: bool) -> None:
    """torchrun, ninja: as after `activate`, without it."""
    if elsewhere:
        put_tool(tmp_path / "other", "another")
    path = f"{tmp_path}/other:{os.environ['PATH']}"
    result = LocalRun(tmp_path, LOOKS, "--python", str(python), nodes=1, PATH=path).result()
    assert result["exit"] == 0, result["verdict"]
    found = json.loads((tmp_path / "found").read_text())
    assert (found["which"], found["ran"]) == (str(python.parent / "own-tool"), "mine\n")
    assert found["PATH"] == f"{python.parent}:{path}"


@pytest.mark.parametrize("options", [(), ("--launcher", "command")])
@pytest.mark.parametrize("command", ["bash ../run.sh", "own-tool"])
def test_a_shell_script_finds_them_too(tmp_path: Path, python: Path, options: tuple[str, ...], command: str) -> None:
    """`--python` said which environment it is: a script that calls torchrun did not find it."""
    (tmp_path / "run.sh").write_text("own-tool\n")
    run = LocalRun(tmp_path, "", "--python", str(python), *options, nodes=1, command=command)
    assert run.result()["exit"] == 0, run.stderr
    assert run.log == "mine\n"


@pytest.mark.slow
def test_a_path_that_the_user_sets_holds(tmp_path: Path) -> None:
    code = "import os\nopen('../found', 'w').write(os.environ['PATH'])\n"
    LocalRun(tmp_path, code, "--env", "PATH=/usr/bin:/bin", nodes=1).result()
    assert (tmp_path / "found").read_text() == "/usr/bin:/bin"
