"""What runs in a rank for us imports no file of the program's: neither from beside the script nor from the working
directory. Every module of the standard library lies there under its name."""

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.test_runner import PYTHONS, RUNNER, copy_runner, name_of
from tests.hosts.waiting import BOUND, wait_until
from tests.ports import free_port

from allranks.agent.asking import Asking
from allranks.agent.node_check import QUESTION
from allranks.agent.processes import read_process
from allranks.data import probe
from allranks.protocol.node_names import NodeFiles

pytestmark = pytest.mark.processes

# Notes its name and who imports it, then stands aside for the library's own module, or raises.
PLANTED = """
import sys
frame = sys._getframe().f_back
library = sys.modules["os"].__file__.rpartition("/")[0] + "/"
while frame is not None and frame.f_code.co_filename.startswith(("<frozen", library)):
    if "/site-packages/" in frame.f_code.co_filename:
        break
    frame = frame.f_back
ours = frame is not None and frame.f_code.co_filename == "<allranks importlib._bootstrap>"
with open(%(log)r, "a") as file:
    file.write(("ours " if ours else "theirs ") + __name__ + "\\n")
if %(refuse)r:
    raise ImportError("planted " + __name__)
files = sys.modules["_frozen_importlib_external"]
spec = files.PathFinder.find_spec(__name__, [library, library + "lib-dynload"])
module = sys.modules["_frozen_importlib"].module_from_spec(spec)
sys.modules[__name__] = module
spec.loader.exec_module(module)
"""
FAILS = "def step():\n    raise ValueError('broken')\n\n\nstep()\n"


def environment(place: Path, **more: str) -> dict[str, str]:
    notes = {"TORCHELASTIC_ERROR_FILE": str(place / "error.json"), "ALLRANKS_REPORT_SOCKET": str(place / "report.sock")}
    return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "RANK": "0", **notes, **more}


def standard_names() -> set[str]:
    """Modules of the library that a file can shadow."""
    return set(sys.stdlib_module_names).difference(sys.builtin_module_names, ["__future__"])


def imported_by_us() -> set[str]:
    """The modules of the library that the files in a rank name."""
    names = set()
    for path in (*RUNNER.parent.glob("runner*.py"), Path(probe.__file__)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module or "")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_ours":
                names.add(ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else "")
    return standard_names().intersection(name.partition(".")[0] for name in names)


def plant(place: Path, names: set[str], *, refuse: bool) -> Path:
    """Put a file of each name into a directory; what is imported of them is noted in the file that this gives."""
    log = place / "imported.txt"
    log.touch()
    for name in names:
        (place / f"{name}.py").write_text(PLANTED % {"log": str(log), "refuse": refuse})
    return log


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "report.sock"))
        receiver.setblocking(False)  # read once the rank has ended
        yield receiver


