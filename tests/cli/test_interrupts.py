"""Ctrl-C at any moment of a start: one sentence and exit code 130, and no run directory that is never over."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND
from tests.shell import Shell

from allranks.runs.directory import RunDirectory

pytestmark = pytest.mark.processes

# Runs `allranks` and sends itself SIGINT at the N-th call of a Python function: no clock decides where it hits. Not in
# callbacks of weak references, `__del__` and generators that are not asked any more: CPython prints what they raise and
# goes on. It counts from the first call of a function, where one is named: calls before it are more or fewer with each
# machine's caches.
AT_CALL = """
import inspect, os, signal, sys
left = int(sys.argv.pop(1))
awaited = sys.argv.pop(1)
def heard_by_nobody(frame):
    while frame is not None:
        asked_by = frame.f_back and frame.f_back.f_code.co_filename
        if frame.f_code.co_flags & inspect.CO_GENERATOR and not str(asked_by).endswith("contextlib.py"):
            return True
        if frame.f_code.co_name in ("cb", "remove", "_remove", "__del__"):
            return True
        frame = frame.f_back
    return False
def profile(frame, event, argument):
    global awaited, left
    if event == "call":
        if (frame.f_code.co_filename + ":" + frame.f_code.co_name).endswith(awaited):
            awaited = ""
        left -= not awaited
        if left <= 0 and not heard_by_nobody(frame):
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)
from allranks.__main__ import main
sys.setprofile(profile)
main()
"""
MADE = "runs/directory.py:create"
MOMENTS = [("", call) for call in (60, 3_000, 60_000)]
MOMENTS += [(MADE, call) for call in (1, 19, 27, 34, 45, 1_000, 20_000, 22_000, 30_000, 45_000)]
BETWEEN = [("", 115_000), *((MADE, call) for call in (*range(2, 60, 3), 8_000, 15_000, 24_000, 26_000, 70_000))]


def interrupted(place: Path, call: int, *words: str, counted_from: str = "") -> subprocess.CompletedProcess[str]:
    return ended(place, AT_CALL, str(call), counted_from, *words)


def ended(place: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ALLRANKS_RUNS_DIR": str(place / "runs")}
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=place, env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=BOUND, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("counted_from", "call"), [*MOMENTS, *(pytest.param(*moment, marks=pytest.mark.slow) for moment in BETWEEN)]
)
def test_wherever_it_comes_in_the_start_of_a_run(tmp_path: Path, counted_from: str, call: int) -> None:
    """A run directory without run.json was left where it came while the directory was made."""
    (tmp_path / "t.py").write_text("import time\ntime.sleep(600)\n")
    run_words = ("run", "--local", "1", "--nproc", "1", "--", "t.py")
    done = interrupted(tmp_path, call, *run_words, counted_from=counted_from)
    assert done.returncode == 130, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "KeyboardInterrupt" not in done.stderr, done.stderr
    assert done.stderr == "allranks: interrupted\n" or "stopped by Ctrl-C" in done.stdout
    for path in (tmp_path / "runs").glob("*"):
        run = RunDirectory(path)
        assert run.state() == "stopped" and (run.read_document("result.json") or {})["exit"] == 130


@pytest.mark.parametrize("call", [60, 3_000, 20_000])
def test_it_is_a_document_where_one_was_asked_for(tmp_path: Path, call: int) -> None:
    done = interrupted(tmp_path, call, "status", "--json", "none")
    if done.returncode != 2:  # it came after the answer: there is no such run
        assert done.returncode == 130 and json.loads(done.stdout)["error"] == "interrupted"
        assert done.stderr == "allranks: interrupted\n"


def test_where_it_is_ignored_it_stays_so(tmp_path: Path) -> None:
    """A job in the background of a shell script, nohup."""
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + AT_CALL
    words = [sys.executable, "-c", code, "100", "", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND)
    assert (done.returncode, done.stdout.split()[0]) == (0, "allranks")


# Sends itself SIGINT when the verb has ended: before its output is written out, and while the interpreter ends.
AFTER_THE_VERB = {
    "output is written": """
import os, signal, sys
def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "exit_code":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(profile)
""",
    "the interpreter ends": """
import atexit, os, signal
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
""",
}


@pytest.mark.parametrize("moment", AFTER_THE_VERB)
@pytest.mark.parametrize(("words", "code"), [(("explain", "straggler"), 0), (("status", "--json", "none"), 2)])
def test_after_the_verb_has_ended_its_exit_code_stands(
    tmp_path: Path, moment: str, words: tuple[str, ...], code: int
) -> None:
    """A second Ctrl-C after a run's end was exit status -2, where result.json said 130."""
    done = ended(tmp_path, AFTER_THE_VERB[moment] + "from allranks.__main__ import main\nmain()\n", *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "KeyboardInterrupt" not in done.stderr, done.stderr
    assert "interrupted" not in done.stdout + done.stderr


def test_a_caller_in_the_same_process_keeps_its_ctrl_c(shell: Shell) -> None:
    """SIGINT stayed ignored, and what that process started later inherited it: Ctrl-C did not end `allranks top`."""
    before = signal.getsignal(signal.SIGINT)
    assert "straggler" in shell("explain", "straggler").out
    assert signal.getsignal(signal.SIGINT) == before == signal.default_int_handler
