"""scan: 1 GB of NCCL INFO with one failure in it: `allranks diagnose` beside `rg` that counts the same texts.

And the least that a diagnosis takes: one log of a few lines.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks.diagnose.signatures import NEEDS, ROWS
from bench.table import Report, Sample, alternate, column

RANKS = 1024
BLOCK = 8 << 20
SIZE, QUICK = 1 << 30, 100 << 20  # bytes
OURS, LITERALS, PATTERNS = "allranks diagnose", "rg, the literals", "rg, the patterns"
SMALL = "allranks diagnose, one small log"
AIM_SECONDS, AIM_MEGABYTES, AIM_SMALL = 5.4, 90.0, 0.3
CAUSE = "nccl-ib-error"
# As NCCL prints them (init.cc, transport/*.cc, graph/*.cc, collectives under NCCL_DEBUG_SUBSYS=COLL).
SHAPES = (
    "Channel {c:02d}/0 : {r}[{g}] -> {p}[{q}] via P2P/CUMEM/read",
    "Channel {c:02d}/0 : {r}[{g}] -> {p}[{q}] [send] via NET/IB/{g}/GDRDMA",
    "Channel {c:02d}/0 : {p}[{q}] -> {r}[{g}] [receive] via NET/IB/{g}/GDRDMA",
    "Trees [0] {p}/-1/-1->{r}->{q} [1] {p}/-1/-1->{r}->{q}",
    "Setting affinity for GPU {g} to ffffff00,0000ffff",
    "comm 0x{x:012x} rank {r} nRanks 1024 nNodes 128 localRanks 8 localRank {g} MNNVL 0",
    "AllReduce: opCount {c:x} sendbuff 0x{x:012x} recvbuff 0x{y:012x} count {n} datatype 9 op 0 root 0 comm "
    "0x{x:012x} [nranks=1024] stream 0x{y:012x}",
    "ReduceScatter: opCount {c:x} sendbuff 0x{x:012x} recvbuff 0x{y:012x} count {n} datatype 9 op 0 root 0 comm "
    "0x{x:012x} [nranks=1024] stream 0x{y:012x}",
    "NET/IB : GPU Direct RDMA Enabled for HCA {g} 'mlx5_{g}'",
    "threadThresholds 8/8/64 | 8192/8/64 | 512 | 512",
)
FAILURE = (
    "node0417:30712:31544 [5] transport/net_ib.cc:2282 NCCL WARN NET/IB : Got completion from peer 10.4.17.9<49244> "
    "with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send "
    "localGid fe80::1 remoteGids fe80::2 hca mlx5_5\n"
    "node0417:30712:31544 [5] NCCL INFO transport/net.cc:1298 -> 6\n"
)


def _block(random_: random.Random) -> bytes:
    """Lines of all ranks, mixed as they come."""
    lines, size = [], 0
    while size < BLOCK:
        rank = random_.randrange(RANKS)
        gpu, peer = rank % 8, random_.randrange(RANKS)
        text = random_.choice(SHAPES).format(
            c=random_.randrange(32), r=rank, g=gpu, p=peer, q=peer % 8, n=random_.randrange(1 << 26),
            x=random_.getrandbits(47), y=random_.getrandbits(47),
        )  # fmt: skip
        pid = 30000 + rank % 999
        line = f"node{rank // 8:04d}:{pid}:{pid + random_.randrange(900)} [{gpu}] NCCL INFO {text}\n"
        lines.append(line)
        size += len(line)
    return "".join(lines).encode()


def write_log(path: Path, size: int) -> None:
    """The failure stands at four fifths of the log."""
    random_ = random.Random(20261121)
    blocks = [_block(random_) for _ in range(8)]
    count = max(1, size // BLOCK)
    with path.open("wb") as file:
        for number in range(count):
            file.write(blocks[number % len(blocks)])
            if number == count * 4 // 5:
                file.write(FAILURE.encode())


class TreePeak(threading.Thread):
    """The most memory that a process and its children have had together; shared pages count once (PSS)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.megabytes = 0.0

    def run(self) -> None:
        while Path(f"/proc/{self._pid}/exe").exists():
            self.megabytes = max(self.megabytes, sum(map(_pss, [self._pid, *_children(self._pid)])))
            time.sleep(0.05)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _pss(pid: int) -> float:
    try:
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1000 if found else 0.0


