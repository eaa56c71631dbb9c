"""Which exception a verdict quotes: real programs under the runner, their error file and log, judged.

What failed is the innermost exception, wherever it was raised: below a wrapper, in a worker process, in a thread.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.test_runner import RUNNER
from tests.diagnose.incidents import rank_end
from tests.hosts.waiting import BOUND

from allranks.diagnose.exceptions import HEADER, Raised, read_traceback
from allranks.diagnose.incident import Incident
from allranks.diagnose.verdict import judge
from allranks.protocol.foreign import clean_error

LOAD = "def load(i):\n    raise ValueError('bad batch 3')\n"


def sentence(place: Path, code: str, error_file: bool = True) -> str:
    """The verdict's sentence on a program that is the only rank of a run."""
    (place / "train.py").write_text(code)
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(place / "error.json"), "RANK": "0"}
    command = [sys.executable, str(RUNNER), "train.py"]
    done = subprocess.run(
        command, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BOUND
    )
    log = done.stdout.decode("utf-8", "replace")
    assert done.returncode != 0, log
    kept = place / "error.json"
    error = clean_error(json.loads(kept.read_text())) if error_file and kept.exists() else None
    end = rank_end(0, "h1", max(done.returncode, 0) or None, -done.returncode if done.returncode < 0 else None, 5.0,
                     False, error=error, tail=log[-(16 << 10) :], pid=77)  # fmt: skip
    verdict = judge(Incident(0, 1, {"h1": (0,)}, (end,), detected_t=5.0))
    assert verdict is not None
    assert len(verdict.finding.evidence) <= 3
    return verdict.finding.message


CASES = {
    "cause": (
        LOAD + "def step():\n    try:\n        load(3)\n    except ValueError as e:\n"
        "        raise RuntimeError('step 7 failed') from e\nstep()\n",
        "rank 0 on h1 raised ValueError: bad batch 3 (train.py:2 in load, pid 77), which led to RuntimeError: "
        "step 7 failed (train.py:7 in step)",
    ),
    "context": (
        LOAD + "def step():\n    try:\n        load(3)\n    except ValueError:\n        {}['next']\nstep()\n",
        "raised ValueError: bad batch 3 (train.py:2 in load, pid 77), which led to KeyError: 'next' (train.py:7 in "
        "step)",
    ),
    "without a context": (
        LOAD + "try:\n    load(3)\nexcept ValueError:\n    raise SystemError('said so') from None\n",
        "raised SystemError: said so (train.py:6, pid 77)",
    ),
    "many lines": (
        "raise ValueError('shapes differ:\\n  expected (3, 4)\\n  got (4, 3)')\n",
        "raised ValueError: shapes differ: expected (3, 4); got (4, 3) (train.py:1, pid 77)",
    ),
    "pool": (
        "import multiprocessing\n" + LOAD + "if __name__ == '__main__':\n"
        "    multiprocessing.get_context('spawn').Pool(1).map(load, range(2))\n",
        "raised ValueError: bad batch 3 (train.py:3 in load, in a worker process, pid 77)",
    ),
    "a thread, then its program": (
        "import threading, sys\n" + LOAD + "t = threading.Thread(target=load, args=(1,), name='loader')\n"
        "t.start(); t.join()\nprint('epoch 1', flush=True)\nraise RuntimeError('no data')\n",
        "raised RuntimeError: no data (train.py:7, pid 77), and before that its thread loader had raised "
        "ValueError: bad batch 3 (train.py:3 in load)",
    ),
    "a thread, then a code": (
        "import threading, sys\n" + LOAD + "t = threading.Thread(target=load, args=(1,), name='loader')\n"
        "t.start(); t.join()\nsys.exit(1)\n",
        "raised ValueError: bad batch 3 (train.py:3 in load, in thread loader, pid 77)",
    ),
    "a thread, other words, then a code": (
        "import threading, sys\n" + LOAD + "t = threading.Thread(target=load, args=(1,), name='loader')\n"
        "t.start(); t.join()\nfor i in range(9): print('retrying', i)\nsys.exit(4)\n",
        "ended with code 4 (pid 77), its last line: retrying 8, and before that its thread loader had raised "
        "ValueError: bad batch 3 (train.py:3 in load)",
    ),
    "a thread interrupts its program": (
        "import threading, _thread, time\n" + LOAD + "ready = threading.Event()\n"
        "def work():\n    try:\n        ready.wait(); load(1)\n    except ValueError:\n"
        "        _thread.interrupt_main()\n        raise\n"
        "threading.Thread(target=work, name='loader').start()\n"
        "while True: ready.set(); time.sleep(0.01)\n",  # such an interrupt does not end a sleep
        "was interrupted by KeyboardInterrupt (train.py:12, pid 77), and not by allranks: sender unknown, and "
        "before that its thread loader had raised ValueError: bad batch 3 (train.py:3 in load)",
    ),
    "interrupted": (
        "import os, signal, time\ndef step():\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\nstep()\n",
        "was interrupted by KeyboardInterrupt (train.py:3 in step, pid 77), and not by allranks: sender unknown",
    ),
    "interrupted while it failed": (
        LOAD + "import os, signal, time\ntry:\n    load(1)\nexcept ValueError:\n    os.kill(os.getpid(), 2)\n"
        "    time.sleep(9)\n",
        "raised ValueError: bad batch 3 (train.py:2 in load, pid 77)",
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "error_file"),
    [*((name, True) for name in CASES), *((name, False) for name in ("cause", "context", "many lines"))],
)
def test_the_innermost_exception_is_quoted(tmp_path: Path, name: str, error_file: bool) -> None:
    """Of programs that are not Python's runner the log alone tells: by the traceback at its end."""
    code, says = CASES[name]
    assert says in sentence(tmp_path, code, error_file)


