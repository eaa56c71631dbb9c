"""Which commands of a prelude end it: its own, and none inside the files and functions that it uses.

Real bash. The shapes are those of Environment Modules 5.2, Lmod 8.6, conda, pyenv and users' ~/.bashrc.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.agent import prelude as preludes
from allranks.agent.prelude import PreludeResult, run_prelude
from allranks.gang.agent_archive import boot_script

pytestmark = pytest.mark.processes

FILES = {
    "good.sh": "export GOOD=1\n",
    "inner.sh": "false\nls /nosuch 2>/dev/null\nexport GOOD=1\n",  # as scripts of conda do: they go on
    "last_fails.sh": "export GOOD=1\nls /nosuch\n",
    "returns.sh": "echo 'no such environment' >&2\nreturn 3\n",
    "returns_early.sh": "[ -d /nosuch ] || return 1\nexport GOOD=1\n",
    "returns_status.sh": "false || return\nexport GOOD=1\n",
    "condition.sh": "export GOOD=1\n[ -f /nosuch ] && . /nosuch\n",  # as ~/.bashrc ends with fzf or nvm
    "noisy_condition.sh": "stty -a </dev/null\nexport GOOD=1\n[ -f /nosuch ] && . /nosuch\n# end\n",
    "block.sh": "export GOOD=1\nif true; then\n  [ -f /nosuch ] && . /nosuch\nfi\n",
    "nested_condition.sh": "cd /\n. {here}/condition.sh\n",
    "nested_absent.sh": ". /nosuch/env.sh\n",
    "if_false.sh": "if [ -f /nosuch ]; then echo; fi\n",
    "subshell.sh": "( exit 2 )\nexport GOOD=1\n",
    "module.sh": """
_module_raw() { eval "$(modulecmd "$@")"; _status=$?; return $_status; }
modulecmd() { case $2 in nosuch) echo 'ERROR: Unable to locate a modulefile' >&2; echo 'test 0 = 1;';;
                         *) echo "export GOOD=1; test 0;";; esac; }
module() { local silent=0; [ -n "$MODULES_SILENT" ] && silent=1; _module_raw "$@"; }
export -f module _module_raw modulecmd
""",
    "lmod.sh": """
lmod() { case $2 in nosuch) echo 'Lmod has detected the following error' >&2; echo 'false';;
                    *) echo 'export GOOD=1; false; true';; esac; }
module() { eval "$(lmod "$@")" && eval "$(: -s sh)"; }
""",
    "conda.sh": """
__conda_exe() ( case $2 in nosuch) echo 'EnvironmentNameNotFound: nosuch' >&2; exit 1;; esac
                echo 'export GOOD=1'; echo '. {here}/inner.sh' )
