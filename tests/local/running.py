"""Runs of the real `allranks` on virtual nodes of this machine: no root, no sshd, some seconds each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from tests import forked
from tests.hosts.waiting import BOUND, wait_until
from tests.measured_time import ledger_faults
from tests.reference.validating import directory_faults, faults, printed_faults

from allranks.protocol.codec import encode
from allranks.runs.directory import RunDirectory
from allranks.runs.judged import judge_run


class LocalRun:
    """One `allranks run --local`; `place` holds its work directory and its runs directory."""

    started: ClassVar[list[LocalRun]] = []  # by the test that runs
    process: subprocess.Popen[str] | forked.Process

    def __init__(
        self, place: Path, code: str, *options: str, nodes: int = 2, command: str = "train.py", **environment: str
    ) -> None:
        self.begin(place, {"train.py": code}, nodes, ["--nproc", "1", *options, "--", *command.split()], environment)

    def begin(
        self, place: Path, files: dict[str, str], nodes: int, words: list[str], environment: dict[str, str]
    ) -> None:
        """Start it with these files in its work directory."""
        self.place, self.work, self.runs = place, place / "work", place / "runs"
        self.work.mkdir(exist_ok=True)
        for name, text in files.items():
            (self.work / name).write_text(text)
        words = ["run", "--local", str(nodes), "--python", sys.executable, "--json", *words]
        self.environment = {**os.environ, "ALLRANKS_RUNS_DIR": str(self.runs), **environment}
        with (place / "stdout").open("w") as stdout, (place / "stderr").open("w") as stderr:
            if "PYTHONPATH" in environment:  # an interpreter of its own
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "allranks", *words], env=self.environment, cwd=self.work,
                    stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, start_new_session=True,
                )  # fmt: skip
            else:
                self.process = forked.popen(words, env=self.environment, cwd=self.work, stdout=stdout, stderr=stderr)
        self.started.append(self)

    @classmethod
    def end_all(cls) -> None:
        """End the runs that still go on, as SIGTERM does, and forget all of them."""
        while cls.started:
            run = cls.started.pop()
            if run.process.poll() is None:
                run.end()

    def end(self) -> None:
        """End it as SIGTERM does."""
        self.process.terminate()
        self.process.wait(BOUND)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command beside it, to its end."""
        return forked.call(words, cwd=self.work, env=self.environment, timeout=2 * BOUND)

    def ask(self, *words: str) -> dict[str, Any]:
        """What another command prints with --json."""
        document: dict[str, Any] = json.loads(self.call(*words, "--json").stdout)
        assert printed_faults([*words, "--json"], document) == []
        return document

    @property
    def stderr(self) -> str:
        return (self.place / "stderr").read_text()

    @property
    def log(self) -> str:
        """What all ranks have printed."""
        return "".join(path.read_text() for path in self.runs.glob("*/logs/*/rank_*.log"))

    @property
    def directory(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of a name so far."""
        path = self.runs.is_dir() and next(self.runs.glob("*/events.jsonl"), None)
        lines = path.read_text().splitlines() if path else []
        return [e for e in map(json.loads, (k for k in lines if k.endswith("}"))) if e["event"] == name]

    def until(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Waits for events."""
        return wait_until(lambda: self.events(name) if len(self.events(name)) >= count else [], BOUND, name)

    def result(self, has_true_clock: bool = True) -> dict[str, Any]:
        """Waits for the end; the verdict must come from the run directory's files alone as well.

        The ledger of time is of no use where the clock was set meanwhile.
        """
        try:
            code = self.process.wait(BOUND)
        finally:
            self.process.kill()
        document: dict[str, Any] = json.loads((self.place / "stdout").read_text())
        assert document["exit"] == code
        assert directory_faults(self.directory) == [] == faults("result", document)
        assert not has_true_clock or ledger_faults(self.directory) == []
        verdict = document["verdict"]
        if verdict is not None:
            kept = self.place / "again" / self.directory.name
            shutil.copytree(self.directory, kept, ignore=shutil.ignore_patterns("verdict.json", "result.json"))
            again = encode(judge_run(RunDirectory(kept)))
            assert {k: again[k] for k in ("cause", "where", "message")} == {
                k: verdict[k] for k in ("cause", "where", "message")
            }
        return document
