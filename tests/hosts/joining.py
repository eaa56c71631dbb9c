"""Starts `allranks join` on the hosts of a bed, as a person in front of each of them would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.hosts.bed import Bed, Host
from tests.hosts.launching import BOUND, PYTHON
from tests.hosts.waiting import wait_until

SECRET = "0123456789abcdef0123456789abcdef"


class Joined:
    """The nodes of one run: their processes, by host name, and what each of them printed."""

    def __init__(self, bed: Bed, place: Path) -> None:
        self.bed, self.place = bed, place
        self.runs = place / "runs"
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(
        self, host: Host, rank: int, program: list[str], *options: str, nnodes: int = 4,
        secret: str | None = SECRET, env: dict[str, str] | None = None, master: str = "h1", bare: bool = False,
        nproc: str = "1",
    ) -> Joined:  # fmt: skip
        """One node; `bare`: who it is stands in `env` alone."""
        work = self.place / "work"
        work.mkdir(exist_ok=True)
        words = [] if bare else ["--nnodes", str(nnodes), "--node-rank", str(rank), "--master-addr", master]
        words += ["--nproc", nproc, "--python", PYTHON, "--runs-dir", str(self.runs), *options]
        words += ["--", *program] if program else []
        full = {"PYTHONPATH": os.pathsep.join(os.environ.get("PYTHONPATH", "").split(os.pathsep)), **(env or {})}
        if secret is not None:
            full["ALLRANKS_JOIN_SECRET"] = secret
        line = 'exec "$@" >"$OUT" 2>&1 </dev/null'
        full["OUT"] = str(self.place / f"{host.name}.txt")
        command = ["/bin/bash", "-c", line, "-", PYTHON, "-m", "allranks", "join", *words]
        self.processes[host.name] = host.popen(command, env=full, cwd=str(work))
        return self

    def all(self, program: list[str], *options: str, order: tuple[int, ...] = (2, 0, 3, 1), **more: Any) -> Joined:
        """Every host of the bed, in this order."""
        for rank in order:
            self.start(self.bed.hosts[rank], rank, program, *options, **more)
        return self

    def said(self, host: str) -> str:
        path = self.place / f"{host}.txt"
        return path.read_text() if path.exists() else ""

    def codes(self, *hosts: str) -> dict[str, int]:
        """Exit codes once these (all) have ended."""
        chosen = hosts or tuple(self.processes)
        wait_until(lambda: all(self.processes[h].poll() is not None for h in chosen), 2 * BOUND, self._open(chosen))
        return {h: int(self.processes[h].returncode) for h in chosen}

    def up(self, ranks: int = 4) -> Joined:
        """So many ranks run."""
        wait_until(lambda: len(list((self.place / "work").glob("up-*"))) == ranks, BOUND, f"{ranks} ranks are up")
        return self

    def end_well(self, *hosts: str) -> None:
        """The ranks of v_steps.py end, and these nodes (all) with 0."""
        (self.place / "work" / "done").touch()
        assert set(self.codes(*hosts).values()) == {0}, self.said("h1")

    def _open(self, hosts: tuple[str, ...]) -> str:
        return "all joined nodes end: " + ", ".join(h for h in hosts if self.processes[h].poll() is None)

    def until(self, host: str, text: str) -> None:
        wait_until(lambda: text in self.said(host), BOUND, f"{host} says {text!r}")

    @property
    def run_dir(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def document(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / name).read_text())
        return found

    def joiner(self, host: Host) -> int:
        """The pid of a host's `allranks join`."""
        (found,) = [p for p in host.pids() if "join" in p.command and "allranks" in p.command and p.ppid != 0
                    and "bash" not in p.command.split(" ", 1)[0] and "-m allranks join" in p.command]  # fmt: skip
        return found.pid

    def kill(self, host: Host, number: int = signal.SIGKILL) -> None:
        """A signal for a host's `allranks join`."""
        os.kill(self.joiner(host), number)

    def nothing_left(self) -> None:
        """No process of any kind on any host that is on."""
        for host in self.bed.hosts:
            if host.is_on:
                wait_until(lambda h=host: not h.pids(), BOUND, f"nothing is left on {host.name}: {host.pids()}")
