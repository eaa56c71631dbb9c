"""Where a benchmark's runs take place, and one `allranks run` in it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.hosts.bed import Bed

PROGRAMS = Path(__file__).parent / "programs"
ALLRANKS = [sys.executable, "-m", "allranks"]
BOUND = 120.0


class Ground:
    """A scratch directory that all hosts see, and a fresh place in it for each run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = count()

    def place(self) -> Path:
        """An empty directory with `work` in it, open to every user of the hosts."""
        place = self.directory / f"run-{next(self._numbers):03d}"
        for path in (place, place / "work"):
            path.mkdir()
            path.chmod(0o777)
        return place


@contextmanager
def ground() -> Iterator[Ground]:
    """Gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="arbench-"))
    directory.chmod(0o755)
    try:
        yield Ground(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def hosts(n: int) -> Iterator[tuple[Bed, Ground]]:
    """A bed whose hosts have a /tmp of their own, and the ground that they share."""
    with ground() as common, Bed.up(n, common.directory / "bed", own_tmp=True, shared=[common.directory]) as bed:
        yield bed, common


def free_port() -> int:
    """A port that no kernel hands out by itself."""
    return random.randint(20000, 30000)


class Launch:
    """One `allranks run`; `place/work` is the working directory of its ranks."""

    def __init__(self, place: Path, bed: Bed | None = None, user: str = "root") -> None:
        self.place, self.work, self.runs = place, place / "work", place / "runs"
        self._bed = bed
        self.env = {**(bed.env(user) if bed is not None else os.environ), "ALLRANKS_RUNS_DIR": str(self.runs)}
        self.env["XDG_STATE_HOME"] = str(place / "state")  # what is seen of machines here is no one's memory of them
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0.0

    def start(self, program: Sequence[str], options: Mapping[str, str | int | None]) -> Launch:
        """`options` without their dashes, None for one that takes no value; the target and --python are added."""
        options = {"python": sys.executable, **options}
        if self._bed is not None:
            options = {"hosts": str(self._bed.hostfile_names), **options}
        words = [str(w) for name, value in options.items() for w in (f"--{name}", value) if w is not None]
        argv = [*ALLRANKS, "run", *words, "--", *program]
        with (self.place / "stdout").open("wb") as out, (self.place / "stderr").open("wb") as err:
            self.began = time.time()
            self.process = subprocess.Popen(
                argv,
                env=self.env,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return self

    def verb(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Another verb, on the same runs directory."""
        return subprocess.run(
            [*ALLRANKS, verb, *words],
            env=self.env,
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def is_over(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def wait(self, bound: float = BOUND) -> int:
        """The exit code; past `bound` it is killed and that is an error."""
        assert self.process is not None
        try:
            return self.process.wait(bound)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"allranks run was not over after {bound:g} s: {self.complaint}") from None

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(BOUND)

    @property
    def complaint(self) -> str:
        """The end of what it wrote."""
        text = "".join((self.place / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return " ".join(text[-600:].split())

    @property
    def run_dir(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def result(self) -> dict[str, Any]:
        """result.json, or nothing."""
        try:
            document: dict[str, Any] = json.loads((self.run_dir / "result.json").read_text())
        except (OSError, ValueError):
            return {}
        return document

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl of the run."""
        return [json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()]

    def until_files(self, pattern: str, number: int, bound: float = BOUND) -> None:
        """Waits until the programs have left so many files in the working directory."""
        end = time.monotonic() + bound
        while len(list(self.work.glob(pattern))) < number:
            if self.is_over() or time.monotonic() > end:
                found = len(list(self.work.glob(pattern)))
                raise RuntimeError(f"{found} of {number} × {pattern}: {self.complaint}")
            time.sleep(0.02)


def ended(process: subprocess.Popen[bytes]) -> None:
    """A process of a baseline is over, by itself or not."""
    try:
        process.wait(BOUND)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
