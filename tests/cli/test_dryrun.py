"""--dry-run is the truth: its documents against what the ranks of the same command line really got.

Words in <> are known only once a node has answered; everything else must be equal. What a rank's environment has
beyond that of the shell that started it must stand in the document.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.shell import Shell

from allranks.gang import session

pytestmark = pytest.mark.processes

# Writes what it was given beside itself, once a process.
TELL = """
import json, os, sys
name = "said-%s-%s.json" % (os.environ.get("RANK", "none"), os.environ.get("NODE_RANK", "none"))
with open(os.path.join(os.environ["TELL"], name), "w") as file:
    argv = open("/proc/self/cmdline").read().split("\\0")[:-1]
    json.dump({"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}, file)
"""
# What a session, a shell or Python itself sets.
OF_THE_SESSION = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE", "TELL"}
UNKNOWN = re.compile(r"<[a-z][a-z _-]*>")

SCRIPT = ("tell.py", "--lr", "3", "two words")
# options, command, what is set in the shell
LINES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]] = {
    "a script": (
        ("--local", "2", "--nproc", "2", "--env", "A=1 2", "--env", "B=", "--env", "FROM_HERE", "--pg-timeout", "70s"),
        SCRIPT,
        {"FROM_HERE": "a b", "OMP_NUM_THREADS": "3", "NCCL_DEBUG": "TRACE"},
    ),
    "bound": (("--local", "1", "--nproc", "2", "--bind", "cores"), SCRIPT, {}),
    "a module": (("--local", "1", "--nproc", "1", "--debug", "--audit-data", "3"), ("-m", "tell", "x"), {}),
    "python": (("--local", "1", "--nproc", "1", "--workdir", "{place}/sub"), (sys.executable, "-u", "tell.py"), {}),
    "a program": (("--local", "1", "--nproc", "1", "--wrap", "env WRAPPED=1"), ("./tell", "x", "--y=1"), {}),
    "a command": (("--local", "2", "--nproc", "2", "--launcher", "command"), ("./tell", "x"), {}),
}


class Told:
    """Both sides of one command line: the dry run's document, and what each process said."""

    def __init__(self, name: str, place: Path) -> None:
        options, command, environ = LINES[name]
        for where in (place, place / "sub"):
            where.mkdir(exist_ok=True)
            (where / "tell.py").write_text(TELL)
            (where / "tell").write_text(f"#!{sys.executable}\n{TELL}")
            (where / "tell").chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "SLURM_"))}
        self.shell = {**kept, "TELL": str(place), **environ}
        given = [word.format(place=place) for word in options]
        dry = self._call(place, *given, "--dry-run", "--json", "--", *command)
        assert not (place / "runs").exists(), "a dry run leaves nothing"
        self.document: dict[str, Any] = json.loads(dry.stdout)
        done = self._call(place, *given, "--json", "--", *command)
        assert done.returncode == 0, done.stderr + done.stdout
        said = [(path.stem.split("-"), json.loads(path.read_text())) for path in sorted(place.glob("said-*.json"))]
        shown = {str(rank["rank"]): rank for node in self.document["nodes"] for rank in node["ranks"]}
        by_node = {str(at): node["ranks"][0] for at, node in enumerate(self.document["nodes"])}
        self.pairs = [(shown.get(words[1]) or by_node[words[2]], real) for words, real in said]
        assert len(self.pairs) == len(shown), "every process that is shown ran, and no other"

    def _call(self, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return forked.call(["run", *words], cwd=place, env=self.shell)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Told]:
    """Each command line is run once for all tests here."""
    kept: dict[str, Told] = {}

    def tell(name: str) -> Told:
        if name not in kept:
            kept[name] = Told(name, tmp_path_factory.mktemp("told"))
        return kept[name]

    return tell


def fits(shown: str, real: str) -> bool:
    """Equal, but for what only a node knows."""
    parts = re.split(f"({UNKNOWN.pattern})", shown)
    pattern = "".join(".+" if UNKNOWN.fullmatch(part) else re.escape(part) for part in parts)
    return re.fullmatch(pattern, real, re.DOTALL) is not None


@pytest.mark.parametrize("name", LINES)
def test_variables_are_shown_as_they_are(told: Callable[[str], Told], name: str) -> None:
    """A port that is chosen later is no zero."""
    for shown, real in told(name).pairs:
        wrong = {k: (v, real["env"].get(k)) for k, v in shown["env"].items() if not fits(v, real["env"].get(k, ""))}
        assert {k: v for k, v in wrong.items() if k not in shown["weak"]} == {}
        assert "MASTER_PORT" in shown["env"]


def test_a_variable_that_is_forwarded_or_yields_to_the_shells_is_shown_as_the_shells(
    told: Callable[[str], Told],
) -> None:
    """Local ranks have the caller's environment. What is forwarded holds over a prelude: ranks get it by name."""
    for shown, real in told("a script").pairs:
        for environment in (shown["env"], real["env"]):
            assert {name: environment.get(name) for name in LINES["a script"][2]} == LINES["a script"][2]


