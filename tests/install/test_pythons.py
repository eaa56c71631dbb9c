"""`make test-pythons`: every supported Python as the controller's and as the nodes' interpreter, without torch."""

import os
import re
from pathlib import Path

import pytest
from tests.install.packages import FAIL, TELL, Packages, agents_of, call, environment_of, run
from tests.interpreters import Version, interpreters

ON_CONTROLLER = [(3, minor) for minor in range(10, 16)]
ON_NODES = [(3, minor) for minor in range(8, 16)]


def name_of(version: Version) -> str:
    return "{}.{}".format(*version)


def interpreter_of(version: Version) -> str:
    if version not in interpreters():
        pytest.skip(f"no Python {name_of(version)} on this machine")
    return interpreters()[version]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty directory but for two programs and a file of settings: tomllib came with Python 3.11."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "allranks.toml").write_text("nproc = 1\n")
    (place / "train.py").write_text(TELL)
    (place / "fail.py").write_text(FAIL)
    return place


@pytest.mark.parametrize("version", ON_CONTROLLER, ids=name_of)
def test_the_commands_of_a_controller(version: Version, packages: Packages, tmp_path: Path, work: Path) -> None:
    program = str(environment_of(interpreter_of(version), tmp_path / "environment", packages.wheel))
    python = str(tmp_path / "environment/bin/python")
    assert run(program, "--version", cwd=work).startswith("allranks ")
    output = run(program, "run", "--local", "2", "--python", python, "train.py", cwd=work)
    assert f"python {name_of(version)} under" in output
    assert agents_of(output) == {os.path.realpath(python)}
    checked = run(program, "check", "--local", "2", "train.py", cwd=work)
    assert " ok" in checked and "fail" not in checked
    failed = call(program, "run", "--local", "2", "fail.py", cwd=work)
    assert failed.returncode == 1, failed.stderr
    run_directory = str(Path(re.findall(r"^page (\S+)$", failed.stdout, re.MULTILINE)[0]).parent)
    assert "ValueError: the second fails" in run(program, "diagnose", run_directory, cwd=work)
    made = run(python, "-m", "allranks.engines.zipapp", cwd=work)
    assert "wrote allranks.pyz" in made
    bare = (python, "-I", "-S", "allranks.pyz", "run", "--local", "2", "train.py")
    if version < (3, 11):  # its only TOML reader is a package, which one file does not hold
        refused = call(*bare, cwd=work)
        assert refused.returncode == 2 and "-m pip install tomli" in refused.stderr
        (work / "allranks.toml").unlink()
    one_file = run(*bare, cwd=work)
    assert agents_of(one_file) == {os.path.realpath(python)}


@pytest.mark.parametrize("version", ON_NODES, ids=name_of)
def test_the_interpreter_of_a_node(version: Version, installed: Path, work: Path) -> None:
    python = interpreter_of(version)
    options = ["--local", "2", "--agent-python", python, "--python", python]
    output = run(str(installed), "run", *options, "train.py", cwd=work)
    assert f"python {name_of(version)} under" in output
    assert agents_of(output) == {os.path.realpath(python)}
    checked = run(str(installed), "check", *options, "train.py", cwd=work)
    assert " ok" in checked and "fail" not in checked
    failed = call(str(installed), "run", *options, "fail.py", cwd=work)
    assert failed.returncode == 1, failed.stderr
    assert "rank 1 on local1 raised ValueError: the second fails" in failed.stdout
