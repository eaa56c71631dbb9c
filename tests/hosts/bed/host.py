"""One host: its namespaces, its power switch, its processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.hosts.bed.commands import BedError, batch, call
from tests.hosts.bed.network import Slot, kill_in
from tests.hosts.waiting import BOUND, wait_until

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

BOOT = Path(__file__).with_name("boot.sh")


@dataclass(frozen=True)
class Process:
    """A process on a host. `pid` is what the machine sees, `inner` what the host sees."""

    pid: int
    inner: int
    ppid: int
    state: str
    cmdline: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)

    @property
    def command(self) -> str:
        return " ".join(self.cmdline)


@dataclass(frozen=True)
class HostOptions:
    """What is the same for all hosts of a bed."""

    shm: str = "64m"
    own_tmp: bool = False
    shared: tuple[str, ...] = ()  # paths that stay visible although /root, /home or /tmp are the host's own


def read_process(pid: int) -> Process | None:
    """What /proc says, or None if it is gone; zombies are told with state Z and no command."""
    root = Path(f"/proc/{pid}")
    try:
        status = (root / "status").read_text()
        cmdline = (root / "cmdline").read_bytes()
    except OSError:
        return None
    try:
        environ = (root / "environ").read_bytes()
    except OSError:
        environ = b""
    fields = dict(re.findall(r"^(State|PPid|NSpid):\s+(.*)$", status, re.M))
    pairs = (item.partition("=") for item in environ.decode(errors="replace").split("\0") if item)
    return Process(
        pid=pid,
        inner=int(fields["NSpid"].split()[-1]),
        ppid=int(fields["PPid"]),
        state=fields["State"][0],
        cmdline=tuple(cmdline.decode(errors="replace").rstrip("\0").split("\0")),
        environ={name: value for name, _, value in pairs},
    )


Verb = TypeVar("Verb", bound=Callable[..., None])


def network_fault(verb: Verb) -> Verb:
    """A verb that changes the host's network: only then is there something to clear."""

    @wraps(verb)
    def noted(self: HostBase, *words: Any, **named: Any) -> None:
        self.note_network_fault()
        verb(self, *words, **named)

    return cast(Verb, noted)