@pytest.mark.parametrize("name", LINES)
def test_the_working_directory_is_shown_and_no_variable_is_missing(told: Callable[[str], Told], name: str) -> None:
    """The interface that is chosen later, for one."""
    both = told(name)
    for shown, real in both.pairs:
        new = {k for k, v in real["env"].items() if both.shell.get(k) != v} - OF_THE_SESSION
        assert new - {*shown["env"], "WRAPPED"} == set()
        assert shown["workdir"] == real["cwd"]


@pytest.mark.parametrize("name", ["a program", "a command"])
def test_the_words_of_a_program(told: Callable[[str], Told], name: str) -> None:
    for shown, real in told(name).pairs:
        at = shown["argv"].index("./tell")
        assert shown["argv"][:at] == (["env", "WRAPPED=1"] if name == "a program" else [])
        assert real["argv"][-len(shown["argv"][at:]) + 1 :] == shown["argv"][at + 1 :]


@pytest.mark.parametrize("name", ["a script", "a module", "python"])
def test_the_words_of_a_python_program(told: Callable[[str], Told], name: str) -> None:
    """Of a local node the interpreter is known here: it is shown as it will be called."""
    for shown, real in told(name).pairs:
        assert len(shown["argv"]) == len(real["argv"])
        assert [(a, b) for a, b in zip(shown["argv"], real["argv"], strict=True) if not fits(a, b)] == []


def test_tests_in_front_of_the_program_do_not_hide_it(shell: Shell) -> None:
    """`--test quick` runs both; both are shown, each with its processes."""
    answer = shell("run", "--local", "1", "--nproc", "2", "--test", "quick", "--dry-run", "--json", "--", *SCRIPT)
    assert answer.code == 0, answer
    assert "fabric.zip" in answer.out and "tell.py" in answer.out
    assert [word for word in SCRIPT if json.dumps(word) not in answer.out] == []


@pytest.mark.parametrize("command", [["train.py"], ["torchrun", "train.py"], ["accelerate", "launch", "train.py"]])
def test_the_interpreter_that_is_asked_for_is_shown_of_other_machines_too(shell: Shell, command: list[str]) -> None:
    answer = shell("run", "--hosts", "h1,h2", "--python", "/opt/a/bin/python", "--dry-run", "--json", *command)
    assert answer.code == 0, answer
    assert {rank["argv"][0] for node in answer.document["nodes"] for rank in node["ranks"]} == {"/opt/a/bin/python"}


@pytest.mark.parametrize("sync", [(), ("--sync",)], ids=["in place", "shipped"])
def test_a_relative_output_directory_is_against_the_place_of_the_call(sync: tuple[str, ...], tmp_path: Path) -> None:
    """An agent stands in the home directory, and the copy that --sync ships ends with the run."""
    (tmp_path / "train.py").write_text("")
    call = [sys.executable, "-m", "allranks", "run", "--hosts", "h1,h2", "--nproc", "1", "--output-dir", "ck", *sync]
    said = subprocess.run([*call, "--dry-run", "--json", "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    ranks = [rank for node in json.loads(said.stdout)["nodes"] for rank in node["ranks"]]
    assert [rank["env"]["ALLRANKS_OUTPUT_DIR"] for rank in ranks] == [f"{tmp_path}/ck"] * 2


@pytest.mark.parametrize("verb", [("run", "--local", "2", "--dry-run"), ("render", "torchrun", "--hosts", "h1,h2")])
def test_use_env_of_torch_distributed_launch_is_left_out(shell: Shell, verb: tuple[str, ...]) -> None:
    """Its successor, which is started, does what it asks for, and refuses the option."""
    given = ["--use_env", "--nproc_per_node", "2", "t.py"]
    answer = shell(*verb, "python", "-m", "torch.distributed.launch", *given)
    assert "torch.distributed.run" in answer.out
    assert "--use_env" not in answer.out


def test_other_hosts_take_the_interpreter_of_the_environment_here(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said python3, and the run took that of VIRTUAL_ENV."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    words = ["run", "--hosts", "far1,far2", "--dry-run"]
    assert f"\n{python} is taken where a node has it (VIRTUAL_ENV: " in shell(*words, "t.py").out
    first = shell(*words, "--json", "t.py").document["nodes"][0]["ranks"][0]
    assert first["argv"][0] == str(python)
    assert "is taken where a node has it" not in shell(*words, "--python", "/opt/py", "t.py").out


def test_conda_comes_before_the_environment_of_allranks_but_its_base_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_own_environment", lambda: "/own")
    assert session.environments({"CONDA_PREFIX": "/c/envs/x", "CONDA_DEFAULT_ENV": "x"}) == (None, "/c/envs/x", "/own")
    assert session.environments({"CONDA_PREFIX": "/c", "CONDA_DEFAULT_ENV": "base"}) == (None, None, "/own")
    assert session.environments({"CONDA_PREFIX": "/c", "VIRTUAL_ENV": "/v"}) == ("/v", "/c", "/own")
