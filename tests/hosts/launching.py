"""Starts the real `allranks` on a bed and looks at what it did, from outside.

A run's processes are known by their working directory (each launch has its own, and no child of the test
programs leaves it), so what is left is found without asking allranks. The launcher is forked (tests/forked.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests import forked
from tests.hosts.bed import Bed
from tests.hosts.waiting import BOUND, wait_until
from tests.measured_time import ledger_faults
from tests.processes import command_of, parent_of, stat_of
from tests.reference.validating import directory_faults

from allranks.protocol.codec import encode
from allranks.runs.directory import RunDirectory
from allranks.runs.judged import judge_run

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = sys.executable
Own = TypeVar("Own", bound="Launch")


class Launch:
    """One `allranks run --json`; `place` holds its work directory and its runs directory."""

    def __init__(self, bed: Bed, place: Path, user: str = "root") -> None:
        self.bed, self.user = bed, user
        self.place = place
        self.work = place / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.runs = place / "runs"
        self.process: subprocess.Popen[str] | forked.Process | None = None

    def command(self, verb: str, *words: str) -> list[str]:
        return [PYTHON, "-m", "allranks", verb, *words]

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        environment = {**self.bed.env(self.user), "ALLRANKS_RUNS_DIR": str(self.runs), **(extra or {})}
        environment.pop("VIRTUAL_ENV", None)
        return environment

    def call(
        self, verb: str, *words: str, env: dict[str, str] | None = None, bound: float = BOUND
    ) -> subprocess.CompletedProcess[str]:
        """A verb that ends by itself."""
        return forked.call([verb, *words], cwd=self.work, env=self.environment(env), timeout=bound)

    def start(
        self, program: list[str], *options: str, hosts: str | None = None, nproc: int | None = 1,
        env: dict[str, str] | None = None, json_: bool = True, python: str | None = PYTHON,
    ) -> Launch:  # fmt: skip
        """Starts `run` in the background."""
        words = ["--hosts", hosts or str(self.bed.hostfile_names), *options]
        words += ["--nproc", str(nproc)] if nproc is not None else []
        words += ["--python", python] if python is not None else []
        words += ["--json"] if json_ else []
        return self.begin("run", *words, "--", *program, env=env)

    def begin(self, verb: str, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Launch:
        """Starts a verb in the background, in the place of what ran before."""
        with (self.place / "stdout").open("w") as stdout, (self.place / "stderr").open("w") as stderr:
            self.process = forked.popen(
                [verb, *words], cwd=cwd or self.work, env=self.environment(env), stdout=stdout, stderr=stderr
            )
        return self

    # -- looking -----------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        found = sorted(self.runs.iterdir(), key=lambda p: p.stat().st_mtime) if self.runs.is_dir() else []
        assert found, self.stderr
        return found[-1]

    @property
    def stderr(self) -> str:
        return (self.place / "stderr").read_text()

    @property
    def stdout(self) -> str:
        return (self.place / "stdout").read_text()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Events so far, all or of one name."""
        if not self.runs.is_dir() or not any(self.runs.iterdir()):
            return []
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [e for e in found if name is None or e["event"] == name]

    def until(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Waits for events; fails at once if the launcher ended without them."""

        def look() -> list[dict[str, Any]] | None:
            found = self.events(name)
            if len(found) < count:
                assert self.process is None or self.process.poll() is None or len(self.events(name)) >= count, (
                    f"ended without {count} × {name}:\n{self.stderr}\n{self.stdout}"
                )
                return None
            return found

        return wait_until(look, BOUND, f"{count} × {name}") or []

    def until_running(self: Own, ranks: int) -> Own:
        """Waits until every rank's program has said that it is up (a file of its own in the work directory)."""
        self.until("rank-started", ranks)
        wait_until(lambda: len(list(self.work.glob("up-*"))) >= ranks, BOUND, f"{ranks} programs up")
        return self

    def wait(self, bound: float = BOUND) -> int:
        """Waits for the end of the launcher and gives its exit code."""
        assert self.process is not None
        return self.process.wait(bound)

    def result(self, bound: float = BOUND) -> dict[str, Any]:
        """Waits for the end and gives the JSON document."""
        code = self.wait(bound)
        document: dict[str, Any] = json.loads(self.stdout)
        assert document["exit"] == code
        faults = directory_faults(self.run_dir)
        if all(finding["id"] != "disk-full" for finding in document.get("findings", [])):
            faults += ledger_faults(self.run_dir)  # it is made of the events, which find no room on a full disk
        assert faults == [], faults
        strays = [e for e in self.events("note") if "out of order" in e["message"]]
        assert strays == [], (strays, self.events())
        if document["verdict"] is not None and "collectives" not in document:  # what tests said is kept as it is
            self._judge_again(document["verdict"])
        return document

    def over(self, bound: float = BOUND) -> dict[str, Any]:
        """Waits for the end, at which no process of the run is alive, and gives the JSON document."""
        document = self.result(bound)
        assert self.alive() == []
        return document

    def done(self, bound: float = BOUND) -> dict[str, Any]:
        """As `over`, of a run that has ended well."""
        document = self.over(bound)
        assert (document["exit"], document["verdict"]) == (0, None), (document, self.stderr[-2000:])
        return document

    def _judge_again(self, verdict: dict[str, Any]) -> None:
        """`allranks diagnose RUN` says the same, from the run directory alone: no document of the end is there."""
        shutil.rmtree(self.place / "again", ignore_errors=True)
        kept = self.place / "again" / self.run_dir.name
        shutil.copytree(self.run_dir, kept, ignore=shutil.ignore_patterns("verdict.json", "result.json"))
        again = encode(judge_run(RunDirectory(kept)))
        same = ("cause", "where", "victims", "message")
        again_same = {k: again[k] for k in same}
        verdict_same = {k: verdict[k] for k in same}
        assert again_same == verdict_same, f"judged again: {again_same}, at the end: {verdict_same}"

    def end(self) -> dict[str, Any]:
        """Waits for the end of a run in words or in JSON, and gives result.json."""
        code = self.wait()
        document: dict[str, Any] = json.loads((self.run_dir / "result.json").read_text())
        assert document["exit"] == code
        return document

    def log(self, rank: int, attempt: int = 0) -> str:
        """A rank's whole log."""
        folder = self.run_dir / "logs" / (f"attempt_{attempt}" if attempt else "")
        (path,) = folder.glob(f"node_*/rank_{rank:03d}.log")
        return path.read_text()

    def forget(self) -> None:
        """Removes what its runs have left in node directories."""
        for path in self.runs.glob("*/run.json"):
            shutil.rmtree(Path("/tmp/allranks-0") / json.loads(path.read_text())["uid"], ignore_errors=True)

    # -- processes ---------------------------------------------------------------------------------

    def alive(self) -> list[int]:
        """Machine pids of living processes whose working directory is this launch's."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                if os.readlink(f"/proc/{entry}/cwd") == str(self.work) and stat_of(entry)[0] not in "ZX":
                    found.append(int(entry))
            except OSError:
                continue
        own = self.process.pid if self.process is not None else 0
        return [pid for pid in found if pid != own]

    def all_gone(self, bound: float = BOUND) -> bool:
        """Waits until nothing of the run is alive."""
        return wait_until(lambda: not self.alive(), bound, f"no process left ({self.alive()})")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill_launcher(self) -> None:
        """SIGKILL to allranks itself."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def rank_pid(self, rank: int) -> int:
        """The machine pid of a rank's program, by its command's RANK.

        A daemon that the program left has the same environment, and the agent for its parent. It began later, and has a
        smaller pid where those begin again at the lowest.
        """
        begun = {}
        for pid in self.alive():
            with contextlib.suppress(OSError):  # it has ended since
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() in environ and _parent_is_agent(pid):
                    begun[pid] = _start_ticks(pid)
        assert begun, f"rank {rank} is not alive"
        return min(begun, key=lambda pid: begun[pid])

    def agent_pid(self, rank: int) -> int:
        """The machine pid of the agent that owns a rank."""
        return parent_of(self.rank_pid(rank))


def _start_ticks(pid: int) -> int:
    """When a process began: proc(5), field 22, counted from the state on."""
    return int(stat_of(pid)[19])


def _parent_is_agent(pid: int) -> bool:
    """A rank's main process is a child of the agent; the agent runs the boot line."""
    words = command_of(parent_of(pid))
    return b"ALLRANKS-BOOT" in words or b"allranks.agent" in words


def program(name: str, *words: str) -> list[str]:
    """A test program with its arguments."""
    return [str(PROGRAMS / name), *words]


def culprit(verdict: dict[str, Any]) -> tuple[str | None, int | None]:
    """Node and rank of a verdict; a verdict on a rank says its pid too, where it had a process."""
    where = verdict["where"]
    assert "pid" not in where or where["pid"] > 1
    return where.get("node"), where.get("rank")


def lines_of(text: str, keep: Callable[[str], bool]) -> list[str]:
    """Lines of a text that are of interest."""
    return [line for line in text.splitlines() if keep(line)]


__all__ = ["BOUND", "PROGRAMS", "PYTHON", "Launch", "culprit", "lines_of", "program", "signal"]
