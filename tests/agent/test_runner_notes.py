"""What the runner adds: the error file and the stacks. Each test starts real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner import PYTHONS, RUNNER, name_of, reported
from tests.hosts.waiting import BOUND, wait_until

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).parent / "programs"
STACKS_SIGNAL = signal.SIGRTMIN + 7


def run(tmp_path: Path, *program: str, python: str = sys.executable, **more: str) -> dict[str, Any]:
    """The error file that the program left; empty where it left none."""
    file = tmp_path / "error.json"
    file.unlink(missing_ok=True)
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(file), "RANK": "5", **more}
    command = [python, str(RUNNER), *program]
    subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=BOUND)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
    return json.loads(file.read_text()) if file.exists() else {}


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("python", PYTHONS, ids=name_of)
def test_error_file_is_torchelastics_with_more(tmp_path, write, python):
    script = write("import json\n\ndef load(text):\n    return json.loads(text)\n\nload('{')\n")
    before = time.time()
    document = run(tmp_path, script, python=python)
    facts = document["allranks"]
    text = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    assert document["message"]["message"] == f"JSONDecodeError: {text}"
    assert document["message"]["extraInfo"]["py_callstack"] == facts["traceback"]
    assert int(document["message"]["extraInfo"]["timestamp"]) == int(facts["t"])
    assert before - 1 < facts["t"] < time.time() + 1
    expected = {"schema": 1, "type": "JSONDecodeError", "module": "json.decoder", "text": text, "rank": 5}
    assert {name: facts[name] for name in expected} == expected
    assert (facts["file"], facts["line"], facts["function"]) == (script, 4, "load"), "not the library's frame"
    assert facts["chain"] == [{"type": "StopIteration", "text": "1"}] or facts["chain"] == []
    assert facts["traceback"].startswith("Traceback (most recent call last):\n  File ")
    assert "allranks" not in facts["traceback"] and "runner.py" not in facts["traceback"]


@pytest.mark.torch
def test_torchelastic_reads_the_file(tmp_path, write):
    run(tmp_path, write("raise ValueError('x')"))
    code = (
        "from torch.distributed.elastic.multiprocessing.errors import ProcessFailure\n"
        f"f = ProcessFailure(local_rank=0, pid=9, exitcode=1, error_file={str(tmp_path / 'error.json')!r})\n"
        "print(f.timestamp, f.message)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND).stdout
    timestamp, message = said.split(" ", 1)
    assert int(timestamp) > 0 and "ValueError: x" in message


@pytest.mark.parametrize(
    ("function", "kind", "text", "chain"),
    [
        ("plain", "ZeroDivisionError", "division by zero", []),
        ("mute", "Mute", "<exception str() failed>", []),
        ("nested", "Outer.Inner", "nested class", []),
        ("noted", "ValueError", "two\nlines \udc80", []),
        ("imports", "ModuleNotFoundError", "No module named 'absent_package'", []),
        ("group", "ExceptionGroup", "both (2 sub-exceptions)", ["ValueError", "ZeroDivisionError"]),
    ],
)
def test_type_text_and_chain(tmp_path, function, kind, text, chain):
    if function == "group" and sys.version_info < (3, 11):
        pytest.skip("no exception groups in this Python")
    facts = run(tmp_path, str(PROGRAMS / "raising.py"), function)["allranks"]
    assert (facts["type"], facts["text"], [one["type"] for one in facts["chain"]]) == (kind, text, chain)
    assert facts["file"] == str(PROGRAMS / "raising.py")


def test_every_link_of_a_chain_has_its_place(tmp_path, write):
    script = write(
        "def load():\n    raise KeyError('lr')\n"
        "def step():\n    try:\n        load()\n    except KeyError as error:\n"
        "        raise RuntimeError('step') from error\n"
        "try:\n    step()\nfinally:\n    1 / 0\n"
    )
    document = run(tmp_path, script)
    chain = [(one["link"], one["file"], one["line"], one["function"]) for one in document["allranks"]["chain"]]
    assert chain == [("context", script, 7, "step"), ("cause", script, 2, "load")]


def test_module_that_fails(tmp_path, write):
    write("", "pkg/__init__.py")
    script = write("class Local(Exception):\n    pass\nraise Local('m')\n", "pkg/mod.py")
    facts = run(tmp_path, "-m", "pkg.mod")["allranks"]
    assert (facts["type"], facts["module"], facts["file"], facts["line"]) == ("Local", "__main__", script, 3)
    assert facts["traceback"].splitlines()[1].endswith("in _run_module_as_main"), "as plain Python has it"


def test_programs_that_never_start(tmp_path, write):
    broken = write("a = 1\ndef f(:\n")
    cases = {
        (broken,): ("SyntaxError", broken, 2),
        (write("import train\n", "importer.py"),): ("SyntaxError", broken, 2),
        (str(tmp_path / "absent.py"),): ("FileNotFoundError", str(tmp_path / "absent.py"), None),
    }
    for program, expected in cases.items():
        facts = run(tmp_path, *program)["allranks"]
        assert (facts["type"], facts["file"], facts["line"]) == expected
    assert run(tmp_path, "-m", "no_such_module")["allranks"]["text"] == "No module named no_such_module"


NO_ERROR_FILE = {
    "exit with a text": "import sys; sys.exit('text')",
    "exit with a code": "import sys; sys.exit(3)",
    "end": "pass",
    "end at once": "import os; os._exit(3)",
    "children raise": (
        "import os, subprocess, sys, multiprocessing\n"
        "def fail(): raise ValueError('worker')\n"
        "if __name__ == '__main__':\n"
        "    subprocess.run([sys.executable, '-c', 'raise ValueError'])\n"
        "    for method in ('fork', 'spawn'):\n"
        "        child = multiprocessing.get_context(method).Process(target=fail)\n"
        "        child.start(); child.join()\n"
        "    if os.fork() == 0:\n"
        "        raise ValueError('forked')\n"
        "    os.wait()\n"
    ),
    "every write fails, as on a full disk": (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\nraise KeyError('outcome')\n"
    ),
}


@pytest.mark.parametrize("program", NO_ERROR_FILE.values(), ids=NO_ERROR_FILE)
def test_no_error_file_without_an_uncaught_exception_of_the_ranks_or_room_for_it(tmp_path, write, program):
    assert run(tmp_path, write(program)) == {}


def test_ours_replaces_what_record_wrote(tmp_path, write):
    wrote = """open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{"message": "from @record"}')"""
    document = run(tmp_path, write(f"import os\n{wrote}\nraise ValueError('x')\n"))
    assert document["message"]["message"] == "ValueError: x"


