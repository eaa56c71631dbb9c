"""check: looking at all hosts, against ansible's facts, an ssh loop and pdsh; and what the look costs a run."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.hosts.bed import Bed

from bench import rivals
from bench.launch import ALLRANKS, Ground, hosts
from bench.quiet import Work
from bench.table import Report, Sample, alternate, column

ROOT = Path(__file__).resolve().parents[1]
SIZES = (16, 32)
RUN_HOSTS = 8
BOUND = 400.0
QUICK, FULL = "allranks check --level quick", "allranks check (full)"
PARITY, NO_TORCH = "allranks check, facts and parity", "allranks check, facts and parity but `torch_import`"
PIPELINED, DELIVERED = "ansible setup, pipelining on", "ansible setup, pipelining off"
SSH, PDSH = "ssh loop (xargs -P 32)", "pdsh -f 32"
CHECKED, UNCHECKED = "allranks run", "allranks run --no-check"
SCRIPT = "examples/train_lm.py"
RATIO, MORE = 0.25, 1.0
Case = Callable[[], Sample]


class Command(Protocol):
    """Something to time, that knows whether it did its work."""

    argv: list[str]

    @property
    def env(self) -> Mapping[str, str]: ...

    def judge(self, code: int, out: str) -> None: ...

    def close(self) -> None: ...


def timed(command: Command, directory: Path, out: Path) -> Sample:
    """Seconds on the wall; CPU of all processes below this one, so the hosts' too; that of the command's side alone."""
    try:
        with out.open("wb") as file:
            work, before, began = Work(), _children(), time.monotonic()
            done = subprocess.run(
                command.argv,
                env=command.env,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=BOUND,
                check=False,
            )
            seconds, cpu, own = time.monotonic() - began, work.seconds(), _children() - before
        command.judge(done.returncode, out.read_text(errors="replace"))
    finally:
        command.close()
    return {"seconds": seconds, "cpu": cpu, "own_cpu": own, "exit": done.returncode, "load": os.getloadavg()[0]}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Allranks:
    """`allranks check` as told, from a git repository that all hosts see; its JSON is read to see that it looked."""

    def __init__(self, bed: Bed, place: Path, words: Sequence[str], ids: Sequence[str]) -> None:
        self._bed, self._ids = bed, set(ids)
        where = ["--hosts", str(bed.hostfile_names), "--python", sys.executable]
        self.argv = [*ALLRANKS, "check", *where, "--runs-dir", str(place / "runs"), *words, "--json", "--", SCRIPT]
        self.env = bed.env()
        self.skipped: list[str] = []

    def judge(self, code: int, out: str) -> None:
        """The checks asked for, and no others, of every host; none failed (the hosts are well) or could not look."""
        document = json.loads(out[out.index('{"schema"') :].splitlines()[0]) if '{"schema"' in out else {}
        table: dict[str, dict[str, str]] = document.get("table") or {}
        hosts = {h.name for h in self._bed.hosts}
        blind = sorted(i for i, row in table.items() if "unknown" in row.values() or set(row) != hosts)
        if code != 0 or set(table) != self._ids or blind:
            odd = sorted(set(table) ^ self._ids)
            said = [f.get("message") for f in document.get("findings") or ()] or out[-400:]
            raise RuntimeError(f"exit {code}; could not look: {blind}; asked or told but not both: {odd}; {said}")
        self.skipped = sorted(i for i, row in table.items() if set(row.values()) == {"skipped"})

    def close(self) -> None:
        """Nothing stays."""


def known(bed: Bed, level: str) -> dict[str, str]:
    """The checks of a level and their groups, as `--dry-run` tells them."""
    words = ["check", "--dry-run", "--hosts", str(bed.hostfile_names), "--level", level, "--json"]
    done = subprocess.run([*ALLRANKS, *words], env=bed.env(), capture_output=True, text=True, timeout=60, check=True)
    return {c["id"]: c["group"] for c in json.loads(done.stdout)["checks"]}


def parity(full: Mapping[str, str]) -> list[str]:
    """What one node is asked and all are compared in: no network."""
    return [name for name, group in full.items() if group != "network"]


def repository(directory: Path) -> Path:
    """A git repository of some size: the project's sources as they are now."""
    code = directory / "code"
    for part in ("src", "examples"):
        shutil.copytree(ROOT / part, code / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    git = ["git", "-C", str(code), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "sources"]):
        subprocess.run([*git, *words], check=True, capture_output=True, timeout=60)
    return code


