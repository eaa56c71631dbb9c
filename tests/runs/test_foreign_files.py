"""Logs that are compressed, come through a pipe, or are named /dev/stdin; digits that are none of ours."""

import gzip
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from tests import forked
from tests.hosts.waiting import BOUND
from tests.outcome import outcome

from allranks.cluster.slurm_allocation import read_allocation
from allranks.errors import AllranksError
from allranks.runs.logdiagnosis import find_logs, read_logs

pytestmark = pytest.mark.processes

PACKAGE = Path(__file__).resolve().parents[2] / "src/allranks"
LOG = "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0\n" + "step 2\n" * 50_000


def diagnose(work: Path, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return forked.call(["diagnose", *words], cwd=work, input_text=stdin, timeout=BOUND)


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with gzip.open(tmp_path / "logs/rank0.log.gz", "wt") as file:
        file.write(LOG)
    with gzip.open(tmp_path / "logs/weights.tar.gz", "wt") as file:
        file.write(LOG)
    assert find_logs([str(tmp_path / "logs")]) == [tmp_path / "logs/rank0.log.gz"]
    for word in ("logs", "logs/rank0.log.gz"):
        done = diagnose(tmp_path, word)
        assert "cuda-out-of-memory" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("damage", ["cut", "none", "changed"])
def test_a_damaged_compressed_log_is_said(damage: str, tmp_path: Path) -> None:
    data = gzip.compress(LOG.encode())
    made = {"cut": data[: len(data) // 2], "none": b"text", "changed": data[:40] + b"\0" * 40 + data[80:]}[damage]
    (tmp_path / "x.log.gz").write_bytes(made)
    done = diagnose(tmp_path, "x.log.gz")
    assert done.returncode == 2 and done.stderr.startswith("allranks: x.log.gz: "), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("word", ["-", "/dev/stdin"])
def test_a_log_comes_through_standard_input(word: str, tmp_path: Path) -> None:
    assert "cuda-out-of-memory" in diagnose(tmp_path, word, stdin=LOG).stdout


def test_a_log_comes_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(LOG), daemon=True)
    writer.start()
    found = read_logs(find_logs([str(tmp_path / "pipe")]))
    writer.join(BOUND)
    assert any("out of memory" in line.text for line in found.lines)


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-4]", "SLURM_TASKS_PER_NODE": "1(x4)"}


@pytest.mark.parametrize("digits", ["²", "①", "1²", "٣²"])
@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "SLURM_TASKS_PER_NODE", "SLURM_RESTART_COUNT", "SLURM_HET_SIZE", "SLURM_JOB_NODELIST"]
)
def test_digits_that_int_does_not_take_are_no_numbers(name: str, digits: str) -> None:
    found = outcome(AllranksError, read_allocation, {**ALLOCATION, name: digits})
    if isinstance(found, AllranksError):
        assert name in str(found) or digits in str(found)
    else:
        assert found is None or found.restarts == 0


def test_no_module_takes_such_digits() -> None:
    """str.isdigit() is true of ², which int() refuses; str.isdecimal() is true of what int() takes."""
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"\.is(digit|numeric)\(\)", line)
    ]
    assert found == [  # of bytes: ASCII alone
        "gang/matching.py: if digits.isdigit() and len(digits) <= MOST_DIGITS:",
    ]
