"""A Slurm cluster: up, down, commands as on the login node, faults, and what is left on the hosts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.hosts.bed import Bed, BedError
from tests.hosts.bed import missing as no_hosts
from tests.hosts.waiting import BOUND, wait_until
from tests.processes import command_of
from tests.slurm.bed.config import gres_conf, slurm_conf

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
SBIN = "/usr/sbin:/sbin"
PORTS = 20  # that a bed looks at


def missing() -> str | None:
    """Why there can be no Slurm here, or None."""
    reason = no_hosts()
    if reason:
        return reason.replace("host tests", "Slurm tests")
    path = f"{os.environ.get('PATH', os.defpath)}:{SBIN}"
    for tool, package in PACKAGES.items():
        if shutil.which(tool, path=path) is None:
            return f"Slurm tests need {tool} (apt install --no-install-recommends {package})"
    return None


class SlurmBed:
    """Use `SlurmBed.up(n, directory)`, best as a context manager."""

    def __init__(self, hosts: Bed, directory: Path, *, keep: bool = False) -> None:
        self.hosts, self.dir = hosts, directory
        # Its services would outlive a test process that is killed, and hold their port.
        self._bound = [] if keep else ["setpriv", "--pdeathsig", "KILL"]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._slurmd: dict[str, subprocess.Popen[str]] = {}

    # Up and down

    @classmethod
    def up(cls, n: int, base_dir: Path | str, *, gpus: int = 2, keep: bool = False) -> SlurmBed:
        """`n` idle nodes h1, h2, … with `gpus` GPUs each; `keep`: they stay when this process ends."""
        reason = missing()
        if reason:
            raise BedError(reason)
        directory = Path(base_dir).resolve() / "slurm"
        hosts = Bed.up(n, Path(base_dir), keep=keep)
        bed = cls(hosts, directory, keep=keep)
        try:
            bed._write(gpus)
            bed._munge()
            bed._daemon("slurmctld", ["slurmctld", "-D", "-c", "-i"])
            for host in hosts.hosts:
                bed.start_slurmd(host.name)
            bed.wait_idle()
        except BaseException:
            bed.down()
            raise
        return bed

    @classmethod
    def load(cls, base_dir: Path | str) -> SlurmBed:
        """A bed that another process brought up."""
        return cls(Bed.load(base_dir), Path(base_dir).resolve() / "slurm")

    def down(self) -> None:
        """Nothing is left."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.hosts.down()
        daemons: list[subprocess.Popen[Any]] = [*self._daemons, *self._slurmd.values()]
        for process in daemons:
            process.kill()
            process.wait(BOUND)
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> SlurmBed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _pids(self) -> list[int]:
        """munged and slurmctld, also those that another process started."""
        found = []
        for name in ("munged", "slurmctld"):
            with suppress(OSError, ValueError):
                pid = int((self.dir / f"{name}.pid").read_text())
                if name.encode() in command_of(pid):
                    found.append(pid)
        return found

    def _write(self, gpus: int) -> None:
        self.dir.mkdir(parents=True)
        (self.dir / "state").mkdir()
        for host in self.hosts.hosts:
            (self.dir / f"spool-{host.name}").mkdir()
        for index in range(gpus):
            os.mknod(self.dir / f"gpu{index}", 0o20666, os.makedev(1, 3))
        addresses = {h.name: h.address for h in self.hosts.hosts}
        machine = socket.gethostname().split(".")[0]
        port = _free_port(self.hosts.slot.number)
        text = slurm_conf(self.dir, machine, self.hosts.head_address, addresses, gpus, port)
        (self.dir / "slurm.conf").write_text(text)
        (self.dir / "gres.conf").write_text(gres_conf(self.dir, gpus))
        (self.dir / "munge.key").write_bytes(os.urandom(1024))
        (self.dir / "munge.key").chmod(0o400)

    def _munge(self) -> None:
        places = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log",
                  "seed-file": "munged.seed"}  # fmt: skip
        words = [f"--{option}={self.dir / name}" for option, name in places.items()]
        self._daemon("munged", ["munged", "--foreground", "--force", *words])
        wait_until((self.dir / "munge.sock").exists, BOUND, "munge answers")

    def _daemon(self, name: str, argv: list[str]) -> None:
        with (self.dir / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                [*self._bound, *argv], env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._daemons.append(process)

    # Nodes

    def start_slurmd(self, name: str) -> None:
        """The node's service; its host must be on."""
        script = f"exec slurmd -D -N {name} >> {self.dir}/slurmd-{name}.out 2>&1"
        self._slurmd[name] = self.hosts.host(name).popen(script, env={"SLURM_CONF": str(self.dir / "slurm.conf")})

    def kill_slurmd(self, name: str) -> None:
        """The service dies by SIGKILL; what it started lives on."""
        for process in self.hosts.host(name).pids():
            if process.cmdline[:1] == ("slurmd",) and "-D" in process.cmdline:
                os.kill(process.pid, signal.SIGKILL)

    def refuse_dialling(self, name: str) -> None:
        """A firewall lets the node open no connection to a port that the kernel picked; those of Slurm's are fixed."""
        self.hosts.host(name).filter_packets("tcp sport 32768-60999 tcp flags & (syn|ack) == (syn|ack) drop")

    def slurmd_alive(self, name: str) -> bool:
        return any(p.cmdline[:1] == ("slurmd",) and "-D" in p.cmdline for p in self.hosts.host(name).pids())

    def states(self) -> dict[str, str]:
        """State of each node as sinfo shows it: idle, alloc, down*, …"""
        lines = self.call("sinfo", "-h", "-N", "-o", "%N %t", check=False).stdout.split("\n")
        return dict(line.split() for line in lines if line)

    def wait_idle(self) -> None:
        """Until every node can take a job. A busy machine answers late: Slurm takes such a node for down meanwhile."""
        names = {h.name for h in self.hosts.hosts}

        def idle() -> bool:
            states = self.states()
            for name, state in states.items():
                if state.startswith(("down", "drain", "drng")):
                    self.call("scontrol", "update", f"nodename={name}", "state=resume", check=False)
            return set(states) == names and set(states.values()) == {"idle"}

        try:
            wait_until(idle, BOUND, "all nodes idle")
        except AssertionError as error:
            files = sorted(self.dir.glob("*.log"))
            logs = [f"{file.name}: {file.read_text(errors='replace')[-800:]}" for file in files]
            raise BedError("\n".join([str(error), str(self.states()), *logs])) from error

    def heal(self) -> None:
        """No job, all nodes back: between two tests."""
        self.call("scancel", "--user=root", check=False)
        self.call("scancel", "--user=root", "--signal=KILL", check=False)
        for host in self.hosts.hosts:
            host.clear_faults()
            host.power_on()
            if not self.slurmd_alive(host.name):
                self.start_slurmd(host.name)
        wait_until(lambda: not self.call("squeue", "-h", check=False).stdout.strip(), BOUND, "no job is left")
        self.wait_idle()

    # Commands as on the login node

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment, in which sbatch, srun, squeue, … speak to this cluster."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SALLOC"))}
        path = f"{os.environ.get('PATH', os.defpath)}:{SBIN}"
        return {**kept, "PATH": path, "SLURM_CONF": str(self.dir / "slurm.conf"), **(extra or {})}

    def call(
        self, *argv: str, check: bool = True, timeout: float = BOUND, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """A command of Slurm's, with its output."""
        done = subprocess.run(argv, env=self.env(), input=stdin, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise BedError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def scontrol(self, *words: str) -> str:
        return self.call("scontrol", *words).stdout

    def job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        text = self.call("scontrol", "show", "job", "-o", job, check=False).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def left(self) -> list[str]:
        """Commands of processes on the hosts that are neither Slurm's service nor the host's own."""
        return [
            f"{host.name}: {process.command}"
            for host in self.hosts.hosts
            for process in host.pids()
            if process.state != "Z" and not (process.cmdline[:1] == ("slurmd",) and "-D" in process.cmdline)
        ]


def _free_port(slot: int) -> int:
    """A port that no service of this machine has, below those that the kernel hands out by itself.

    Beds that start at the same time have different slots, and look at different ports: what one has found free is
    not in use yet.
    """
    first = 16818 + PORTS * slot
    for port in range(first, first + PORTS):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
            return port
    raise BedError("no free port for slurmctld")
