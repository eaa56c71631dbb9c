"""How runs end: programs that end while their process does not, rules, a watchdog, codes for a scheduler."""

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


WRITES_METRICS = """
import json, os, time
rank = int(os.environ["RANK"])
path = os.path.join(os.environ["ALLRANKS_OUTPUT_DIR"], f"rank_{rank:02d}_metrics.jsonl")
for step in range(1, 6000 if os.environ["WANTED"] == "stop" else 60):
    loss = float("nan") if rank == 1 and step >= 20 else 1 / step
    with open(path, "a") as file:
        print(json.dumps({"step": step, "loss": loss}), file=file)
    time.sleep(0.05)
"""


@pytest.mark.parametrize("wanted", ["stop", "warn"])
def test_a_loss_that_is_no_number(tmp_path: Path, wanted: str) -> None:
    options = ("--fail-on", "loss>1e9", "--fail-on", "loss=nan", "--on-rule", wanted, "--env", f"WANTED={wanted}")
    result = LocalRun(tmp_path, WRITES_METRICS, *options).result()
    (found,) = [finding for finding in result["findings"] if finding["id"] == "metric-rule"]
    assert found["message"] == "loss of rank 1 is not a number at step 20 (on local1)"
    assert found["where"] == {"node": "local1", "rank": 1}
    assert found["evidence"][1] == "the last good loss of rank 1 is 0.0526 at step 19"
    if wanted == "warn":
        assert (result["exit"], result["verdict"], found["status"]) == (0, None, "warn")
        return
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"], verdict["culprits"]) == (1, "metric-rule", [1])
    assert verdict["where"]["rank"] == 1 and verdict["victims"] == [0]


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        ("raise KeyError('x')", 42, "the program's own fault comes again at the same place"),
        ("import os; os.kill(os.getpid(), 9)", 1, None),
    ],
)
def test_the_programs_fault_has_the_code_that_was_asked_for(
    tmp_path: Path, program: str, code: int, why: str | None
) -> None:
    result = LocalRun(tmp_path, program, "--no-requeue-code", "42", nodes=1).result()
    assert (result["exit"], result.get("no_requeue")) == (code, why), result["verdict"]


def test_dumps_of_the_watchdog_come_to_the_run_and_name_the_late_rank(tmp_path: Path) -> None:
    """It ends ranks before anybody looks: what it has dumped of each rank says who was waited for."""
    program = Path(__file__).parents[2] / "bench" / "programs" / "gpu_dumps.py"
    run = LocalRun(tmp_path, program.read_text(), nodes=3)
    verdict = run.result()["verdict"]
    assert (verdict["cause"], verdict["culprits"], verdict["victims"]) == ("straggler", [1], [0, 2]), verdict
    assert verdict["message"].endswith("ranks 0 and 2 are in all_reduce #65 of 4 MB, rank 1 has not called it")
    assert (verdict["where"]["node"], verdict["where"]["rank"]) == ("local1", 1) and verdict["where"]["pid"]
    dumps = sorted(path.name for path in (run.directory / "evidence" / "flight").iterdir())
    assert dumps == ["dump_a0_rank_000", "dump_a0_rank_001", "dump_a0_rank_002"]
