"""Where a command begins and what an option's value may be: the design's contract, through the real command line.

For `run`, `join`, `check` and the commands inside `render`, the first word that is no option, or `-m MODULE`, begins
the command, as with torchrun, and nothing behind it is ours. `--` is accepted, and needed only where the command's own
first word begins with `-`. A value that begins with `-`, or that is an existing .py file where no path is expected, is
refused: a shell variable was empty. `--option=value` says what it means, and is taken as it stands.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.ports import free_port
from tests.shell import Answer, Shell, command_of

from allranks.cli.declare import split
from allranks.cli.main import load
from allranks.settings.table import SETTINGS

NOW: list[Any] = [
    pytest.param(["train.py", ""], ["train.py", ""], id="an empty word"),
    pytest.param(["--", "train.py", "--", "y"], ["train.py", "--", "y"], id="-- twice"),
    pytest.param(["--", "train.py", "--name", "x"], ["train.py", "--name", "x"], id="-- in front"),
    pytest.param(["--", "-x", "--name", "y"], ["-x", "--name", "y"], id="-- before a dash"),
    pytest.param(["--", "-m", "pkg.train", "--name", "x"], ["-m", "pkg.train", "--name", "x"], id="-- before -m"),
]
LATER: list[list[str]] = [
    ["train.py", "a", "--name", "x", "--debug", "b", "--retries=2", "--env", "A=1", "--nodes", "3", "--epochs", "3"],
    ["train.py", "--json", "--dry-run", "--no-such", "-x", "-1"],
    ["train.py", "-h"],
    ["train.py", "--help"],
    ["train.py", "--version"],
    ["train.py", "--", "--name", "x"],
    ["-m", "pkg.train"],
    ["-m", "pkg.train", "-m", "x", "--json", "--lr", "3", "--name", "x"],
    ["bash", "-c", "echo --name"],
]


@pytest.mark.parametrize(
    ("words", "command"),
    [*NOW, *(pytest.param(words, words, id=" ".join(words)) for words in LATER)],
)
def test_nothing_behind_the_command_is_ours(shell: Shell, words: list[str], command: list[str]) -> None:
    answer = shell("run", "--local", "1", "--name", "ours", "--dry-run", "--json", *words)
    assert answer.code == 0, answer
    document = answer.document
    assert command_of(document) == command
    assert document["nodes"][0]["ranks"][0]["env"]["ALLRANKS_RUN"].startswith("ours-")
    assert len(document["nodes"]) == 1


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("python3 -u train.py --name x", "-u <runner> train.py --name x"),
        ("python3 -m pkg --debug --json", "<runner> -m pkg --debug --json"),
        ("torchrun --tee 3 train.py --name x", "--tee 3 train.py --name x"),
        ("accelerate launch --mixed_precision bf16 train.py --debug", "--mixed_precision bf16 train.py --debug"),
        ("deepspeed train.py --deepspeed_config ds.json --name x", "train.py --deepspeed_config ds.json --name x"),
    ],
)
def test_interpreters_and_launchers_begin_the_command_too(shell: Shell, line: str, argv: str) -> None:
    """Their own options are read by whoever they belong to, never by us."""
    answer = shell("run", "--local", "1", "--nproc", "1", "--dry-run", "--json", *line.split())
    assert answer.code == 0, answer
    given = answer.document["nodes"][0]["ranks"][0]["argv"]
    runner = ("runner.py", "runner_launched.py")
    shown = ["<runner>" if word.rpartition("/")[2] in runner else word for word in given]
    assert [word for word in shown if word in argv.split()] == argv.split()


def test_json_in_front_of_the_command_is_ours_and_behind_it_the_programs(shell: Shell) -> None:
    ours = shell("run", "--json", "--local", "nonsense", "train.py")
    assert (ours.code, ours.document["exit"]) == (2, 2) and "--local" in ours.document["error"]
    programs = shell("run", "--local", "nonsense", "train.py", "--json")
    assert (programs.code, programs.out) == (2, "") and "--local" in programs.err


# -- other verbs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [["--only", "shm"], ["--level", "quick"], ["--no-such"]])
def test_check_reads_nothing_behind_the_command(shell: Shell, rest: list[str]) -> None:
    plain = shell("check", "--local", "1", "--dry-run", "--json", "train.py")
    more = shell("check", "--local", "1", "--dry-run", "--json", "train.py", *rest)
    assert more.code == 0, more
    assert len(plain.document["checks"]) > 40
    assert more.document["checks"] == plain.document["checks"]


def rendered(answer: Answer) -> str:
    """The first file's text."""
    assert answer.code == 0, answer
    return str(next(iter(answer.document["files"].values())))


