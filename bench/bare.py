"""bare: what `--suite bandwidth` measures against a hand-written loop of the same calls, 2 ranks on this machine."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.launch import PROGRAMS
from bench.table import Report, Sample, alternate

SIZES = (65536, 1 << 20, 1 << 22)
OURS, BARE = "allranks.fabric --suite bandwidth", "a hand-written loop"
BOUND = 120.0


def gang(argv: Sequence[str], place: Path) -> str:
    """Two ranks on the loopback; rank 0's output."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    ranks = []
    for rank in ("0", "1"):
        env = {**common, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(subprocess.Popen([sys.executable, *argv], env=env, cwd=place, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True))  # fmt: skip
    out = [rank.communicate(timeout=BOUND)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"exit {[rank.returncode for rank in ranks]}: {out[0][-300:]}")
    return out[0]


def ours(place: Path) -> Sample:
    """Medians of our sweep at the sizes that both have."""
    rows = place / "rows.jsonl"
    rows.unlink(missing_ok=True)
    words = ["--suite", "bandwidth", "--only", "all_reduce", "--backend", "gloo", "--size", str(SIZES[-1])]
    gang(["-m", "allranks.fabric", *words, "--out", str(rows)], place)
    found = {r["size"]: r["median"] for r in map(json.loads, rows.read_text().splitlines()) if r["kind"] == "bandwidth"}
    return {str(size): found[size] for size in SIZES}


def bare(place: Path) -> Sample:
    """Medians of the loop."""
    lines = gang([str(PROGRAMS / "bare.py"), *map(str, SIZES)], place).splitlines()
    found = json.loads(lines[-1])
    return {str(size): statistics.median(found[str(size)]) for size in SIZES}


def run(quick: bool) -> Report:
    """10 alternations; the median of ours is to lie within the quartiles of the loop."""
    rounds = 3 if quick else 10
    title = f"bare: all_reduce, 2 ranks over Gloo on the loopback, medians of a run, {rounds} runs each"
    report = Report("bare", title)
    with tempfile.TemporaryDirectory() as place:
        cases: dict[str, Callable[[], Sample]] = {OURS: lambda: ours(Path(place)), BARE: lambda: bare(Path(place))}
        report.samples = alternate(cases, rounds, alone=True)
    for size in SIZES:
        mine, loop = ([1e3 * s[str(size)] for s in report.samples[name] if str(size) in s] for name in (OURS, BARE))
        low, _, high = statistics.quantiles(loop, n=4) if len(loop) > 1 else (0.0, 0.0, 0.0)
        report.add(f"{size >> 10} KB, {BARE}", loop, "ms")
        report.add(f"{size >> 10} KB, {OURS}", mine, "ms", f"{low:.3f}–{high:.3f}", _within(low, high))
    report.remark()
    return report


def _within(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: low <= value <= high
