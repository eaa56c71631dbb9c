"""What a verb loads before it does anything: `status` is asked for every second, and a start is waited for."""

import subprocess
import sys

import pytest

from allranks.cli.main import VERBS

pytestmark = pytest.mark.processes

# Modules that a verb must not load at its start, by prefix.
PAGES = ("yaml", "jinja2", "numpy")
RUNS = ("asyncio", "allranks.gang", "allranks.diagnose", "allranks.engines", *PAGES)
SHORT = (*RUNS, "allranks.plan", "allranks.agent", "ctypes", "shutil", "socket")
HEAVY = {
    "logs": RUNS,
    "status": (*SHORT, "allranks.protocol.messages", "allranks.report.live", "allranks.report.fold",
               "allranks.cluster.hostfile", "allranks.cluster.slurm_allocation", "lzma"),
    "ps": (*SHORT, "allranks.protocol.messages", "allranks.report"),
    "top": (*SHORT, "allranks.report.live"),
    "attach": RUNS,
    "stop": RUNS,
    "diagnose": ("asyncio", "allranks.gang", "multiprocessing", "concurrent", *PAGES),
    "run": ("allranks.diagnose.rules", "allranks.diagnose.logs", "allranks.engines.kubernetes",
            "allranks.engines.skypilot", "allranks.plan.render", *PAGES),
}  # fmt: skip
# The first names the engines, and imports one when a run needs it; agent/files.py opens what may have been replaced.
# The others are loaded with every command line.
LIGHT = {"allranks.engines", "allranks.agent", "allranks.agent.files", "allranks.report", "allranks.report.terminal",
         "allranks.report.runtable"}  # fmt: skip


def loaded_by(code: str, *words: str) -> set[str]:
    """The modules that an interpreter has loaded after this code."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint()\nprint(*sys.modules)", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_load_neither_torch_nor_the_option_parser(word):
    code = "import contextlib\nfrom allranks.cli.main import main\nwith contextlib.suppress(SystemExit):\n    main()"
    assert not loaded_by(code, word) & {"torch", "typer", "click", "rich"}


def test_a_runs_directory_is_read_without_the_forms_of_secrets(tmp_path):
    code = "from allranks.cli.main import run_verb; run_verb('status', sys.argv[1:])"
    loaded = loaded_by(code, "--runs-dir", str(tmp_path))
    assert "allranks.settings.layers" in loaded
    assert "allranks.settings.secretforms" not in loaded


@pytest.mark.parametrize("verb", HEAVY)
def test_a_verb_loads_what_it_needs(verb):
    loaded = loaded_by(f"import sys, allranks.cli.{verb}")
    assert f"allranks.cli.{verb}" in loaded
    assert [m for m in loaded - LIGHT if any(m == h or m.startswith(h + ".") for h in HEAVY[verb])] == []


def test_a_controller_loads_no_rules_before_it_judges():
    """Rules and signatures take 60 ms, which each start would pay."""
    loaded = loaded_by("import allranks.engines.controlled")
    assert "allranks.gang.running" in loaded
    rules = ("allranks.diagnose.rules", "allranks.diagnose.logs", "allranks.diagnose.signatures")
    assert [module for module in loaded if module.startswith(rules)] == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_loads_no_module_that_does_the_work(verb):
    """`--help`, and what a shell completes, take the declarations alone: 0.14 s of processor time, not 0.5 s."""
    modules = loaded_by(f"from allranks.cli.main import run_verb; run_verb({verb!r}, ['--help'])")
    assert "allranks.cli.commands" in modules
    works = {f"allranks.cli.{name}" for name in VERBS}
    assert not modules & {*works, "asyncio", "rich", "yaml", "jinja2", "allranks.agent.processes", "allranks.diagnose"}