@pytest.mark.parametrize("python", PYTHONS, ids=name_of)
@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_failing_program_is_described_without_what_lies_beside_it(
    tmp_path: Path, reports: socket.socket, python: str, module: bool
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text(FAILS)
    names = {"json", "traceback", "re", "enum", "linecache", "tokenize", "_socket"} if module else standard_names()
    log = plant(tmp_path / "work", names, refuse=True)
    words = ["-m", "train"] if module else ["train.py"]
    noted, printed = [], []
    for runner in ([], [str(RUNNER)]):
        log.write_text("")
        command = [python, *runner, *words]
        done = subprocess.run(command, cwd=tmp_path / "work", env=environment(tmp_path), capture_output=True)
        assert done.returncode == 1
        noted.append(sorted({line.split()[1] for line in log.read_text().splitlines()}))
        printed.append(done.stderr)
    assert noted[0] == noted[1], "what the interpreter itself imports to show an exception"
    assert printed[0] == printed[1]
    facts = json.loads((tmp_path / "error.json").read_text())["allranks"]
    assert (facts["text"], facts["function"]) == ("broken", "step") and "in step" in facts["traceback"]
    assert json.loads(reports.recv(1 << 16))["event"] == "raised"


PLACED = """
import sys
runner = {"__name__": "runner"}
exec(compile(open(sys.argv[1]).read(), "runner.py", "exec"), runner)
before = set(sys.modules)
for _ in range(2):
    with runner["Library"]():
        import collections.abc, importlib._bootstrap  # which packages put into sys.modules by themselves
    print(sorted(before.symmetric_difference(sys.modules)))
"""


def test_modules_that_other_systems_have_are_not_looked_for_beside_the_program(tmp_path: Path) -> None:
    """The library asks for them: traceback of Python 3.15 for `nt`."""
    (tmp_path / "winreg.py").write_text("print('theirs')")
    code = PLACED.partition("before")[0] + "with runner['Library']():\n    import winreg"
    words = [sys.executable, "-c", code, str(RUNNER)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)
    assert not done.stdout and "ModuleNotFoundError: No module named 'winreg'" in done.stderr


@pytest.mark.parametrize("python", PYTHONS, ids=name_of)
def test_what_a_package_puts_into_sys_modules_goes_and_comes_with_it(python: str) -> None:
    words = [python, "-I", "-S", "-c", PLACED, str(RUNNER)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND)
    assert (done.stdout, done.stderr) == ("[]\n[]\n", "")


def test_what_the_program_has_imported_under_a_name_of_the_library_stays_and_is_not_used(
    tmp_path: Path, reports: socket.socket
) -> None:
    (tmp_path / "json.py").write_text("def dumps(value):\n    print('theirs', flush=True)\n    return '{}'\n")
    (tmp_path / "re.py").write_text("")
    program = "import atexit, json, sys\natexit.register(lambda: print(json.__file__, 'json.decoder' in sys.modules, "
    (tmp_path / "train.py").write_text(program + "__import__('re').__file__))\nimport re\n" + FAILS)
    words = [sys.executable, str(RUNNER), "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "json.py"), "False", str(tmp_path / "re.py")]
    assert json.loads((tmp_path / "error.json").read_text())["allranks"]["text"] == "broken"


GROUP = """
import os, sys
import torch
import torch.distributed as dist
import torch.utils.data as data
loader = data.DataLoader(list(range(4)), batch_size=2)
dist.init_process_group("gloo")
dist.all_reduce(torch.zeros(1))
print([len(batch) for batch in loader], flush=True)
sys.stdin.readline()
dist.destroy_process_group()
raise ValueError("broken")
"""


@pytest.mark.torch
def test_reports_answers_and_notes_of_batches_import_nothing_that_lies_beside_the_program(
    tmp_path: Path, reports: socket.socket
) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "train.py").write_text(GROUP)
    copy_runner(tmp_path / "agent")
    shutil.copy(probe.__file__, tmp_path / "agent")
    names = imported_by_us()
    assert {"json", "traceback", "socket", "zlib", "functools", "hashlib"} <= names
    log = plant(place, names, refuse=False)
    more = {
        "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "ALLRANKS_ASK_SOCKET": NodeFiles(str(tmp_path)).asked(0), "ALLRANKS_AUDIT_BATCHES": "all",
        "ALLRANKS_AUDIT_FILE": str(tmp_path / "audit_{rank}"),
    }  # fmt: skip
    words = [sys.executable, str(tmp_path / "agent/runner.py"), "train.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    rank = subprocess.Popen(words, cwd=place, env=environment(tmp_path, **more), text=True, **pipes)
    try:
        assert rank.stdout is not None and rank.stdout.readline() == "[2, 2]\n"
        process = read_process(rank.pid)
        assert process is not None
        for word in ("look", "dump", "see", "times 8", "imports", "calls", "counters"):
            wait_until(lambda word=word: Asking({0: process}, str(tmp_path), word).answers(), BOUND, word)
        rank.communicate("\n", timeout=BOUND)
    finally:
        rank.kill()
    events = [json.loads(reports.recv(1 << 16))["event"] for _ in range(4)]
    assert events == ["init-entered", "initialised", "destroyed", "raised"]
    assert '"data-rank"' in (tmp_path / "audit_000").read_text()
    assert (tmp_path / "error.json").exists()
    noted = log.read_text().splitlines()
    assert [line for line in noted if line.startswith("ours")] == []
    assert "theirs json" in noted, "the program has them from there"


def test_looking_at_an_interpreter_imports_nothing_of_the_working_directory(tmp_path: Path) -> None:
    log = plant(tmp_path, standard_names(), refuse=True)
    (tmp_path / "train.py").touch()
    words = [sys.executable, "-c", QUESTION, "train.py", "ray", "absent"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert "lacks=" in done.stdout and "absent" in done.stdout
    assert log.read_text() == ""


def test_a_free_threaded_build_is_told_by_its_version() -> None:
    """As CPython words it (Python/getversion.c)."""
    for words, version in (("free-threading build ", "t"), ("experimental free-threading build ", "t"), ("", "")):
        told = f"import sys\nsys.version = '3.14.2 {words}(main, Dec  5 2025) [GCC 14]'\n" + QUESTION
        done = subprocess.run([sys.executable, "-c", told, ""], capture_output=True, text=True, timeout=BOUND)
        assert f"version={'.'.join(map(str, sys.version_info[:3]))}{version}\t" in done.stdout
