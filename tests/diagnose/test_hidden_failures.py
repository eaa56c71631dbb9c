"""The end of a log that tells of a failure, where a script has ended with code 0."""

import pytest

from allranks.diagnose.rules.failures import ends_as_failed

TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    step()\nValueError: x\n'
OF_TORCH = "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines())
REPORT = """======================================================
train.py FAILED
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_16:12:41
  host      : h3
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 1741)
  error_file: <N/A>
======================================================
"""
ASIDES = [
    f"Exception ignored in: <function Pool.__del__ at 0x7f>\n{TRACEBACK}",
    f"Exception in thread Thread-3 (watch):\n{TRACEBACK}",
    f"Error in atexit._run_exitfuncs:\n{TRACEBACK}",
    f"--- Logging error ---\n{TRACEBACK}",
    f"Task exception was never retrieved\nfuture: <Task finished name='Task-1'>\n{TRACEBACK}",
]


@pytest.mark.parametrize(
    "tail",
    [
        f"step 1\n{TRACEBACK}",
        f"step 1\n{OF_TORCH}",
        f"{TRACEBACK}uploading the logs\nover\n",
        *(TRACEBACK + aside for aside in ASIDES[:1] + ASIDES[2:]),
        "run.sh: line 4: python: command not found\n",
        "/bin/sh: 1: python: not found\n",
        f"{REPORT}over\n",
        "env: ‘python’: No such file or directory\n",
        "run.sh: line 7: RANK: unbound variable\n",
        "step 1\nrun.sh: line 9: 4711 Killed                  python train.py\n",
        "/usr/bin/python3: No module named torch\n",
        "python3: can't open file '/w/trai.py': [Errno 2] No such file or directory\n",
        "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr\n",
    ],
)
def test_it_failed(tail: str) -> None:
    assert ends_as_failed(tail)


@pytest.mark.parametrize(
    "tail",
    [
        "",
        "step 10 loss 0.1\ndone\n",
        TRACEBACK + "".join(f"step {step}\n" for step in range(9)),
        *(f"done\n{aside}" for aside in ASIDES),
        "run.sh: line 4: nvidia-smi: command not found\nstep 1\n",
        "python3: can't open file 'a.py': [Errno 2] No such file or directory\nso b.py\n",
        "usage: 45 GB\nstep 9 loss 0.2\nvalidation error: 0.31\n",
        "ls: cannot access 'old/*.pt': No such file or directory\n",
        "epoch: 3: loss 0.2\n",
        f"{REPORT}trying again\n" + "".join(f"step {step}\n" for step in range(9)),
    ],
)
def test_it_went_on_or_nothing_failed(tail: str) -> None:
    assert not ends_as_failed(tail)