@pytest.mark.processes
@pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups in this Python")
def test_a_group_is_told_by_its_first_member(tmp_path: Path) -> None:
    code = LOAD + "try:\n    load(1)\nexcept ValueError as e:\n"
    code += "    group = ExceptionGroup('all tasks', [e, KeyError('b')])\nraise group\n"
    says = "raised ValueError: bad batch 3 (train.py:2 in load, pid 77), which led to ExceptionGroup: all tasks"
    assert says in sentence(tmp_path, code)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "torch.multiprocessing.spawn(load, nprocs=2)",
            "raised ValueError: bad batch 3 (train.py:3 in load, in process {} that it spawned, pid 77)",
        ),
        pytest.param(
            "class Data(torch.utils.data.Dataset):\n        def __len__(self): return 4\n"
            "        def __getitem__(self, i): load(i)\n"
            "    list(torch.utils.data.DataLoader(Data(), num_workers=1))",
            "raised ValueError: bad batch 3 (train.py:3 in load, in DataLoader worker process 0, pid 77)",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["spawn", "DataLoader"],
)
def test_torchs_workers(tmp_path: Path, body: str, says: str) -> None:
    code = "import torch\n" + LOAD.replace("(i)", "(i, *_)") + f"if __name__ == '__main__':\n    {body}\n"
    found = sentence(tmp_path, code)
    assert any(says.format(number) in found for number in (0, 1)), found


def test_a_worker_of_a_worker_and_any_cut_of_a_text_can_be_read() -> None:
    """What is kept of a text is cut at a limit: nothing of it may raise, or take long."""
    inner = HEADER + '  File "/job/data.py", line 9, in get\n    x\nKeyError: 3\n'
    middle = HEADER + '  File "/job/train.py", line 4, in work\n    y\n'
    middle += "ValueError: Caught KeyError in DataLoader worker process 2.\nOriginal " + inner
    text = "\n\n-- Process 1 terminated with the following error:\n" + middle
    last = Raised("ProcessRaisedException", text).links[-1]
    assert (last.type, last.file, last.line) == ("KeyError", "/job/data.py", 9)
    assert last.worker == "DataLoader worker process 2"
    for at in range(len(text)):
        assert Raised("E", text[at:]).links and Raised("E", text[:at]).links
        assert len(read_traceback(text[:at])) <= 2