def _timed(argv: list[str]) -> tuple[str, Sample]:
    begun = time.monotonic()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as it is installed
    process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    peak = TreePeak(process.pid)
    peak.start()
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{argv[0]}: exit {process.returncode}")
    peak.join()
    return said, {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime, "peak_mb": peak.megabytes}


def _ours(log: Path) -> Sample:
    said, sample = _timed([sys.executable, "-m", "allranks", "diagnose", str(log), "--json"])
    verdict = json.loads(said)
    if verdict["cause"] != CAUSE:
        raise RuntimeError(f"the verdict is {verdict['cause']}, not {CAUSE}: {verdict['message']}")
    return sample


def _rg(log: Path, patterns: Path, *words: str) -> Sample:
    said, sample = _timed(["rg", "--no-config", "--count", *words, "--file", str(patterns), str(log)])
    return {**sample, "lines": int(said)}


def _patterns(place: Path) -> tuple[Path, int]:
    """The rows' patterns that rg's engine takes (no look-around), without the groups' names."""
    taken = []
    for row in ROWS:
        pattern = re.sub(r"\(\?P<\w+>", "(?:", row.pattern)
        tried = subprocess.run(["rg", "--quiet", "--regexp", pattern], input="x", capture_output=True, text=True)
        if tried.returncode < 2:
            taken.append(pattern)
    path = place / "patterns"
    path.write_text("\n".join(taken) + "\n")
    return path, len(taken)


@contextmanager
def _scratch() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="allranks-scan-", dir="/var/tmp"))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def run(quick: bool) -> Report:
    """One log in the page cache; each in turn."""
    size, rounds = (QUICK, 1) if quick else (SIZE, 5)
    report = Report("scan", f"scan: {size / 1e9:.2f} GB of NCCL INFO of {RANKS} ranks, one failure in it")
    with _scratch() as place:
        log, small, literals = place / "nccl.log", place / "small.log", place / "literals"
        write_log(log, size)
        small.write_text(FAILURE)
        literals.write_text("\n".join(sorted(NEEDS)) + "\n")
        _ours(small)  # writes the bytecode
        cases = {OURS: lambda: _ours(log), SMALL: lambda: _ours(small)}
        if shutil.which("rg") is None:
            report.notes.append("without rg beside it: it is not installed (apt install ripgrep)")
        else:
            patterns, taken = _patterns(place)
            cases[LITERALS] = lambda: _rg(log, literals, "--fixed-strings")
            cases[PATTERNS] = lambda: _rg(log, patterns)
            without = f"{len(ROWS) - taken} have look-around, which rg's engine has not"
            report.notes.append(f"{len(NEEDS)} literals and {taken} of {len(ROWS)} patterns ({without})")
        report.samples = alternate(cases, rounds)
    _rows(report)
    report.remark()
    return report


def _rows(report: Report) -> None:
    ours = report.samples[OURS]
    seconds, peak = column(ours, "seconds"), column(ours, "peak_mb")
    report.add(f"{OURS}: log → verdict", seconds, "s", f"≤ {AIM_SECONDS:g} s", lambda v: v <= AIM_SECONDS)
    aim = f"≤ {AIM_MEGABYTES:g} MB"
    report.add(f"{OURS}: peak memory, all processes", peak, "MB", aim, lambda v: v <= AIM_MEGABYTES)
    least = column(report.samples[SMALL], "seconds")
    report.add(f"{SMALL}: log → verdict", least, "s", f"≤ {AIM_SMALL:g} s", lambda v: v <= AIM_SMALL)
    for label in (LITERALS, PATTERNS):
        if label in report.samples:
            report.add(f"{label}: log → number of lines", column(report.samples[label], "seconds"))
    for label, found in report.samples.items():  # what others do at the time changes this little
        report.add(f"{label}: processor time", column(found, "cpu"))
    cores = sorted(float(s["others_cores"]) for found in report.samples.values() for s in found)
    if cores:
        middle = cores[len(cores) // 2]
        report.notes.append(f"others used {cores[0]:.2f}–{cores[-1]:.2f} cores meanwhile, {middle:.2f} in the median")