RENDERED = {
    "torchrun": ["--hosts", "g1"],
    "slurm": ["--nodes", "1"],
    "kubernetes": ["--nodes", "1", "--image", "i"],
}


@pytest.mark.parametrize("what", RENDERED)
@pytest.mark.parametrize(
    "line",
    ["-- train.py --name x", "train.py --name x", "train.py --output here", "train.py --json --force",
     "-m pkg.train --name x", "train.py --gpus 8"],
)  # fmt: skip
def test_render_reads_nothing_behind_the_command(shell: Shell, what: str, line: str) -> None:
    answer = shell("render", what, *RENDERED[what], "--nproc", "1", "--json", *line.split())
    words = " ".join(rendered(answer).replace("\\\n", " ").replace("\n        - ", " ").replace("'", "").split())
    assert line.removeprefix("-- ") in words
    assert not Path("here").exists()


JOINED = "import json, sys; open('said.json', 'w').write(json.dumps(sys.argv[1:]))"


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--", "say.py", "--port", "1"], ["say.py", "--port", "1", "--json"]])  # fmt: skip
def test_join_reads_nothing_behind_the_command(shell: Shell, words: list[str]) -> None:
    """One node is enough to see; it has no dry run."""
    Path("say.py").write_text(JOINED)
    target = ["--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--python", sys.executable]
    target += ["--port", str(free_port())]
    environment = {**os.environ, "ALLRANKS_JOIN_SECRET": "s" * 32}
    done = forked.call(["join", *target, *words], cwd=Path.cwd(), env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("said.json").read_text()) == words[words.index("say.py") + 1 :]


