"""Fault verbs of the system: signals, names, shells, full disks, another Python.

As in netfaults.py nothing is remembered in this process; what was there first is in files of the bed.
"""

import os
import shlex
import shutil
import signal
from pathlib import Path

from tests.hosts.bed.commands import BedError, Unavailable
from tests.hosts.bed.host import SYSTEM_PATH, HostBase, Process

MARK = "bed-fault"  # the source of every mount we make: so they are known from /proc/PID/mounts
PYENV = Path("/root/.pyenv/versions")
LOGIN_FILES = (".bashrc", ".profile", ".tcshrc", ".config/fish/config.fish", ".ssh/environment")


class SystemFaults(HostBase):
    # Signals; pids as the machine sees them (Process.pid)

    def kill(self, pid: int | Process, sig: int = signal.SIGKILL) -> None:
        pid = pid.pid if isinstance(pid, Process) else pid
        if pid not in {p.pid for p in self.pids(system=True)}:
            raise BedError(f"process {pid} is not on {self.name}")
        os.kill(pid, sig)

    def stop(self, pid: int | Process) -> None:
        self.kill(pid, signal.SIGSTOP)

    # Names. Files under etc/ are bind mounts: written in place, never replaced

    def set_hosts(self, text: str) -> None:
        """This host's /etc/hosts, from now on."""
        (self.dir / "etc/hosts").write_text(text)

    @property
    def hosts_text(self) -> str:
        return (self.dir / "etc/hosts").read_text()

    def own_name_to(self, address: str) -> None:
        """The host's own name leads to `address` (Debian's installer writes 127.0.1.1)."""
        self.forget_own_name()
        self.set_hosts(f"{address} {self.name}\n{self.hosts_text}")

    def forget_own_name(self) -> None:
        """The host cannot resolve its own name."""
        lines = self.hosts_text.splitlines()
        self.set_hosts("".join(f"{line}\n" for line in lines if self.name not in line.split()[1:]))

    # Logins

    def home(self, user: str = "root") -> Path:
        """Where a user's home on this host is on the machine."""
        return self.dir / ("root" if user == "root" else f"home/{user}")

    def write_home(self, user: str, name: str, text: str) -> None:
        """A file in a user's home on this host, owned by that user."""
        home = self.home(user)
        owner = home.stat()
        path = home / name
        for parent in reversed([p for p in path.parents if home in p.parents]):
            parent.mkdir(exist_ok=True)
            os.chown(parent, owner.st_uid, owner.st_gid)
        path.write_text(text)
        os.chown(path, owner.st_uid, owner.st_gid)

    def set_shell(self, user: str = "root", shell: str = "bash", banner: str = "") -> None:
        """The login shell, and a line that its start file prints even when a command is run."""
        path = shutil.which(shell)
        if path is None:
            raise Unavailable(f"the shell {shell} is not installed")
        passwd = self.dir / "etc/passwd"
        lines = [line.split(":") for line in passwd.read_text().splitlines()]
        changed = [[*entry[:6], path] if entry[0] == user else entry for entry in lines]
        passwd.write_text("".join(":".join(entry) + "\n" for entry in changed))
        start = {"fish": (".config/fish/config.fish",), "tcsh": (".tcshrc",), "csh": (".tcshrc",)}
        if banner:
            for name in start.get(Path(path).name, (".bashrc", ".profile")):
                self.write_home(user, name, f"echo {shlex.quote(banner)}\n")

    def python_first(self, version: str, user: str = "root") -> None:
        """ssh sessions find this pyenv Python as `python3` (by ~/.ssh/environment; not `run`)."""
        found = sorted(PYENV.glob(f"{version}*/bin/python3"))
        if not found:
            raise Unavailable(f"no Python {version} under {PYENV}")
        place = self.home(user) / ".python-first"
        place.mkdir(exist_ok=True)
        link = place / "python3"
        link.unlink(missing_ok=True)
        link.symlink_to(found[0])
        home = "/root" if user == "root" else f"/home/{user}"
        self.write_home(user, ".ssh/environment", f"PATH={home}/.python-first:{SYSTEM_PATH}\n")

    # Disks: mounts that only this host has

    def small_tmpfs(self, path: str | Path, size: str = "1m") -> None:
        """A small disk at `path` (made if missing; what was there is hidden)."""
        self._mount(path, f"size={size},mode=1777")

    def mount_empty(self, path: str | Path) -> None:
        """An empty directory at `path`, as on a host where the shared disk is not mounted."""
        self._mount(path, "mode=1777")

    def _mount(self, path: str | Path, options: str) -> None:
        quoted = shlex.quote(str(path))
        made = self.run(f"d={quoted}; while [ ! -e $d ]; do echo $d; d=${{d%/*}}; done; mkdir -p {quoted}")
        with open(self.dir / "made", "a") as file:
            file.write(made.stdout)
        self.run(["mount", "-t", "tmpfs", "-o", options, MARK, str(path)])

    def full_disk(self, path: str | Path) -> None:
        """Not one more byte fits: fills the small disk at `path`, after making it if there is none."""
        if str(path) not in self._mounts():
            self.small_tmpfs(path)
        self.run(f"cat /dev/zero > {shlex.quote(str(path))}/.bed-filler", check=False)

    def _mounts(self) -> list[str]:
        """Ours on this host, the oldest first."""
        table = Path(f"/proc/{self.init}/mounts").read_text().splitlines()
        entries = [line.split() for line in table]
        return [entry[1].replace("\\040", " ") for entry in entries if entry[0] == MARK]

    def clear_system_faults(self) -> None:
        """Also a host that is off: its files are put back."""
        for path in reversed(self._mounts()) if self.is_on else []:
            self.run(["umount", "-l", path])
        made = self.dir / "made"
        if made.exists() and self.is_on:
            self.run(["rmdir", "--ignore-fail-on-non-empty", *made.read_text().split("\n")[:-1]], check=False)
            made.unlink()
        for name in ("hosts", "passwd"):
            (self.dir / "etc" / name).write_bytes((self.dir / "etc" / f"{name}.first").read_bytes())
        for user in ("root", "trainer"):
            for name in LOGIN_FILES:
                (self.home(user) / name).unlink(missing_ok=True)
            shutil.rmtree(self.home(user) / ".python-first", ignore_errors=True)
        for process in self.pids():
            if process.state == "T":
                os.kill(process.pid, signal.SIGCONT)