class Cases:
    """The ways to look at one bed's hosts."""

    def __init__(self, bed: Bed, ground: Ground) -> None:
        self._bed, self._ground = bed, ground
        self._code = repository(ground.directory)
        self._full = known(bed, "full")
        self._quick = known(bed, "quick")
        self.parity = parity(self._full)

    def all(self, lacking: Mapping[str, str | None]) -> dict[str, Case]:
        """In the order of the table."""
        less = [name for name in self.parity if name != "torch_import"]
        ways: dict[str, Case] = {
            QUICK: partial(self._ours, ["--level", "quick"], list(self._quick)),
            FULL: partial(self._ours, [], list(self._full)),
            PARITY: partial(self._ours, ["--level", "full", "--only", ",".join(self.parity)], self.parity),
            NO_TORCH: partial(self._ours, ["--level", "full", "--only", ",".join(less)], less),
            PIPELINED: partial(self._ansible, True),
            DELIVERED: partial(self._ansible, False),
            SSH: partial(self._loop, False),
            PDSH: partial(self._loop, True),
        }
        return {label: case for label, case in ways.items() if lacking.get(label) is None}

    def _ours(self, words: Sequence[str], ids: Sequence[str]) -> Sample:
        place = self._ground.place()
        command = Allranks(self._bed, place, words, ids)
        sample = timed(command, self._code, place / "out")
        return {**sample, "checks": len(ids), "skipped": command.skipped}

    def _ansible(self, pipelining: bool) -> Sample:
        place = self._ground.place()
        return timed(rivals.AnsibleSetup(self._bed, place, pipelining), place, place / "out")

    def _loop(self, with_pdsh: bool) -> Sample:
        place = self._ground.place()
        return timed(rivals.Loop(self._bed, with_pdsh), place, place / "out")


class Trivial:
    """`allranks run` of a program that ends at once, with the look before it or without."""

    def __init__(self, bed: Bed, place: Path, code: Path, looks: bool) -> None:
        self._runs, self._looks = place / "runs", looks
        where = ["--hosts", str(bed.hostfile_names), "--python", sys.executable, "--nproc", "1"]
        how = ["--runs-dir", str(self._runs), *([] if looks else ["--no-check"])]
        self.argv = [*ALLRANKS, "run", *where, *how, "--", str(code / "trivial.py")]
        self.env = bed.env()

    def judge(self, code: int, out: str) -> None:
        """It ended well, and looked only if it was to."""
        looked = any(self._runs.glob("*/evidence/preflight*.json"))
        if code != 0 or looked is not self._looks:
            raise RuntimeError(f"exit {code}, looked: {looked}: {' '.join(out[-400:].split())}")

    def close(self) -> None:
        """Nothing stays."""


def _run(bed: Bed, ground: Ground, code: Path, looks: bool) -> Sample:
    place = ground.place()
    return timed(Trivial(bed, place, code, looks), code, place / "out")


def run(quick: bool, sizes: Sequence[int] = SIZES, run_hosts: int = RUN_HOSTS) -> Report:
    """16 and 32 hosts; `run` on 8."""
    rounds = 1 if quick else 3
    report = Report("check", "check: looking at all hosts from one machine, connections new each time")
    lacking = _missing(report)
    for n in sizes:
        with hosts(n) as (bed, ground):
            cases = Cases(bed, ground)
            ways = cases.all(lacking)
            subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=BOUND)
            alternate({f"warm-up, {label}": ways[label] for label in (NO_TORCH, PIPELINED) if label in ways}, 1)
            samples = alternate(ways, rounds, alone=not quick)
        report.samples.update({f"{n} hosts, {label}": found for label, found in samples.items()})
        _rows(report, n, samples)
    _run_rows(report, run_hosts, rounds)
    _notes(report, cases.parity)
    return report


