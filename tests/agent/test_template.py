"""Ranks from a template: equal to ranks that are started, or not from it at all.

tests/agent/test_runner.py runs its programs through a template too (slow)."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner import HERE, copy_runner
from tests.hosts.waiting import BOUND

from allranks.agent import runner_template
from allranks.agent.forking import difference, sees_devices
from allranks.protocol.node_names import OWN_NAMES

pytestmark = pytest.mark.processes

FACTS = """
import json, os, random, resource, signal, subprocess, sys

def kind(fd):
    path = "/proc/self/fd/" + fd
    return os.path.lexists(path) and os.readlink(path).rstrip("0123456789[]")

print(json.dumps({
    "argv": sys.argv, "original": getattr(sys, "orig_argv", None), "path": sys.path,
    "environment": dict(os.environ), "shell": subprocess.run("env | sort", shell=True, stdout=subprocess.PIPE).stdout,
    "command": open("/proc/self/cmdline").read(), "name": open("/proc/self/comm").read(),
    "files": {n: kind(n) for n in os.listdir("/proc/self/fd") if int(n) < 960},
    "limits": [resource.getrlimit(n) for n in range(16)], "place": os.getcwd(), "mask": os.umask(0),
    "leads": os.getsid(0) == os.getpgrp() == os.getpid(), "affinity": sorted(os.sched_getaffinity(0)),
    "policy": [os.sched_getscheduler(0), os.nice(0)], "oom": open("/proc/self/oom_score_adj").read(),
    "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "caught": [line for line in open("/proc/self/status") if line.startswith(("Sig", "Shd"))][1:],
    "threads": len(os.listdir("/proc/self/task")), "modules": sorted(m for m in sys.modules if m != "json"),
}, default=str))
"""


DEFAULT_SIGNALS = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The runner, and a directory of installed packages."""
    copy_runner(tmp_path / "agent")
    (tmp_path / "site-packages").mkdir()
    return tmp_path


def run(place: Path, program: str, modules: Any = None, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a program as a rank; of a template where `modules` are named: one installed in `place`, or their files."""
    (place / "program.py").write_text(program)
    command = [sys.executable, str(place / "agent/runner.py"), "program.py", "one", "two"]
    files = {modules: f"{place}/site-packages/{modules}.py"} if isinstance(modules, str) else modules or {}
    driver = [sys.executable, str(HERE / "through_template.py"), ",".join(map("=".join, files.items()))]
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(place / "site-packages"), "PYTHONHASHSEED": "0", "RANK": "3",
        "LOCAL_RANK": "1", "ALLRANKS_STACKS_FILE": str(place / "stacks"), **more,
    }  # fmt: skip
    return subprocess.run(  # by a process that ignores nothing: an agent's rank gets signals as they are by default
        [sys.executable, "-c", DEFAULT_SIGNALS, *(command if modules is None else [*driver, *command])],
        cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND,
        start_new_session=True,
    )  # fmt: skip


def install(place: Path, **modules: str) -> None:
    for name, text in modules.items():
        (place / "site-packages" / f"{name}.py").write_text(text)


def test_a_forked_rank_has_all_that_a_started_one_has(place: Path) -> None:
    install(place, library="value = 1\n")
    started, forked = (json.loads(run(place, FACTS, modules).stdout) for modules in (None, "library"))
    assert [name for name in forked["modules"] if name not in started["modules"]] == ["library"]
    del started["modules"], forked["modules"]
    assert forked == started
    assert forked["leads"] and forked["environment"]["RANK"] == "3"


UNFIT = {
    "import os\nrank = os.environ.get('LOCAL_RANK')": "library reads LOCAL_RANK when it is imported",
    "import os\nrank = os.getenv('RANK')": "library reads RANK when it is imported",
    "import os\nhas = 'MASTER_PORT' in os.environ": "library reads MASTER_PORT when it is imported",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "a Python thread",
    "file = open(__file__)": "leaves %s/site-packages/library.py open",
    "import os\nos.chdir('/')": "changes the working directory",
    "import subprocess\nprocess = subprocess.Popen(['sleep', '60'])": "starts a process",
    "print('hello')": "what it imports prints: hello",
    "raise ValueError": "import library raises ValueError",
    "import os\nos._exit(3)": "the process that imports ended",
    "import mine": "an installed package imports your %s/mine.py",
    "import sys; sys.modules[__name__].__spec__.origin = '/elsewhere'": "the ranks have it from",
}


@pytest.mark.parametrize(("library", "why"), UNFIT.items(), ids=UNFIT.values())
def test_no_rank_is_forked_where_the_program_would_notice(place: Path, library: str, why: str) -> None:
    install(place, library=library)
    (place / "mine.py").write_text("")
    ended = run(place, "print('the program ran')", "library")
    assert ended.returncode == 1
    assert ended.stderr.startswith("off: ") and (why.replace("%s", str(place))) in ended.stderr
    assert "the program ran" not in ended.stdout


def test_the_open_file_of_a_mapped_library_keeps_no_rank_from_being_forked(place: Path) -> None:
    """As libffi keeps its own one where it maps its callbacks from there."""
    mapped = "next(line.split()[-1] for line in open('/proc/self/maps') if 'libc.so' in line and ' r-xp ' in line)"
    install(place, library=f"import os\nfd = os.open({mapped}, os.O_RDONLY)")
    ended = run(place, "import library, os\nprint(os.readlink('/proc/self/fd/%d' % library.fd))", "library")
    assert (ended.returncode, ended.stderr) == (0, "") and "libc.so" in ended.stdout


def test_random_numbers_of_each_rank_are_its_own(place: Path) -> None:
    """numpy draws its seed when it is imported, as torch does (tests/local/test_template.py)."""
    program = "import numpy, random\nprint(numpy.random.random(), random.random())"
    specs = {name: find_spec(name) for name in ("numpy", "numpy.random", "random")}
    files = {name: spec.origin for name, spec in specs.items() if spec is not None}
    ended = run(place, program, files, RANKS="2")
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert len(lines) == 2, ended.stderr
    assert not set(lines[0]) & set(lines[1])


def test_standard_error_stays_where_no_thread_can_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise BlockingIOError("no more processes")

    held = sys.stderr
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        runner_template.check_threads()
    assert sys.stderr is held


def test_an_environment_that_differs_is_named() -> None:
    common = {"OMP_NUM_THREADS": "1", "PATH": "/bin"}
    own = dict.fromkeys(OWN_NAMES, "x")
    assert difference(common, {**common, **own}) == ""
    assert difference(common, {**common, "OMP_NUM_THREADS": "2"}) == "OMP_NUM_THREADS"
    assert difference(common, {"OMP_NUM_THREADS": "1"}) == "PATH"
    assert difference(common, {**common, "NCCL_IB_HCA": "mlx5"}) == "NCCL_IB_HCA"


def test_ranks_that_see_a_device_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sees_devices({})
    monkeypatch.setattr("allranks.agent.forking.DEVICES", ("/dev/null",))
    assert sees_devices({}) and sees_devices({"CUDA_VISIBLE_DEVICES": "0"})
    assert not sees_devices({"CUDA_VISIBLE_DEVICES": ""})
