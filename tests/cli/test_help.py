"""Help, as a hurried person meets it: what --help shows, help VERB, wrong verbs and options, colours, -q."""

import itertools
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import forked
from tests.settings.test_declarations import COMMANDS
from tests.shell import Shell

from allranks.cli.commands import COMMANDS as DECLARED
from allranks.cli.declare import COLOR, MOST_SHOWN, Declared, DeclaredVerbs
from allranks.cli.main import VERBS
from allranks.report.terminal import wants_colour
from allranks.settings.setting import PANELS
from allranks.settings.table import SETTINGS

COMMON = 15  # settings of the short help
COLUMNS = 80


def paths() -> Iterator[tuple[tuple[str, ...], Declared]]:
    """The words of each command."""
    for command in DECLARED.values():
        if isinstance(command, DeclaredVerbs):
            yield from (((command.name, one.name), one) for one in command.commands)
        else:
            yield (command.name,), command


PATHS = [pytest.param(words, declared, id=" ".join(words)) for words, declared in paths()]


def test_every_verb_is_declared() -> None:
    assert list(DECLARED) and set(DECLARED) == set(VERBS)


def test_run_shows_the_settings_that_people_use() -> None:
    run = next(declared for declared in COMMANDS if declared.name == "run")
    settings = [row.name for row in run.common_rows if row.name in SETTINGS]
    assert len(settings) == COMMON, f"`common` of a row puts it into the short help, which has {COMMON}: {settings}"
    assert {"hosts", "nproc", "env", "retries", "hang_timeout", "slurm", "k8s", "sky"} <= set(settings)


@pytest.mark.parametrize("declared", COMMANDS, ids=lambda declared: declared.name)
def test_a_command_with_many_options_shows_few(declared: Declared) -> None:
    shown = declared.common_rows
    settings = [row.name for row in shown if row.name in SETTINGS]
    is_short = len(settings) <= COMMON or len(shown) == len(declared.rows)
    assert is_short, f"`common` of a row puts it into the short help, which has at most {COMMON}: {settings}"
    assert len(declared.rows) <= MOST_SHOWN or len(shown) < len(declared.rows)
    assert {row.name for row in declared.options} <= {row.name for row in shown}


@pytest.mark.parametrize(("words", "declared"), PATHS)
@pytest.mark.parametrize("asked", ["--help", "--help-all"])
def test_help_is_the_tables(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], declared: Declared, asked: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    answer = shell(*words, asked)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    rows = declared.rows if asked == "--help-all" else declared.common_rows
    named = [line.strip().partition("  ")[0].replace(",", "").split() for line in lines if line.startswith("  -")]
    listed = [name for words_of_line in named for name in words_of_line]
    for row in declared.rows:
        assert (row.names[-1] in listed or row.option in listed) == (row in rows), row.option
    panels = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    known = [panel for panel in panels if panel in PANELS]
    assert known == sorted(known, key=PANELS.index)
    has_more = len(declared.common_rows) < len(declared.rows)
    assert (f"print all {len(declared.rows)} options" in answer.out) == (has_more and asked == "--help")
    assert f"Example: allranks {' '.join(words)} " in " ".join(answer.out.split())


def test_a_long_example_can_be_pasted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    shown = shell("data", "plan", "--help").out
    example = shown.partition("Example: ")[2].partition("\n\n")[0]
    assert example.count("\n") == 1
    words = shlex.split(example)
    assert words[:3] == ["allranks", "data", "plan"] and words[-2:] == ["--step-time", "2s"]