def _missing(report: Report) -> dict[str, str | None]:
    """Why a rival cannot be measured; told in the notes."""
    no_ansible, no_pdsh = rivals.ansible(), rivals.pdsh()
    report.notes += [reason for reason in (no_ansible, no_pdsh) if reason]
    return {PIPELINED: no_ansible, DELIVERED: no_ansible, PDSH: no_pdsh}


def _rows(report: Report, n: int, samples: Mapping[str, list[Sample]]) -> None:
    """Seconds and CPU of every case; the aim is judged on the most hosts."""
    seconds = {label: column(found, "seconds") for label, found in samples.items()}
    rows = {label: report.add(f"{n} hosts, {label}", values) for label, values in seconds.items()}
    for label, found in samples.items():
        report.add(f"{n} hosts, {label}: CPU", column(found, "cpu"))
    faster = min((rows[label].median for label in (PIPELINED, DELIVERED) if seconds.get(label)), default=None)
    for label in (PARITY, NO_TORCH):
        ratio = rows[label].median / faster if faster else float("nan")
        rows[label].aim = f"is {ratio:.2f} × the faster ansible" if faster else ""
        if label == PARITY and n == SIZES[-1]:
            rows[label].aim = f"< {RATIO:g} × the faster ansible (is {ratio:.2f})"
            rows[label].met = ratio < RATIO


def _run_rows(report: Report, n: int, rounds: int) -> None:
    """The look's cost: `run` with it less `run` without it, of the same round."""
    with hosts(n) as (bed, ground):
        code = ground.directory / "trivial"
        code.mkdir()
        (code / "trivial.py").write_text("print('done')\n")
        ways = {label: partial(_run, bed, ground, code, label == CHECKED) for label in (CHECKED, UNCHECKED)}
        alternate({f"warm-up, {CHECKED}": ways[CHECKED]}, 1)
        samples = alternate(ways, rounds, alone=rounds > 1)
    for label, found in samples.items():
        report.samples[f"{n} hosts, {label}"] = found
        report.add(f"{n} hosts, {label} of a trivial program", column(found, "seconds"))
    pairs = zip(samples[CHECKED], samples[UNCHECKED], strict=True)
    good = [(a, b) for a, b in pairs if not (a.get("error") or b.get("error"))]
    report.add(
        f"{n} hosts, what the look adds to `run`",
        [a["seconds"] - b["seconds"] for a, b in good],
        "s",
        f"≤ {MORE:g} s",
        lambda value: value <= MORE,
    )
    report.add(f"{n} hosts, what the look adds to `run`: CPU", [a["cpu"] - b["cpu"] for a, b in good])


def _notes(report: Report, ids: Sequence[str]) -> None:
    skipped: set[str] = {name for found in _good(report, PARITY) for name in found.get("skipped") or ()}
    load = [sample["load"] for found in report.samples.values() for sample in found if "load" in sample]
    report.notes += [
        "CPU: user and system seconds of all processes below the benchmark (/proc/PID/stat), so of the command and of "
        "all hosts; `own_cpu` in the raw file: of the command and its children alone (getrusage)",
        f"facts and parity: {len(ids)} checks, all but group network; of them nothing "
        f"to look at here: {', '.join(sorted(skipped)) or 'none'}",
        f"allranks with --python {Path(sys.executable).parent.parent.name}'s, in a git repository; {rivals.versions()}",
    ]
    if load:
        report.notes.append(f"load while it ran: {min(load):.1f} to {max(load):.1f}")
    if not rivals.has_gpus():
        report.notes.append("there is no nvidia-smi: the loops' second command fails at once")
    report.remark()


def _good(report: Report, label: str) -> list[dict[str, Any]]:
    return [s for key, found in report.samples.items() if key.endswith(f", {label}") for s in found if "error" not in s]
