"""The runner is invisible: programs are run by plain Python and through the runner, and nothing may differ.

Compared are stdout and stderr as one stream (so their order too), and the exit status. The features are
switched on by the environment in both runs, so that os.environ is equal as well. With ALLRANKS_TEST_PYTHONS
(tests/interpreters.py) every interpreter is taken, else oldest and newest, and in the slow tests the tests' own."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.waiting import BOUND
from tests.interpreters import GIVEN, interpreters

from allranks.protocol.command_words import read_command

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent
RUNNER = HERE.parent.parent / "src/allranks/agent/runner.py"


def chosen(usable: list[str]) -> list[Any]:
    """The oldest and the newest; the tests' own, where it lies between them, repeats what those show."""
    if GIVEN:
        return usable
    ends = sorted({usable[0], usable[-1]}, key=usable.index)
    own = pytest.param(sys.executable, marks=pytest.mark.slow)
    return ends if sys.executable in ends else [*ends, own]


PYTHONS = chosen(list(interpreters().values()))


def copy_runner(place: Path) -> None:
    """Make a directory with the runner, as a node's is."""
    place.mkdir()
    for path in RUNNER.parent.glob("runner*.py"):
        shutil.copy(path, place / path.name)


@contextlib.contextmanager
def reported(path: Path) -> Iterator[list[dict[str, Any]]]:
    """What is said at a socket of the agent, in a list that is filled at the end of the block."""
    said: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.setblocking(False)
        yield said
        with contextlib.suppress(BlockingIOError):
            while True:
                said.append(json.loads(channel.recv(65536)))
    path.unlink()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the programs, with the forms of a program that cannot lie in a repository."""
    place = tmp_path_factory.mktemp("runner")
    work = place / "work"
    shutil.copytree(HERE / "programs", work, ignore=shutil.ignore_patterns("__pycache__"))
    copy_runner(place / "agent")
    with zipfile.ZipFile(work / "app.zip", "w") as archive:
        archive.write(work / "app/__main__.py", "__main__.py")
    packed = (work / "app.zip").read_bytes()
    (work / "app.pex").write_bytes(b"#!/usr/bin/env python3\n" + packed)
    (work / "empty").mkdir()
    (work / "link.py").symlink_to("shadow/shadow.py")
    (work / "café ü.py").write_text("print(__file__)\nraise ValueError('é')\n")
    for name, data in BROKEN.items():
        (work / name).write_bytes(data)
    return place


BROKEN = {
    "syntax.py": b"print('never')\n\ndef f(:\n    pass\n",
    "indent.py": b"if True:\n    a = 1\n  b = 2\n",
    "unclosed.py": b"a = (1,\n'text\n",
    "latin.py": b"print('never')\nname = 'caf\xe9'\n",
    "cookie_unknown.py": b"# coding: nonsense\nprint(1)\n",
    "nul.py": b"print('a')\nb = 'x\0y'\nprint('c')\n",
    "warn_only.py": b"a = '\\d' + '\\q'\nprint(a is 'x')\n",
    "warn_broken.py": b"a = '\\d'\nb = a is 'x'\nreturn 3\n",
    "return.py": b"print('never')\nreturn 3\n",
    "empty.py": b"",
    "sibling_broken.py": b"import syntax\n",
    "pkg/wrong.py": b"x = = 3\n",
    "no_extension": b"import sys\nprint(__file__, sys.argv)\nraise ValueError\n",
    "form\xe9.py": b"\x0cprint('form feed')\n",
    "cookie.py": b"# -*- coding: latin-1 -*-\nprint(ascii('caf\xe9'))\nraise ValueError('caf\xe9')\n",
    "bom.py": b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\nraise ValueError('\xc3\xa9')\n",
    "crlf.py": b"print('dos')\r\nraise ValueError(\r\n    'lines'\r\n)\r\n",
    "broken.pyc": b"nothing that Python compiled",
}

IDENTITY = "identity.py one --two 'three four' -m -- x"
RAISING = ["plain", "outer", "context", "again", "inner", "noted", "group", "exits", "mute", "nested"]
RAISING += ["endless", "evaluated", "imports"]
LEAVING = ["'the text'", "3", "None", "0", "True", "-1", "256", "2.5", "'é\\udc80'", "(1, 'tuple')", "'a\\nb'"]
ENDING = ["end", "hard", "aborted", "interrupted", "interrupt_class", "interrupted_loop", "terminated", "handled"]
ENDING += ["thread_fails", "thread_exits", "thread_outlives", "fork_fails", "fork_ends", "stdout_closed"]
ENDING += ["stderr_gone", "absent"]
HOOKS = [f"hooks.py {name}" for name in ("default", "own", "broken", "leaves", "none")]
WITH_FLAGS = [
    ("-u -X dev -W error::UserWarning -X allranks=1", IDENTITY),
    ("-I", IDENTITY),
    ("-E -s -B -O", IDENTITY),
    ("-OO", "looking.py"),
    ("-S", "pickling.py"),
    ("-O -u", "flags.py"),
    ("-b -X dev", "flags.py"),
    ("-bb", "flags.py"),
    ("-X dev -W error", "raising.py plain"),
    ("-I", "shadow/shadow.py"),
    ("-W ignore", "warned.py"),
    ("-u", "leaving.py \"'unbuffered'\""),
    ("-u -X dev", "-m pkg.inner.tool"),
    ("-u", "-m pkg text"),
    ("-I", "app"),
    ("-W error", "warn_only.py"),
    ("-W always", "warn_broken.py"),
    ("-X dev", "warn_only.py"),
]
SCRIPTS = [IDENTITY, "./" + IDENTITY, "pkg/../" + IDENTITY, "shadow/shadow.py", "link.py", "pickling.py"]
SCRIPTS += ["workers.py spawn forkserver fork", "warned.py", "looking.py", "collected.py", "collected.py fail"]
SCRIPTS += ["again.py", "'café ü.py'", *(f"raising.py {name}" for name in RAISING)]
SCRIPTS += ["leaving.py " + shlex.quote(value) for value in LEAVING]
SCRIPTS += [*(f"ending.py {name}" for name in ENDING), *HOOKS]
MODULES = ["pkg.inner.tool a -b --c=d", "pkg", "pkg text", "pkg.broken", "pkg.wrong", "pkg.none", "pkg.inner"]
MODULES += ["none.at.all", "pkg.inner.tool.py", ".relative", "identity one", "json.tool absent.json"]
MODULES += ["timeit -n 1 -r 1 -s 'import sys' 'print(sys.argv, __name__); sys.exit(5)'"]
MODULES += ["warned", "looking", "collected", "pickling", "again", *(f"raising {name}" for name in RAISING)]
MODULES += ["leaving " + shlex.quote(value) for value in LEAVING]
MODULES += [*(f"ending {name}" for name in ENDING), *(hook.replace(".py", "") for hook in HOOKS)]
OTHERS = ["app a b", "./app/", "app.zip a b", "empty", "absent.py", "absent/absent.py a", "identity.py/absent"]
OTHERS += [name for name in BROKEN if name.isascii() and not name.startswith("pkg")]
OTHERS += ["-c 'import sys; print(sys.argv, __name__)' a", "- a", "", "-m"]
CASES = [*WITH_FLAGS, *(("", words) for words in [*SCRIPTS, *(f"-m {name}" for name in MODULES), *OTHERS])]


def environment(place: Path) -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
    return {
        **{name: os.environ[name] for name in names if name in os.environ},
        "TORCHELASTIC_ERROR_FILE": str(place / "error.json"),
        "ALLRANKS_STACKS_FILE": str(place / "stacks"),
        "ALLRANKS_REPORT_SOCKET": str(place / "socket"),
        "ALLRANKS_PG_TIMEOUT": "3",
        "PYTHONHASHSEED": "0",
        "RANK": "0",
    }


def _as_ranks_start() -> None:
    """Restore what nohup has set for the tests: an agent gives its ranks this signal's default (rank_start.py)."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def outcome(place: Path, command: list[str], **more: str) -> tuple[int, list[str]]:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    own = {**environment(place), **more}
    done = subprocess.run(
        command, cwd=place / "work", env=own, timeout=BOUND, preexec_fn=_as_ranks_start, **streams
    )
    text = done.stdout.decode("utf-8", "backslashreplace")
    # Addresses, threads, workers, and the depth of an endless recursion: the runner takes two frames of it.
    for pattern in (r"0x[0-9a-f]+", r"(?<=started )\d+", r"(?<=PoolWorker-)\d+", r"(?<=repeated )\d+"):
        text = re.sub(pattern, "…", text)
    return done.returncode, text.splitlines()


