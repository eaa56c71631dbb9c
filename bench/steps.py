"""steps: megabytes a second that the controller looks through for steps, by what ranks print and in which pieces."""

from __future__ import annotations

import time
from functools import partial

from allranks.gang.steps import StepFinder
from bench.table import Report, Sample, alternate, column

SIZE, QUICK = 32 << 20, 4 << 20  # bytes
PIECES = (4 << 10, 64 << 10)
RATE = 20e6  # bytes a second at which pieces come
LOGS = {
    "no steps": b"x" * 70 + b"\n",
    "NCCL INFO": b"node0417:30712:31544 [5] NCCL INFO Channel 00/0 : 3[3] -> 4[4] via P2P/CUMEM/read\n",
    "words that are none": b"a step of the iteration / batch < Epoch: [ (train) v_num= step= steps: step: \n",
    "steps": b"step %d loss 2.1 lr 1e-4\n",
    "bars": b"  8%%|#         | %d/60000000 [00:00<00:01, 47.93it/s]\r",
}


def _log(line: bytes, size: int) -> bytes:
    numbered = b"%" in line
    lines = [line % number if numbered else line for number in range(size // len(line) + 1)]
    return b"".join(lines)[:size]


def _look(log: bytes, piece: int) -> Sample:
    finder = StepFinder()
    begins = time.process_time()
    for start in range(0, len(log), piece):
        finder.feed(log[start : start + piece], start / RATE, start / RATE)
    return {"rate": len(log) / 1e6 / (time.process_time() - begins)}


def run(quick: bool) -> Report:
    """Measure each kind of log in each size of pieces, by turns."""
    logs = {name: _log(line, QUICK if quick else SIZE) for name, line in LOGS.items()}
    cases = {
        f"{name}, pieces of {piece >> 10} KiB": partial(_look, log, piece)
        for name, log in logs.items()
        for piece in PIECES
    }
    report = Report("steps", "steps: a rank's output looked through, per second of processor time")
    report.samples = alternate(cases, 2 if quick else 5)
    for label, samples in report.samples.items():
        report.add(label, column(samples, "rate"), "MB/s")
    return report