class HostBase:
    """A machine made of namespaces. The fault verbs are added in netfaults.py and sysfaults.py."""

    def __init__(self, slot: Slot, index: int, name: str, directory: Path, options: HostOptions) -> None:
        self.slot = slot
        self.index = index
        self.name = name
        self.dir = directory
        self.options = options
        self.netns = slot.netns(name)
        self.port = slot.port(index)
        self.address = f"{slot.subnet}.{index}"
        self.address6 = f"{slot.subnet6}:{index:x}"
        self._unshare: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    # Power

    def boot(self) -> None:
        """Start without waiting; `wait_ready` waits, so that many boot at once."""
        mac = f"02:ab:{self.slot.number:02x}:00:00:{self.index:02x}"
        call("ip", "netns", "add", self.netns)
        batch(
            "link set lo up",
            # An index that leaves room before it; the other end is ours.
            f"link add eth0 index 10 address {mac} type veth peer name {self.port} netns {os.getpid()}",
            "link set eth0 up",
            f"addr add {self.address}/24 dev eth0",
            f"addr add {self.address6}/64 dev eth0 nodad",
            netns=self.netns,
        )
        batch(f"link set {self.port} master {self.slot.bridge} up")
        (self.dir / "init").unlink(missing_ok=True)
        spaces = ["--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]
        env = {
            "PATH": SYSTEM_PATH,
            "H": str(self.dir),
            "NAME": self.name,
            "SHM": self.options.shm,
            "OWN_TMP": "1" if self.options.own_tmp else "",
            "SHARED": " ".join(self.options.shared),
        }
        argv = ["nsenter", f"--net=/run/netns/{self.netns}", "unshare", *spaces, "bash", str(BOOT)]
        with open(self.dir / "boot.log", "ab") as log:
            self._unshare = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_booted(self) -> None:
        """Until sshd greets; booted once more if that fails: the kernel may have been busy."""
        try:
            self.wait_ready()
        except (AssertionError, BedError) as error:
            print(f"{self.name} is booted again: {error}", file=sys.stderr)
            self.power_off()
            self.boot()
            self.wait_ready()

    def note_network_fault(self) -> None:
        """In a file, as the next verb may be another process's."""
        self._faulty.touch()

    @property
    def has_network_fault(self) -> bool:
        """Whether a fault of its network was made, and not cleared."""
        return self._faulty.exists()

    @property
    def _faulty(self) -> Path:
        return self.dir / "network-faults"

    def wait_listening(self) -> None:
        """Until sshd listens: what a login would show, for a tenth of its cost."""
        wait_until(self._listens, BOUND, f"sshd of {self.name} listens (see {self.dir}/boot.log, sshd.log)")

    def _listens(self) -> bool:
        try:
            lines = [line.split() for line in Path(f"/proc/{self.init}/net/tcp").read_text().splitlines()]
        except OSError:
            return False  # it is off
        return any(fields[1].endswith(":0016") and fields[3] == "0A" for fields in lines)

    def wait_ready(self, timeout: float = BOUND) -> None:
        """Until sshd greets."""
        wait_until(self._greets, timeout, f"sshd of {self.name} greets (see {self.dir}/boot.log, sshd.log)")

    def _greets(self) -> bool:
        if self._unshare is not None and self._unshare.poll() is not None:
            raise BedError(f"{self.name} did not boot: {(self.dir / 'boot.log').read_text()}")
        if not self.is_on:
            return False
        try:
            with socket.create_connection((self.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    @property
    def init(self) -> int | None:
        """The machine's pid of the host's first process, or None while the host is off."""
        try:
            pid = int((self.dir / "init").read_text())
            same = os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat(f"/run/netns/{self.netns}").st_ino
        except (OSError, ValueError):
            return None
        return pid if same else None

    @property
    def is_on(self) -> bool:
        return self.init is not None

    def power_off(self) -> None:
        """The plug is pulled: no last packet leaves, and nothing that ran there is left."""
        call("ip", "link", "del", self.port, check=False)
        kill_in(self.netns)
        self.reap()
        (self.dir / "init").unlink(missing_ok=True)
        call("ip", "netns", "del", self.netns, check=False)

    def reap(self) -> None:
        """Take the dead unshare off the process table, if this process started it."""
        if self._unshare is not None:
            self._unshare.kill()
            self._unshare.wait(BOUND)
            self._unshare = None

    def power_on(self, *, wait: bool = True) -> None:
        """Boot again: same address, disk and keys; faults of network and mounts are gone."""
        if not self.is_on:
            if os.path.exists(f"/run/netns/{self.netns}"):
                self.power_off()  # its init died: clear away what is left of it
            self.boot()
        if wait:
            self.wait_ready()

    # Commands

    def argv(self, cmd: str | Sequence[str], *, user: tuple[int, int] = (0, 0), cwd: str = "/") -> list[str]:
        """The command line that runs `cmd` inside the host (a text goes through bash)."""
        if self.init is None:
            raise BedError(f"{self.name} is off")
        words = ["/bin/bash", "-c", cmd] if isinstance(cmd, str) else list(cmd)
        ids = ["--setuid", str(user[0]), "--setgid", str(user[1])] if user != (0, 0) else []
        enter = ["nsenter", "--target", str(self.init), "--net", "--uts", "--mount", "--pid", "--ipc", *ids]
        return [*enter, "env", "-C", cwd, *words]

    def popen(
        self,
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        user: tuple[int, int] = (0, 0),
        cwd: str = "/",
    ) -> subprocess.Popen[str]:
        """Start inside the host, past ssh and past its network faults; own session, all pipes."""
        full = {"PATH": SYSTEM_PATH, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8", **(env or {})}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.argv(cmd, user=user, cwd=cwd),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=full,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        cmd: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = BOUND,
        stdin: str = "",
        **where: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run inside the host and wait; past `timeout` it is killed with its group. `where` is as `popen` has it."""
        process = self.popen(cmd, **where)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        if check and process.returncode != 0:
            raise BedError(f"{self.name}: {cmd!r}: exit {process.returncode}: {err.strip()}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    # Processes

    def pids(self, *, system: bool = False) -> list[Process]:
        """Processes of the host, zombies too. `system`: also its init and the listening sshd."""
        init = self.init
        if init is None:
            return []
        space = os.stat(f"/proc/{init}/ns/pid").st_ino
        found = [p for p in map(read_process, self._in_space(space)) if p is not None]
        # A zombie whose parent is outside is one of our own commands, not something of the host.
        inside = {p.pid for p in found}
        found = [p for p in found if p.state != "Z" or p.ppid in inside]
        if not system:
            found = [p for p in found if p.inner != 1 and not self._is_listener(p, init)]
        return found

    @staticmethod
    def _is_listener(process: Process, init: int) -> bool:
        return process.ppid == init and "/usr/sbin/sshd" in process.command and "-D" in process.command

    @staticmethod
    def _in_space(space: int) -> list[int]:
        pids = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                inside = os.stat(f"/proc/{entry}/ns/pid").st_ino == space
            except OSError:
                continue
            if inside:
                pids.append(int(entry))
        return sorted(pids)

    def processes_with_env(self, pair: str) -> list[Process]:
        """Processes whose environment has NAME=VALUE."""
        name, _, value = pair.partition("=")
        return [p for p in self.pids() if p.environ.get(name) == value]

    def kill_all(self) -> None:
        """End everything but init and sshd: what one test left must not disturb the next."""

        def none_left() -> bool:
            left = [p for p in self.pids() if p.state != "Z"]
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            return not left

        wait_until(none_left, what=f"no process left on {self.name}")
