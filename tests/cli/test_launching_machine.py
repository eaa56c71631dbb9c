"""allranks on a machine that is not Linux: what reads works, what starts or ends runs is refused in a sentence.

There is no macOS here. A Python without the names that only Linux has stands in for its: `sys.platform`, functions of
`os`, `signal`, `socket` and `select` (each marked "Availability: Linux" in Python's documentation), and no /proc.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.waiting import BOUND

from allranks.cli.main import LINUX_ONLY, VERBS

pytestmark = pytest.mark.processes

LIKE_MACOS = """
import builtins, ctypes, os, select, signal, socket, sys
import asyncio, multiprocessing, subprocess, sysconfig, zoneinfo  # the standard library chose its parts already
sysconfig.get_config_vars()
sys.modules["torch"] = None  # a launching machine needs none
sys.platform = "darwin"
os.uname = lambda uname=os.uname: os.uname_result(("Darwin", *tuple(uname())[1:]))
for module, names in (
    (os, "sched_getaffinity sched_setaffinity memfd_create pidfd_open eventfd posix_fallocate O_PATH O_TMPFILE "
         "copy_file_range splice setns unshare getrandom waitid_pidfd P_PIDFD"),
    (signal, "pidfd_send_signal sigtimedwait SIGRTMIN SIGRTMAX SIGSTKFLT SIGPWR SIGPOLL SIGCLD"),
    (socket, "AF_NETLINK AF_VSOCK AF_ALG SO_PEERCRED SO_BINDTODEVICE SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT "
             "SO_DOMAIN SO_PROTOCOL TCP_KEEPIDLE"),
    (select, "epoll EPOLLIN"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
loaded = ctypes.CDLL
class Library(loaded):
    def __getattr__(self, name):
        if name in ("prctl", "setns", "unshare", "inotify_init"):
            raise AttributeError(name + ": symbol not found")
        return super().__getattr__(name)
ctypes.CDLL = Library
real_open, real_readlink, real_listdir = builtins.open, os.readlink, os.listdir
def refuse(call):
    def wrapped(path=".", *args, **options):
        if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *args, **options)
    return wrapped
builtins.open, os.readlink, os.listdir = refuse(real_open), refuse(real_readlink), refuse(real_listdir)
"""
IMPORT_ALL = """
import importlib, pkgutil, allranks
for found in pkgutil.walk_packages(allranks.__path__, "allranks."):
    if found.name.startswith("allranks.agent.") or found.name.endswith("__main__"):
        continue  # what ships to the nodes, which are Linux
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        if not str(error.name).startswith(("torch", "_scproxy")):  # urllib's own of macOS, for prometheus-client
            raise
"""
RUN = "import sys; sys.argv[0] = 'allranks'; from allranks.cli.main import main; main()"
# Each of several commands in turn, in one interpreter; their exit codes and what they write as one document.
IN_TURN = """
import contextlib, io, json, sys
sys.argv[0] = "allranks"
from allranks.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    sys.argv[1:] = words
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


REFUSAL = (
    "allranks: `allranks {}` needs Linux, and this machine is macOS. Start it on a login node, or in a Linux "
    "container\n"
)


def python(code: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", LIKE_MACOS + code, *words]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, timeout=BOUND, check=False)


def test_every_module_of_the_launching_machine_is_imported() -> None:
    ran = python(IMPORT_ALL)
    assert ran.returncode == 0, ran.stderr[-2000:]


def in_turn(commands: list[list[str]], place: Path) -> list[list[Any]]:
    """Exit code, standard output and standard error of each command."""
    ran = python(IN_TURN, json.dumps(commands), cwd=place)
    assert ran.returncode == 0, ran.stderr[-2000:]
    answers: list[list[Any]] = json.loads(ran.stdout)
    assert len(answers) == len(commands)
    return answers


def test_what_starts_or_ends_runs_is_refused_in_a_sentence(tmp_path: Path) -> None:
    answers = in_turn([[verb, "--hosts", "h1,h2", "--", "train.py"] for verb in LINUX_ONLY], tmp_path)
    assert answers == [[2, "", REFUSAL.format(verb)] for verb in LINUX_ONLY]
    assert list(tmp_path.iterdir()) == []


def test_the_refusal_is_a_json_document() -> None:
    ran = python(RUN, "run", "--json", "--hosts", "h1", "--", "train.py")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["exit"]) == (2, 2) and "needs Linux" in document["error"]


def test_every_verb_has_its_help(tmp_path: Path) -> None:
    answers = in_turn([[verb, "--help"] for verb in VERBS], tmp_path)
    failed = {v: answer for v, answer in zip(VERBS, answers, strict=True) if answer[0] != 0 or v not in answer[1]}
    assert failed == {}


def test_logs_are_diagnosed_and_files_rendered(tmp_path: Path) -> None:
    line = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    (tmp_path / "rank_0.log").write_text("Traceback (most recent call last):\n" + line * 200_000)
    in_parts = "from allranks.runs import logdiagnosis; logdiagnosis.PART = 1 << 20\n"  # as larger logs are
    ran = python(in_parts + RUN, "diagnose", "--json", "rank_0.log", cwd=tmp_path)
    assert json.loads(ran.stdout)["id"] == "cuda-out-of-memory", ran.stderr[-2000:]
    words = ["kubernetes", "--nodes", "2", "--nproc", "1", "--image", "x", "--", "t.py"]
    ran = python(RUN, "render", *words, cwd=tmp_path)
    assert ran.returncode == 0 and "kind: " in ran.stdout, ran.stderr[-2000:]
    ran = python(RUN, "data", "plan", "--help", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
