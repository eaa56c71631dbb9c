"""Starts the real `allranks` on a real Slurm, inside an allocation or from the login node, and looks at what it did."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hosts.launching import BOUND, PYTHON, Launch
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed

SCRIPT = Path(__file__).parents[2] / "examples" / "train_lm.py"
JOB = [str(SCRIPT), "--steps", "2", "--batch", "2", "--context", "64", "--layers", "2", "--width", "64"]


class SlurmLaunch(Launch):
    """As a Launch over ssh; `inside` and `outside` take the place of `start`."""

    def __init__(self, bed: SlurmBed, place: Path) -> None:
        super().__init__(bed.hosts, place)
        self.slurm = bed

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        environment = self.slurm.env({"ALLRANKS_RUNS_DIR": str(self.runs), **(extra or {})})
        environment.pop("VIRTUAL_ENV", None)
        return environment

    def inside(
        self, program: Sequence[str], *options: str, salloc: Sequence[str] = ("-N4",), env: dict[str, str] | None = None
    ) -> SlurmLaunch:
        """`salloc … allranks run`: no target is named, Slurm is the default there."""
        words = ["salloc", "-Q", *salloc, *self.command("run", *options, "--python", PYTHON, "--json", "--", *program)]
        return self.popen(words, env)

    def outside(
        self, program: Sequence[str], *options: str, nodes: int = 4, env: dict[str, str] | None = None
    ) -> SlurmLaunch:
        """`allranks run --slurm`: submits and follows."""
        words = ["--slurm", "--nodes", str(nodes), "--python", PYTHON, "--json", *options]
        self.begin("run", *words, "--", *program, env=env)
        return self

    def script(self, program: Sequence[str], *options: str, directives: Sequence[str] = (), start: str = "exec") -> str:
        """A user's own batch script with `allranks run` in it; gives the job's number. `start`: exec, or nothing."""
        run = shlex.join(self.command("run", *options, "--python", PYTHON, "--json", "--", *program))
        lines = ["#!/bin/bash", *(f"#SBATCH {d}" for d in directives), f"{start} {run}"]
        (self.work / "job.sh").write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            ["sbatch", "--parsable", f"--output={self.place}/stdout", f"--error={self.place}/stderr", "job.sh"],
            env=self.environment(), cwd=self.work, capture_output=True, text=True, check=True,
        )  # fmt: skip
        job = done.stdout.strip()

        def has_started() -> bool:
            return self.slurm.job(job)["JobState"] not in ("PENDING", "CONFIGURING")

        try:
            wait_until(has_started, BOUND, "the job starts")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.slurm.job(job)}, nodes {self.slurm.states()}") from None
        return job

    def written_result(self, bound: float = BOUND) -> dict[str, Any]:
        """result.json, once it is there."""
        path = wait_until(lambda: self.runs.is_dir() and self.run_dir / "result.json", bound, "a run directory")
        wait_until(path.exists, bound, f"result.json\n{self.stderr if (self.place / 'stderr').exists() else ''}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def task_pid(self, name: str) -> int:
        """The machine pid of this run's task on a node: what slurmstepd has started there."""
        for process in self.slurm.hosts.host(name).pids():
            parent = Path(f"/proc/{process.ppid}/comm")
            if process.pid in self.alive() and parent.exists() and parent.read_text().startswith("slurmstepd"):
                return process.pid
        raise AssertionError(f"no task of this run on {name}")

    def popen(self, words: list[str], env: dict[str, str] | None) -> SlurmLaunch:
        self.process = subprocess.Popen(
            words, env=self.environment(env), cwd=self.work, stdin=subprocess.DEVNULL,
            stdout=(self.place / "stdout").open("w"), stderr=(self.place / "stderr").open("w"), text=True,
            start_new_session=True,
        )  # fmt: skip
        return self

    @property
    def job(self) -> str:
        """The number of the job that the run directory names."""
        for name in ("job.json", "run.json"):
            path = self.run_dir / name
            if path.exists():
                found = json.loads(path.read_text())
                number = found.get("job") or (found.get("slurm") or {}).get("job")
                if number:
                    return str(number)
        raise AssertionError(f"no job is named in {self.run_dir}")

    @property
    def saved(self) -> list[str]:
        """What ranks have saved before their end."""
        return sorted(path.name for path in self.work.glob("saved-*"))

    def nothing_left(self) -> None:
        """No process of the run, and on the hosts nothing but Slurm's own services."""
        self.all_gone()
        wait_until(lambda: not self.slurm.left(), BOUND, f"nothing left on the hosts ({self.slurm.left()})")