@pytest.mark.parametrize("group", ["data", "render"])
def test_a_group_lists_its_commands_in_whole_sentences(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    shown = shell(group, "--help").out
    assert max(map(len, shown.splitlines())) <= COLUMNS
    assert "  -h, --help  print this help" in shown and "..." not in shown.partition("Options:")[2]
    declared = DECLARED[group]
    assert isinstance(declared, DeclaredVerbs)
    for command in declared.commands:
        assert command.help in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "render", "slurm"], ["render", "slurm", "--help"]),
        (["help", "run", "--help-all"], ["run", "--help-all"]),
        (["help", "data"], ["data", "--help"]),
    ],
    ids=str,
)
def test_help_of_a_verb(shell: Shell, words: list[str], same: list[str]) -> None:
    assert shell(*words) == shell(*same)
    assert shell(*words).code == 0


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["statsu"], "hint: allranks status"),
        (["hlep"], "hint: allranks help"),
        (["help", "rnu"], "hint: allranks run"),
        (["train.py"], "hint: allranks run train.py …"),
        (["torchrun", "train.py"], "hint: allranks run torchrun …"),
        (["--json", "status"], "hint: allranks status --json"),
        (["zzz"], "hint: allranks --help"),
        (["render", "slrum"], "hint: allranks render slurm"),
        (["run", "--nporc", "3", "train.py"], "hint: --nproc N|auto"),
        (["run", "--nproc-per-nod", "3", "train.py"], "hint: --nproc-per-node N|auto"),
        (["run", "--hang-time", "3s", "train.py"], "hint: --hang-timeout DURATION"),
        (["run", "--hepl"], "hint: --help"),
        (["run", "--lr", "3", "train.py"], "Options of a program stand behind it"),
        (["render", "slurm", "--partiton", "gpu", "train.py"], "hint: --partition NAME"),
        (["status", "--hosts", "h1"], "but of `run`, `check`, `test`, `exec`, `render torchrun` and 6 more"),
        (["ps", "--on", "h1"], "but of `status`, `top`, `logs`, `attach` and `stop`"),
        (["run", "--gpus-per-node", "8", "train.py"], "hint: --nproc-per-node N|auto"),
        (["render", "--verbos"], "hint: allranks render --help"),
    ],
    ids=str,
)
def test_a_wrong_word_is_answered_with_what_was_meant(shell: Shell, words: list[str], hint: str) -> None:
    answer = shell(*words)
    assert answer.code == 2 and answer.out == ""
    assert answer.err.startswith("allranks: ") and hint in answer.err


def test_the_list_of_verbs_fits_a_terminal(shell: Shell) -> None:
    lines = shell("--help").out.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    rare = lines.index("more rarely:")
    often, seldom = ([line.split()[0] for line in part if line[:2] == "  "] for part in (lines[:rare], lines[rare:]))
    assert [*often, *seldom][: len(VERBS)] == list(VERBS)
    assert {"run", "stop"} <= set(often) and {"overlap", "exec"} <= set(seldom)