def name_of(path: str) -> str:
    return "py" + re.sub(r".*/versions/([0-9]+\.[0-9]+).*", r"\1", path) if "/versions/" in path else "own"


def outcomes() -> Iterator[Any]:
    """Each case with each Python; outside of the slow tests with one of them, a script and the same as a module with
    another.
    """
    unmarked = [python for python in PYTHONS if isinstance(python, str)]
    for flags, program in CASES:
        subject = program.removeprefix("-m ").replace(".py", "")
        chosen_one = unmarked[(sum(subject.encode()) + program.startswith("-m")) % len(unmarked)]
        for python in PYTHONS:
            path = python if isinstance(python, str) else python.values[0]
            marks = [] if GIVEN or python == chosen_one else [pytest.mark.slow]
            yield pytest.param(flags, program, path, marks=marks, id=f"{flags} {program}-{name_of(path)}")


@pytest.mark.parametrize(("flags", "program", "python"), list(outcomes()))
def test_outcome_is_that_of_plain_python(place: Path, flags: str, program: str, python: str) -> None:
    before, after = [python, *shlex.split(flags)], shlex.split(program)
    if program.startswith("-m") and name_of(python) == "py3.8":
        before.append("-u")  # 3.8 buffers stderr too, and under -m alone it flushes it after stdout
    plain = outcome(place, [*before, *after])
    through = outcome(place, [*before, str(place / "agent/runner.py"), *after])
    assert through == plain


