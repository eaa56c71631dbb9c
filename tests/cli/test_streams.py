"""A full disk, a closed stream or a reader that has left: no traceback, the run's own exit code, its result on disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.processes

ALLRANKS = f"{sys.executable} -m allranks"
NO_SPACE = "allranks: standard output cannot be written (No space left on device)"


def shell(line: str, place: Path) -> subprocess.CompletedProcess[str]:
    script = f"exec 2>{place}/errors\n{line}\n"
    return subprocess.run(["bash", "-c", script], cwd=place, capture_output=True, text=True, timeout=BOUND, check=False)


def said(place: Path) -> str:
    return (place / "errors").read_text()


def failing_run(place: Path) -> str:
    (place / "t.py").write_text("import sys; print('from the rank'); sys.exit(7)\n")
    return f"{ALLRANKS} run --local 1 --name lost"


@pytest.mark.parametrize(
    ("words", "redirection", "sentence"),
    [
        ("--json", ">/dev/full", f"{NO_SPACE}. result.json in the run's directory has the result\n"),
        ("--json", ">&-", ""),
        ("", ">&- 2>&-", None),
        ("", "</dev/null >/dev/full 2>/dev/full", None),
        ("--json", "<&- | true", ""),
    ],
)
def test_a_run_has_its_exit_code_and_its_result(
    tmp_path: Path, words: str, redirection: str, sentence: str | None
) -> None:
    command = f"{failing_run(tmp_path)} {words} t.py {redirection}"
    done = shell(f"{command}\nexit ${{PIPESTATUS[0]}}", tmp_path)
    assert "Traceback" not in said(tmp_path) and done.returncode == 1, said(tmp_path)
    if sentence is not None:
        assert said(tmp_path).endswith(sentence) and ("cannot be written" in said(tmp_path)) == bool(sentence)
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "result.json").read_text())["exit"] == 1
    assert "from the rank" in (run / "logs/node_00_local0/rank_000.log").read_text()
    status = forked.call(["status", "--json"], cwd=tmp_path)
    assert json.loads(status.stdout)["state"] == "failed"


def test_what_only_prints_ends_there(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n" * 100)
    verbs = ("diagnose --json rank_0.log", "render slurm --nodes 2 t.py", "--help", "run --help")
    for verb in verbs:
        done = shell(f"{ALLRANKS} {verb} >/dev/full", tmp_path)
        assert (done.returncode, said(tmp_path)) == (2, f"{NO_SPACE}\n"), verb
        done = shell(f"{ALLRANKS} {verb} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
        assert (done.returncode, said(tmp_path)) == (0, ""), verb
        done = shell(f"{ALLRANKS} {verb} >&-", tmp_path)
        assert "Traceback" not in said(tmp_path), said(tmp_path)


def test_a_follower_ends_when_its_reader_has_left(tmp_path: Path) -> None:
    """`logs -f | head` must not follow for ever: the run's state is never ended here."""
    run = tmp_path / "runs" / "r"
    (run / "logs" / "node_00_h1").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"schema": 1, "run": "r", "nodes": [{"name": "h1"}], "controller": {}}))
    log = run / "logs" / "node_00_h1" / "rank_000.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    read_end, write_end = os.pipe()
    with (tmp_path / "errors").open("w") as stderr:
        follower = forked.popen(["logs", "-f", "--no-fold"], cwd=tmp_path, stdout=write_end, stderr=stderr)
    os.close(write_end)
    assert os.read(read_end, 10)
    os.close(read_end)
    code = follower.wait(BOUND)
    assert "Traceback" not in said(tmp_path) and code == 0, said(tmp_path)