def test_texts_are_bounded(tmp_path, write):
    script = write("import sys\nsys.excepthook = lambda *_: 0\nraise ValueError('y' * (1 << 22) + 'END')\n")
    document = run(tmp_path, script)
    assert len(document["allranks"]["text"]) == 16 << 10
    assert len(document["allranks"]["traceback"]) == 64 << 10
    assert document["allranks"]["traceback"].endswith("END\n"), "the tail is kept"


@pytest.mark.parametrize("target", ["absent/error.json", ".", "/dev/full/x", "/proc/x"])
def test_file_that_cannot_be_written_changes_nothing(tmp_path, write, target):
    script = write("raise KeyError('outcome')")
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / target)}
    through = subprocess.run([sys.executable, str(RUNNER), script], env=environment, capture_output=True)
    plain = subprocess.run([sys.executable, script], capture_output=True)
    assert (through.returncode, through.stderr) == (plain.returncode, plain.stderr)


# ---- reports at the end


def reports(tmp_path: Path, *program: str, python: str = sys.executable) -> list[dict[str, Any]]:
    """What a program reports until its process has ended."""
    path = tmp_path / "report.sock"
    with reported(path) as said:
        run(tmp_path, *program, python=python, ALLRANKS_REPORT_SOCKET=str(path))
    return said


THREAD = (
    "import sys, threading, time\nmain = threading.main_thread()\n"
    "threading.Thread(target=lambda: (main.join(), print('later')), name='uploader').start()\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
)