__conda_hashr() { hash -r; }
__conda_activate() { local ask; ask="$(PS1="$PS1" __conda_exe "$@")" || return; eval "$ask"; __conda_hashr; }
conda() { local cmd="${1-__missing__}"; case "$cmd" in activate) __conda_activate "$@" ;; *) __conda_exe "$@" ;; esac; }
if [ -z "${CONDA_SHLVL+x}" ]; then export CONDA_SHLVL=0; if [ -z "${PS1+x}" ]; then PS1=; fi; fi
""",
    "activate": ". {here}/conda.sh || return $?\nconda activate \"$@\"\n",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("{here}", str(tmp_path)))
    return tmp_path


def run(prelude: str, place: Path, **more: str) -> PreludeResult:
    return run_prelude(prelude, {"PATH": os.environ["PATH"], "HOME": str(place), **more}, str(place))


RUNS = [
    "source good.sh",
    ". ./good.sh",
    "source inner.sh",
    "source subshell.sh",
    "source if_false.sh; export GOOD=1",
    "export GOOD=1 X=$(false)",
    "export GOOD=1; [ -d /nosuch ] && echo; [ -d /nosuch ] || true; ! true",
    "if [ -d /nosuch ]; then :; elif ls /nosuch 2>/dev/null; then :; else export GOOD=1; fi",
    "while ls /nosuch 2>/dev/null; do :; done; until true; do :; done; export GOOD=1",
    "ls /nosuch 2>/dev/null | cat; export GOOD=1",
    "source nosuch.sh || export GOOD=1",
    "f() { false; ls /nosuch; export GOOD=1; }; f",
    "( false; true ); x=$(false; true); export GOOD=1",
    'eval "$(cat inner.sh)"',
    "source module.sh\nmodule load cuda",
    "source module.sh; module load nosuch || true; module load cuda",
    "source lmod.sh && module load cuda",
    "source conda.sh; conda activate env",
    "eval \"$(cat conda.sh)\"; conda activate env",
    "source ./activate env",
    "set -u; source good.sh",
    "set -E; f() { false; true; }; f; (false; true); source inner.sh",
    "mkdir -p made && cd $_ && export GOOD=${PWD##*/}",
    "sleep 1000 >/dev/null 2>&1 & export GOOD=1; kill $!",
    "export GOOD=1; trap 'echo bye' EXIT",
    "export GOOD=1; return 2>/dev/null || true",
    "export GOOD=1 \\",
    "export GOOD=1  # and a comment",
    'export GOOD=1; export BIG="$(head -c 100000 /dev/zero | tr "\\0" x)"',
]


@pytest.mark.parametrize("prelude", RUNS)
def test_a_prelude_that_runs(place: Path, prelude: str) -> None:
    found = run(prelude, place)
    assert (found.error, found.remarks) == ("", [])
    assert found.environment is not None and found.environment["GOOD"] in ("1", "made")
    assert [name for name in found.environment if "ALLRANKS" in name.upper()] == []


FAILS = [
    # prelude, line, code, the command, its words
    ("source nofile.sh", 1, 1, "source nofile.sh", "nofile.sh: No such file or directory"),
    ("export A=1\n\n. /nosuch/env.sh\nexport B=2", 3, 1, ". /nosuch/env.sh", "No such file or directory"),
    ("nosuchtool x", 1, 127, "nosuchtool x", "command not found"),
    ("module load cuda", 1, 127, "module load cuda", "command not found"),
    ("source module.sh\nmodule load nosuch", 2, 1, "module load nosuch", "Unable to locate a modulefile"),
    ("source lmod.sh; module load nosuch", 1, 1, "module load nosuch", "Lmod has detected"),
    ("source conda.sh; conda activate nosuch", 1, 1, "conda activate nosuch", "EnvironmentNameNotFound"),
    ('eval "$(cat conda.sh)" && conda activate nosuch', 1, 1, "conda activate nosuch", "EnvironmentNameNotFound"),
    ("source ./activate nosuch", 1, 1, "source ./activate nosuch", "EnvironmentNameNotFound"),
    ('eval "$(cat last_fails.sh)"', 1, 2, 'eval "$(cat last_fails.sh)"', "cannot access"),
    ("source returns.sh", 1, 3, "source returns.sh", "no such environment"),
    ("source returns_early.sh", 1, 1, "source returns_early.sh", ""),
    ("source returns_status.sh", 1, 1, "source returns_status.sh", ""),
    ("source last_fails.sh", 1, 2, "source last_fails.sh", "cannot access"),
    ("source nested_absent.sh", 1, 1, "source nested_absent.sh", "/nosuch/env.sh: No such file"),
    ("cd /nosuch", 1, 1, "cd /nosuch", "No such file or directory"),
    ("true && ls /nosuch", 1, 2, "ls /nosuch", "cannot access"),
    ("for d in 1 2; do ls /nosuch; done; export GOOD=1", 1, 2, "ls /nosuch", "cannot access"),
    ("( exit 4 )", 1, 4, "( exit 4 )", ""),
    ("true; ( exit 4 )", 1, 4, "( exit 4 )", ""),
    ("x=$(exit 6)", 1, 6, "x=$(exit 6)", ""),
    ("f() { return 7; }\nf a b", 2, 7, "f a b", ""),
    ("true | ls /nosuch", 1, 2, "ls /nosuch", "cannot access"),
    ("[ -d /nosuch ]", 1, 1, "[ -d /nosuch ]", ""),
]


@pytest.mark.parametrize(("prelude", "line", "code", "command", "said"), FAILS, ids=[f[0] for f in FAILS])
def test_a_prelude_that_fails(place: Path, prelude: str, line: int, code: int, command: str, said: str) -> None:
    found = run(prelude, place)
    assert found.environment is None
    sentence, _, words = found.error.partition("\n")
    assert sentence == f"line {line} of the prelude ended with code {code}: {command}"
    assert said in words


@pytest.mark.parametrize("name", ["condition.sh", "noisy_condition.sh", "block.sh", "nested_condition.sh"])
def test_a_file_whose_last_line_is_a_condition_counts_as_done(place: Path, name: str) -> None:
    found = run(f"source {name}", place)
    assert found.environment is not None and found.environment["GOOD"] == "1"
    (remark,) = found.remarks
    assert remark.splitlines()[0] == f"line 1 of the prelude ended with code 1: source {name}"


@pytest.mark.parametrize(
    ("prelude", "code", "said"),
    [("echo nope >&2; exit 3", 3, "nope"), ("exit 0", 0, ""), ("echo only; exit 5", 5, "only"),
     ("if true", 2, "syntax error"), ("set -e; source inner.sh", 1, "")],
)  # fmt: skip
def test_a_prelude_that_ends_its_shell(place: Path, prelude: str, code: int, said: str) -> None:
    found = run(prelude, place)
    assert found.environment is None
    assert found.error.startswith(f"the prelude ended with code {code} before its environment could be read")
    assert said in found.error


def test_a_prelude_that_hangs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preludes, "SECONDS", 0.5)
    found = run("echo waiting for the licence server >&2; sleep 1000 & wait", place)
    assert found.environment is None
    assert found.error == "the prelude did not finish within 0.5 s\nwaiting for the licence server"


def test_a_program_left_in_the_background_holds_nothing_up(place: Path) -> None:
    """It keeps the prelude's pipes open."""
    found = run("sleep 1000 & export GOOD=$!", place)
    assert found.environment is not None
    os.kill(int(found.environment["GOOD"]), 9)