def test_check_lists_every_check(shell: Shell) -> None:
    listed = shell("check", "--list", "--json").document["checks"]
    assert [set(check) for check in listed] == [{"id", "group", "level", "passes"}] * len(listed)
    assert {"own_name", "shm", "gpu_ecc"} <= {check["id"] for check in listed}
    lines = shell("check", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == [check["id"] for check in listed]
    assert not list(Path.cwd().glob("runs"))


@pytest.mark.parametrize(
    ("choice", "is_terminal", "no_color", "force_color", "expected"),
    [
        *(("always", *rest, True) for rest in itertools.product([False, True], ["", "1"], ["", "1"])),
        *(("never", *rest, False) for rest in itertools.product([False, True], ["", "1"], ["", "1"])),
        ("auto", True, "", "", True),
        ("auto", False, "", "", False),
        ("auto", True, "1", "", False),
        ("auto", False, "", "1", True),
        ("auto", True, "", "0", False),
        ("auto", True, "1", "1", False),
    ],
)
def test_who_decides_on_colours(
    choice: str, is_terminal: bool, no_color: str, force_color: str, expected: bool
) -> None:
    assert wants_colour(choice, is_terminal, no_color, force_color) is expected


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ([], {}, False),
        (["--color", "always"], {}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
    ids=str,
)
def test_a_programs_colours_in_a_pipe(
    tmp_path: Path, options: list[str], environment: dict[str, str], expected: bool
) -> None:
    """A run, and its logs afterwards."""
    (tmp_path / "train.py").write_text("print('\\x1b[32mgreen\\x1b[0m')\n")
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    for words in (["run", "--local", "1", *options, "train.py"], ["logs", *options]):
        done = forked.call(words, cwd=tmp_path, env={**clean, **environment})
        assert done.returncode == 0 and "green" in done.stdout
        assert ("\x1b[32mgreen" in done.stdout) is expected


@pytest.mark.processes
def test_quiet_is_the_programs_output_and_why_it_failed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('step 1')\nassert len(sys.argv) == 1, 'an argument'\n")
    done = forked.call(["run", "-q", "--local", "2", "train.py"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split("] ")[-1] for line in done.stdout.splitlines()} == {"step 1"}
    failed = forked.call(["run", "--quiet", "--local", "1", "train.py", "x"], cwd=tmp_path)
    assert failed.returncode == 1
    assert "VERDICT" in failed.stdout and "an argument" in failed.stdout and "nodes " not in failed.stdout
    detached = forked.call(["run", "-q", "--detach", "--local", "1", "train.py"], cwd=tmp_path)
    assert detached.stdout.strip() in {path.name for path in (tmp_path / "runs").iterdir()}
    attached = forked.call(["attach", "-q", detached.stdout.strip()], cwd=tmp_path)
    assert attached.returncode == 0 and "done after" not in attached.stdout


@pytest.mark.processes
def test_quiet_check_says_what_is_wrong(tmp_path: Path) -> None:
    fine = forked.call(["check", "-q", "--local", "1", "--only", "shm"], cwd=tmp_path)
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")
    missing = ["check", "-q", "--local", "1", "--only", "data_paths", "--data-path", "/no/such/data"]
    wrong = forked.call(missing, cwd=tmp_path)
    assert wrong.returncode == 3
    assert "/no/such/data" in wrong.stdout.splitlines()[0] and "result" not in wrong.stdout


@pytest.mark.processes
def test_the_exit_code_of_a_diagnosis(tmp_path: Path) -> None:
    """As the run ended, and of logs as the cause's row says."""
    (tmp_path / "train.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    for code, expected in (("0", 0), ("7", 1)):
        forked.call(["run", "--local", "1", "train.py", code], cwd=tmp_path)
        assert forked.call(["diagnose"], cwd=tmp_path).returncode == 0
        assert forked.call(["diagnose", "--exit-code"], cwd=tmp_path).returncode == expected
    (tmp_path / "slurm.out").write_text("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***\n")
    done = forked.call(["diagnose", "--exit-code", "--json", "slurm.out"], cwd=tmp_path)
    assert json.loads(done.stdout)["cause"] == "slurm-preempted-or-timeout" and done.returncode in (1, 4)


def test_every_command_takes_color() -> None:
    """One row, which no command declares again."""
    assert all(declared.rows.count(COLOR) == 1 and COLOR not in declared.options for declared in COMMANDS)


@pytest.mark.processes
def test_words_of_ours_are_painted_and_what_is_quiet_is_for_scripts(tmp_path: Path) -> None:
    """A run that failed, as `status`, `ps` and `diagnose` show it."""
    (tmp_path / "train.py").write_text("raise ValueError('no labels')\n")
    forked.call(["run", "--local", "1", "train.py"], cwd=tmp_path)
    (run,) = (path.name for path in (tmp_path / "runs").iterdir())
    painted = {"status": "\x1b[1;31mverdict: ", "ps": f"\x1b[31m{run}", "diagnose": "\x1b[1;31mVERDICT "}
    quiet = {"status": "failed\n", "ps": f"{run}\n", "diagnose": "program-exception\n", "stop": ""}
    for verb, start in painted.items():
        for choice in ("always", "never"):
            shown = forked.call([verb, "--color", choice], cwd=tmp_path).stdout
            assert (start in shown) is (choice == "always"), (verb, choice, shown)
            assert choice == "always" or "\x1b" not in shown
    for verb, line in quiet.items():
        done = forked.call([verb, "-q"], cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, line, ""), verb