@pytest.mark.slow  # tests/agent/test_template.py has some of them among the quick ones
@pytest.mark.parametrize(("flags", "program", "python"), list(outcomes()))
def test_outcome_through_a_template_is_that_of_plain_python(place: Path, flags: str, program: str, python: str) -> None:
    before, after = [python, *shlex.split(flags)], shlex.split(program)
    if read_command([*before, *after]).kind not in ("python-script", "python-module"):
        pytest.skip("never forked: plan.forbids_template")
    if name_of(python) == "py3.8" and "-X dev" in flags:
        pytest.skip("never forked: it crashes after any fork (agent/runner_template.py)")
    if program.startswith("-m") and name_of(python) == "py3.8":
        before.append("-u")
    command = [*before, str(place / "agent/runner.py"), *after]
    forked = outcome(place, [sys.executable, "-s", str(HERE / "through_template.py"), "", *command])
    assert forked == outcome(place, [*before, *after])


@pytest.mark.parametrize("python", PYTHONS, ids=name_of)
@pytest.mark.parametrize(
    "setting", ["PYTHONSAFEPATH=1", "PYTHONUNBUFFERED=1", "PYTHONOPTIMIZE=2", "PYTHONDEVMODE=1", "LC_ALL=C"]
)
def test_interpreter_settings_by_environment(place: Path, python: str, setting: str) -> None:
    more = dict([setting.split("=")])
    for program in (IDENTITY, "-m pkg.inner.tool", "leaving.py \"'text'\""):
        plain = outcome(place, [python, *shlex.split(program)], **more)
        assert outcome(place, [python, str(place / "agent/runner.py"), *shlex.split(program)], **more) == plain


def test_an_archive_leaves_no_error_that_it_has_not_raised(place: Path) -> None:
    (place / "error.json").unlink(missing_ok=True)
    runner = [sys.executable, str(place / "agent/runner.py")]
    assert outcome(place, [*runner, "app.pex"]) == outcome(place, [sys.executable, "app.pex"])
    assert not (place / "error.json").exists()


def test_working_directory_that_is_gone(place: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f"mkdir -p {gone}; cd {gone}; rmdir {gone}; exec {sys.executable} %s {place}/work/leaving.py 5"
    runs = []
    for part in ("", place / "agent/runner.py"):
        done = subprocess.run(["sh", "-c", script % part], capture_output=True, env=environment(place))
        runs.append((done.returncode, done.stdout, done.stderr))
    assert runs[0] == runs[1] and runs[0][0] == 5


def test_terminal_interrupt_ends_by_sigint_and_says_so(place: Path) -> None:
    plain = outcome(place, [sys.executable, "ending.py", "interrupted"])
    assert plain[0] == -2, "the comparison above would prove nothing"
    assert "KeyboardInterrupt" in plain[1]