@pytest.mark.parametrize(
    "words",
    [
        ["status", "nosuch", "--json"], ["status", "--json", "nosuch"],
        ["logs", "nosuch", "-n", "3", "--json"], ["logs", "-n", "3", "--json", "nosuch"],
        ["stop", "nosuch", "--json"], ["report", "nosuch", "--json"], ["diagnose", "nosuch", "--json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_verbs_without_a_command_take_options_anywhere(shell: Shell, words: list[str]) -> None:
    answer = shell(*words)
    assert answer.code == 2
    assert "nosuch" in answer.document["error"]


# -- our own options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--name", "x"], ["--name=x"], ["--name", "y", "--name", "x"]], ids=" ".join)
def test_options_in_front_of_the_command(shell: Shell, words: list[str]) -> None:
    answer = shell("run", "--local", "1", "--dry-run", "--json", *words, "--", "train.py")
    assert answer.document["nodes"][0]["ranks"][0]["env"]["ALLRANKS_RUN"].startswith("x-")


ALIASES: list[Any] = [
    (["--hosts", "h1,h2", "--nodes", "1"], ["h1"], 1),
    (["--hosts", "h1,h2", "--nnodes", "1"], ["h1"], 1),
    (["--hosts", "h1,h2", "-N", "1"], ["h1"], 1),
    (["-H", "h1,h2"], ["h1", "h2"], 1),
    (["--hostfile", "list"], ["h7"], 1),
    (["--hosts", "h1", "--nproc-per-node", "3"], ["h1"], 3),
    (["--hosts", "h1", "--nproc_per_node", "3"], ["h1"], 3),
]


@pytest.mark.parametrize(("words", "nodes", "nproc"), ALIASES, ids=lambda value: str(value))
def test_names_that_people_type(shell: Shell, words: list[str], nodes: list[str], nproc: int) -> None:
    Path("list").write_text("h7\n")
    answer = shell("run", "--dry-run", "--json", *words, "--", "train.py")
    assert answer.code == 0, answer
    assert [node["name"] for node in answer.document["nodes"]] == nodes
    assert answer.document["nodes"][0]["nproc"] == nproc


def test_no_file_is_looked_for_while_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of the program may be on a disk that does not answer, or on the nodes alone."""
    looked_for: list[str] = []
    monkeypatch.setattr(os, "stat", lambda path, *_, **__: looked_for.append(str(path)))
    load("run").make_context("run", ["--workdir", "/stalled", "train.py", "--data", "/stalled/data"])
    monkeypatch.undo()
    assert [path for path in looked_for if path == "train.py" or path.startswith("/stalled")] == []


def test_a_command_is_needed(shell: Shell) -> None:
    """The sentence shows the grammar, which needs no --."""
    answer = shell("run", "--local", "1", "--dry-run")
    assert answer.code == 2
    assert "train.py" in answer.err and " -- " not in answer.err


# -- values that a shell variable left empty -----------------------------------------------------------

# Options of `run` that take a value, by what they take; in `--name $NAME train.py` with NAME unset, the next word is
# the value. --sbatch takes options of another program, which begin with a dash.
WORDS = ["--name", "--python", "--agent-python", "--launcher", "--network", "--master-addr", "--partition", "--image",
         "--on-hang", "--test", "--step-pattern", "--hang-pattern", "--prelude", "--wrap", "--allow", "--namespace",
         "--env", "--gpus", "--context"]  # fmt: skip
NUMBERS = ["--local", "--nodes", "--nproc", "--master-port", "--retries", "--spares", "--expect-gpus", "--audit-data"]
TIMES = ["--lease", "--grace", "--stop-grace", "--connect-timeout", "--init-timeout", "--hang-timeout", "--pg-timeout"]
PLACES = ["--workdir", "--runs-dir", "--node-dir", "--output-dir", "--config", "--data-path", "--pod"]


EMPTY: list[tuple[list[str], str, str]] = [
    *((["run", "--dry-run", option, "--debug", "train.py"], option, "--debug")
      for option in [*WORDS, *NUMBERS, *TIMES, *PLACES, "--hosts"]),
    *((["run", "--dry-run", option, "train.py", "other.py"], option, "train.py")
      for option in ["--name", "--wrap", "--launcher", "--env", "--nodes", "--nproc", "--lease"]),
    *((["run", "--dry-run", f"{option}=", "train.py"], option, "empty")
      for option in ["--name", "--nproc", "--lease", "--workdir", "--hosts", "--master-addr"]),
    (["run", "--dry-run", "--local", "1", "-m"], "-m", "-m"),
    (["run", "--dry-run", "--local", "1", "--name", "train.py"], "--name", "train.py"),  # not: a command is missing
    (["check", "--local", "1", "--dry-run", "--only", "--json"], "--only", "--json"),
    (["test", "--local", "1", "--dry-run", "--suite", "--json"], "--suite", "--json"),
    (["logs", "--node", "--json"], "--node", "--json"),
    (["clean", "--keep", "--yes", "--dry-run"], "--keep", "--yes"),
    (["render", "torchrun", "--hosts", "g1", "--nproc", "--name", "train.py"], "--nproc", "--name"),
    (["render", "torchrun", "--hosts", "g1", "--name", "train.py", "other.py"], "--name", "train.py"),
    (["data", "plan", "--samples", "--json"], "--samples", "--json"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "option", "value"), EMPTY, ids=[" ".join(row[0]) for row in EMPTY])
def test_a_value_that_was_empty_is_refused(shell: Shell, words: list[str], option: str, value: str) -> None:
    """One sentence with the option and its value, and that a shell variable was empty."""
    answer = shell(*words)
    assert answer.code == 2, answer
    assert option in answer.err and value in answer.err
    assert "empty" in answer.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(pytest.param([option, "odd.py"], id=f"a place like a script, {option}") for option in PLACES[:3]),
        pytest.param(["--name", "new.py"], id="a script that does not exist"),
        pytest.param(["--wrap", "sub/none.py"], id="a path that does not exist"),
        *(
            pytest.param([word], id=f"it is meant, {word}")
            for word in ("--prelude=-x", "--wrap=-x", "--name=train.py", "--master-addr=train.py")
        ),
    ],
)
def test_a_value_that_may_be_meant_is_taken(shell: Shell, words: list[str]) -> None:
    Path("odd.py").mkdir()
    answer = shell("run", "--local", "1", "--dry-run", *words, "--", "train.py")
    assert answer.code == 0, answer


@pytest.mark.parametrize("value", ["--time=1:00:00 --qos=long", "-w h1"])
def test_options_of_sbatch_begin_with_a_dash(shell: Shell, value: str) -> None:
    words = ["render", "slurm", "--nodes", "1", "--nproc", "1", "--json", "--sbatch", value, "--", "train.py"]
    assert value in rendered(shell(*words))


@pytest.mark.parametrize("word", ["--no-preload", "--no_preload"])
def test_a_switch_stands_for_a_value(shell: Shell, word: str) -> None:
    line = split([word, "--local", "1", "train.py", "--no-preload"], SETTINGS.values(), takes_command=True)
    assert line.words == ["--preload=never", "--local", "1"] and line.command == ["train.py", "--no-preload"]
    answer = shell("run", "--local", "1", word, "--dry-run", "--json", "train.py")
    assert answer.code == 0, answer
