"""Starts the real `allranks` on a real Slurm, inside an allocation or from the login node, and looks at what it did."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.launching import PYTHON, Launch
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed


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
        return self._popen(words, env)

    def outside(
        self, program: Sequence[str], *options: str, nodes: int = 4, env: dict[str, str] | None = None
    ) -> SlurmLaunch:
        """`allranks run --slurm`: submits and follows."""
        words = ["--slurm", "--nodes", str(nodes), "--python", PYTHON, "--json", *options]
        return self._popen(self.command("run", *words, "--", *program), env)

    def _popen(self, words: list[str], env: dict[str, str] | None) -> SlurmLaunch:
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

    def nothing_left(self) -> None:
        """No process of the run, and on the hosts nothing but Slurm's own services."""
        self.all_gone()
        wait_until(lambda: not self.slurm.left(), 60.0, f"nothing left on the hosts ({self.slurm.left()})")