@pytest.mark.parametrize("python", PYTHONS, ids=name_of)
@pytest.mark.parametrize("program", [("train.py",), ("-m", "train")], ids=["script", "module"])
@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise ValueError('x')", 1), ("sys.exit(3)", 3), ("sys.exit('text')", 1), ("sys.exit(256)", 0),
     ("sys.exit()", 0), ("pass", 0)],
)  # fmt: skip
def test_threads_that_outlive_the_program_are_reported(tmp_path, write, python, program, ending, code):
    write(THREAD + ending)
    found = reports(tmp_path, *program, python=python)
    raised = ["raised"] if "raise" in ending else []
    assert [one["event"] for one in found] == [*raised, "leaving", "threads-ended"]
    leaving = found[-2]
    assert (leaving["rank"], leaving["code"], leaving["threads"]) == (5, code, ["uploader"])


@pytest.mark.parametrize(("ending", "expected"), [("raise ValueError('x')", ["raised"]), ("sys.exit(3)", [])])
def test_daemons_and_forked_children_are_not_waited_for(tmp_path, write, ending, expected):
    script = write(
        "import os, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "if os.fork() == 0:\n    threading.Thread(target=time.sleep, args=(0.2,)).start()\n"
        "else:\n    os.wait()\n" + ending
    )
    assert [one["event"] for one in reports(tmp_path, script)] == expected


# ---- stacks


@pytest.fixture
def begin(tmp_path: Path, write):
    """Start a program, and wait until it is ready; it ends with the test."""
    started = []

    def call(code: str, python: str = sys.executable) -> Any:
        environment = {**os.environ, "ALLRANKS_STACKS_FILE": str(tmp_path / "stacks")}
        command = [python, str(RUNNER), write(code, "sleeper.py")]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        assert started[0].stdout.readline() == "ready\n"
        return started[0]

    yield call
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("python", PYTHONS, ids=name_of)
def test_signal_writes_all_threads(tmp_path, begin, python):
    code = (
        "import threading, time\n"
        "def in_thread(): inside.set(); time.sleep(600)\n"
        "def in_main():\n    inside.wait(); print('ready', flush=True)\n    lock.acquire()\n"
        "inside = threading.Event(); threading.Thread(target=in_thread, daemon=True).start()\n"
        "lock = threading.Lock(); lock.acquire(); in_main()\n"
    )
    process, stacks = begin(code, python), tmp_path / "stacks"
    for count in (1, 2):
        process.send_signal(STACKS_SIGNAL)
        wait_until(lambda count=count: stacks.read_text().count("in <module>") >= count * 2, 60, "the stacks")
    text = stacks.read_text()
    assert "in in_thread" in text and "in in_main" in text and 'sleeper.py", line 7 in <module>' in text
    assert process.poll() is None


def test_signal_is_shown_as_caught_and_not_inherited_by_other_programs(begin):
    code = (
        "import subprocess, os\n"
        "child = subprocess.Popen(['sleep', '600'], close_fds=False)\n"
        "print('ready', flush=True); print(child.pid, flush=True); child.wait()\n"
    )
    process = begin(code)
    child = int(process.stdout.readline())

    def caught(pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(mask, 16) >> (STACKS_SIGNAL - 1) & 1)

    def has_file(pid: int) -> bool:
        targets = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a program that begins opens files, and closes them
                targets.append(os.readlink(link))
        return any(target.endswith("/stacks") for target in targets)

    try:
        wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", 60, "exec")
        assert (caught(process.pid), has_file(process.pid)) == (True, True)
        assert (caught(child), has_file(child)) == (False, False)
    finally:
        os.kill(child, signal.SIGKILL)


def test_without_the_variables_nothing_is_added(tmp_path, write):
    script = write(
        "import faulthandler, os, signal, sys\n"
        "print(faulthandler.unregister(signal.SIGRTMIN + 7), len(os.listdir('/proc/self/fd')))\n"
        "print([type(finder).__name__ for finder in sys.meta_path])\n"
    )
    names = {name for name in os.environ if name.startswith(("ALLRANKS_", "TORCHELASTIC_"))}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    runs = [
        subprocess.run([sys.executable, *more, script], env=clean, capture_output=True, text=True).stdout
        for more in ([], [str(RUNNER)])
    ]
    assert runs[0] == runs[1] and runs[0].startswith("False")