def test_endless_output_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preludes, "SECONDS", 0.5)
    assert len(run("yes 0123456789", place).error) < 2 * preludes.TAIL


def test_exported_functions_are_there_and_stay(place: Path) -> None:
    """Environment Modules and Lmod export `module`; RHEL exports `which`."""
    function = "() {  [ $2 = cuda ] && export GOOD=1\n}"
    found = run("module load cuda", place, **{"BASH_FUNC_module%%": function})
    assert found.environment is not None
    assert (found.environment["GOOD"], found.environment["BASH_FUNC_module%%"]) == ("1", function)
    assert run("module load other", place, **{"BASH_FUNC_module%%": function}).environment is None


def test_a_path_without_bash(place: Path) -> None:
    found = run("export GOOD=1", place, PATH="/nosuch")
    assert found.environment is None
    assert found.error == "--prelude needs bash, which is not on PATH of this node"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_boot_script_saves_exported_functions(place: Path, shell: str) -> None:
    """dash drops what it cannot name; the agent's own interpreter gets it back."""
    functions = {"BASH_FUNC_module%%": "() {  echo \"it's $1\"\n}", "BASH_FUNC_ml%%": "() {  module ml\n}"}
    script = boot_script(sys.executable, None).decode()
    look = "import json, os\nfrom allranks.agent.boot import _restore_functions\n_restore_functions()\n"
    boot = place / "boot.py"
    boot.write_text(f"import sys\nsys.path[:0] = {sys.path!r}\n{look}print(json.dumps(dict(os.environ)))\n")
    script = script.replace('exec "$p" -I -S -c "$b"', f'exec "$p" {boot}')
    done = subprocess.run([shell, "-s"], input=script, env={"PATH": os.environ["PATH"], **functions},
                          capture_output=True, text=True, check=True)  # fmt: skip
    environment = json.loads(done.stdout)
    assert {name: environment[name] for name in functions} == functions
    assert "ALLRANKS_FUNCTIONS" not in environment
