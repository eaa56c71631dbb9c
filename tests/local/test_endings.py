"""Programs that end while their process does not, and processes that become another program."""

from pathlib import Path

import pytest
from tests.local.running import LocalRun

WAITS = "import os, sys, threading, time\nrank = os.environ['RANK']\n"
LINGERS = WAITS + "threading.Thread(target=time.sleep, args=(600,), name='uploader').start()\n"


@pytest.mark.parametrize(
    ("ending", "cause", "says"),
    [
        (
            "raise ValueError('bad batch 3')",
            "program-exception",
            "rank 1 on local1 raised ValueError: bad batch 3 (train.py:5, pid ",
        ),
        ("sys.exit(3)", "rank-exited-early", "rank 1 on local1 ended with code 3"),
        pytest.param(
            "sys.exit('no data')", "rank-exited-early", "rank 1 on local1 ended with code 1", marks=pytest.mark.slow
        ),
    ],
)
def test_a_failed_program_whose_threads_linger_ends_the_run(tmp_path: Path, ending: str, cause: str, says: str) -> None:
    run = LocalRun(tmp_path, LINGERS + f"if rank == '1':\n    {ending}\ntime.sleep(600)\n")
    result = run.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"]) == (1, cause), verdict
    assert verdict["message"].startswith(says), verdict["message"]
    assert "its process went on, waiting for threads that still ran: uploader" in verdict["message"]
    assert verdict["where"]["rank"] == 1 and verdict["victims"] == [0]


def test_a_failed_program_whose_main_thread_is_gone_ends_the_run(tmp_path: Path) -> None:
    gone = "import ctypes\nsys.excepthook = lambda *_: ctypes.CDLL(None).pthread_exit(None)\n"
    daemon = LINGERS.replace("name='uploader'", "daemon=True") + gone
    run = LocalRun(tmp_path, daemon + "if rank == '1':\n    raise ValueError('x')\ntime.sleep(600)\n")
    verdict = run.result()["verdict"]
    assert verdict["message"].startswith("rank 1 on local1 raised ValueError: x (train.py:"), verdict["message"]
    assert "its process went on" in verdict["message"]


@pytest.mark.slow
def test_a_program_that_lets_go_of_its_threads_in_time_is_left_alone(tmp_path: Path) -> None:
    """As under plain Python: it ends by itself, with its own code."""
    late = WAITS + "threading.Thread(target=time.sleep, args=(2,)).start()\nif rank == '1':\n    sys.exit(3)\n"
    run = LocalRun(tmp_path, late + "time.sleep(600)\n")
    result = run.result()
    assert result["program_exit"] == {"rank": 1, "code": 3, "signal": None}
    assert "its process went on" not in result["verdict"]["message"]


def test_a_rank_that_has_become_another_program_says_so(tmp_path: Path) -> None:
    """By exec; one that only changes its command line has not."""
    code = "import os, time\nif os.environ['RANK'] == '1':\n"
    code += "    os.execvp('bash', ['bash', '-c', 'while [ ! -e ../go ]; do sleep 0.1; done; exit 7', 'SECRET'])\n"
    run = LocalRun(tmp_path, code + "time.sleep(600)\n")
    (event,) = run.until("rank-became")
    assert (event["rank"], event["program"]) == (1, "bash")
    (tmp_path / "go").touch()
    message = run.result()["verdict"]["message"]
    assert message.startswith("rank 1 on local1 ended with code 7")
    assert message.endswith(", after it had become another program by exec: bash"), message
    assert "SECRET" not in message


def test_a_further_attempt_gets_the_files_that_a_cleaner_has_taken(tmp_path: Path) -> None:
    """It failed with "can't open runner.py", and blamed --wrap."""
    program = """
import os, pathlib, sys
place = pathlib.Path(os.environ["ALLRANKS_REPORT_SOCKET"]).parent
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for path in place.glob("*.py"):
        path.unlink()
    print("step 1", flush=True)
    os.abort()
print("again", (place / "runner.py").exists(), flush=True)
"""
    run = LocalRun(tmp_path, program, "--retries", "1")
    assert run.result()["exit"] == 0
    assert "again True" in (run.directory / "logs" / "attempt_1" / "node_00_local0" / "rank_000.log").read_text()
