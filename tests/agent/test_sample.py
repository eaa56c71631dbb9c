"""Looks at ranks whose interpreter's lock is held by native code: what they show, and that they change nothing."""

import os
import select
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner import RUNNER
from tests.hosts.waiting import wait_until

from allranks.agent.processes import Process, read_process, stat_fields
from allranks.agent.sample import helper_thread, sample
from allranks.diagnose.hangs.doing import ActivityKind, doing, read_sample
from allranks.protocol.node_names import NodeFiles

pytestmark = pytest.mark.processes

# What a rank gets with its first process group: the thread that answers; and `slow`, C code that keeps the lock.
PROGRAM = """
import os, sys, types
sys.path.insert(0, os.environ["PLACE"])
import slow
if "helper" in sys.argv:
    names = {"__name__": "__main__"}
    with open(os.path.join(os.environ["NODE"], "runner_recorder.py")) as file:
        exec(compile(file.read(), "<allranks importlib._bootstrap>", "exec"), names)
    world = types.SimpleNamespace(pg_names={}, pg_group_ranks={})
    known = types.SimpleNamespace(ask=os.environ["ALLRANKS_ASK_SOCKET"], rank=0, pid=os.getpid())
    names["start"](types.SimpleNamespace(_world=world), known, lambda: None, lambda: ([], []))
def step():
    print("going", flush=True)
    print("left", getattr(slow, sys.argv[1])(600), flush=True)
step()
"""
SLOW = r"""
#include <Python.h>
#include <unistd.h>
#include <time.h>
static PyObject *snooze(PyObject *self, PyObject *args) {
    int seconds;
    if (!PyArg_ParseTuple(args, "i", &seconds)) return NULL;
    return PyLong_FromLong(sleep(seconds));  /* what is left when a signal has ended it */
}
static PyObject *spin(PyObject *self, PyObject *args) {
    int seconds;
    if (!PyArg_ParseTuple(args, "i", &seconds)) return NULL;
    for (time_t end = time(0) + seconds; time(0) < end;)
        for (volatile int i = 0; i < 100000000; i++) {}
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"snooze", snooze, METH_VARARGS, ""}, {"spin", spin, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "slow", "", -1, methods};
PyMODINIT_FUNC PyInit_slow(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiled module `slow` lies."""
    if shutil.which("gcc") is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no compiler, or no headers of Python")
    place = tmp_path_factory.mktemp("slow")
    (place / "slow.c").write_text(SLOW)
    target = place / f"slow{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", str(place / "slow.c"), "-o", str(target)], check=True)
    return place


class Rank:
    """A rank's process under the runner, in native code."""

    def __init__(self, place: Path, extension: Path, *words: str) -> None:
        self.place = place
        (place / "train.py").write_text(PROGRAM)
        environment = {**os.environ, "PLACE": str(extension), "NODE": str(RUNNER.parent), "RANK": "0",
                       "ALLRANKS_STACKS_FILE": NodeFiles(str(place)).stacks(0),
                       "ALLRANKS_ASK_SOCKET": NodeFiles(str(place)).asked(0)}  # fmt: skip
        self.popen = subprocess.Popen(
            [sys.executable, str(RUNNER), "train.py", *words], env=environment, cwd=place, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "going\n"
        process = read_process(self.popen.pid)
        assert process is not None
        self.process: Process = process
        state = "S" if words[0] == "snooze" else "R"
        wait_until(lambda: stat_fields(process.pid)[0] == state, 60, "in the C function")

    def look(self, word: str, signalled: frozenset[int] = frozenset()) -> dict[str, Any]:
        look: dict[str, Any] = sample({0: self.process}, str(self.place), word, signalled).ranks[0]
        return {**look, "sent": [0] if look.get("signalled") else []}

    def is_undisturbed(self) -> bool:
        """It runs, and has not come out of the C function."""
        return self.popen.poll() is None and not select.select([self.popen.stdout], [], [], 0)[0]


@pytest.fixture
def start(tmp_path: Path, extension: Path) -> Iterator[Any]:
    ranks: list[Rank] = []

    def begin(*words: str) -> Rank:
        ranks.append(Rank(tmp_path, extension, *words))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.popen.kill()
        rank.popen.communicate()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these ranks answers."""
    monkeypatch.setattr("allranks.agent.asking.SECONDS", 1.0)


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on nodes on which nothing is installed."""
    monkeypatch.setattr("allranks.agent.sample._py_spy_tool", lambda pid: None)


def judged(rank: Rank, first: dict[str, Any], second: dict[str, Any]) -> Any:
    return doing(read_sample(0, first), read_sample(0, second), 4.0)


def test_native_code_that_sleeps_is_named_and_sleeps_on(start: Any) -> None:
    """By py-spy: the Python line, the function below it and its library."""
    rank = start("snooze", "helper")
    first, second = rank.look("look"), rank.look("dump")
    found = judged(rank, first, second)
    assert found.kind is ActivityKind.ELSEWHERE and str(found.at) == "train.py:14 in step"
    assert found.why.startswith("not answering, in native code: snooze (slow."), found.why
    assert [look["sent"] for look in (first, second)] == [[], []] and rank.is_undisturbed()


def test_without_py_spy_the_helper_thread_takes_the_stack(start: Any, no_py_spy: None) -> None:
    """The signal goes to a thread that sleeps for us: the program's own does not wake."""
    rank = start("snooze", "helper")
    wait_until(lambda: helper_thread(rank.process.pid) not in (None, rank.process.pid), what="the helper sleeps")
    first, second = rank.look("look"), rank.look("dump")
    assert "text" not in first, "a first look sends nothing"
    found = judged(rank, first, second)
    assert found.kind is ActivityKind.ELSEWHERE and str(found.at) == "train.py:14 in step"
    assert found.why == "not answering, in native code: sleeping"
    for _ in range(3):
        rank.look("dump")
    assert second["sent"] == [] and rank.is_undisturbed()


def test_native_code_that_computes_is_busy(start: Any) -> None:
    rank = start("spin", "helper")
    first = rank.look("look")
    time.sleep(1)  # of its CPU
    second = rank.look("dump")
    found = judged(rank, first, second)
    assert found.kind is ActivityKind.BUSY and found.why.startswith("not answering, in native code: spin (slow."), found
    assert rank.is_undisturbed()


def test_the_process_itself_is_signalled_last_and_once(start: Any, no_py_spy: None) -> None:
    rank = start("snooze")
    assert "text" not in rank.look("look") and rank.is_undisturbed()
    assert "text" not in rank.look("dump", frozenset({0})) and rank.is_undisturbed(), "it had its signal"
    found = rank.look("dump")
    assert found["sent"] == [0] and "in step" in found["text"]
    assert rank.popen.stdout is not None and rank.popen.stdout.readline().startswith("left ")
