"""A bed: hosts on one bridge, the ssh configuration to reach them, up and down."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.hosts.bed import network
from tests.hosts.bed.commands import BedError, call, in_netns
from tests.hosts.bed.host import HostOptions
from tests.hosts.bed.netfaults import NetworkFaults
from tests.hosts.bed.sysfaults import SystemFaults
from tests.hosts.waiting import BOUND

TRAINER = (20200, 20200)  # uid and gid of `trainer`, who exists on the hosts only, not on the machine
ROOT = Path(__file__).resolve().parents[3]
OURS = ("hosts", "bin", "client", "hostfile", "hostfile-names", "known_hosts", "bed.json")
SSHD = """Port 22
HostKey /run/bed/host_key
AuthorizedKeysFile .ssh/authorized_keys
PidFile /run/sshd.pid
StrictModes no
PermitRootLogin yes
PermitUserEnvironment yes
PasswordAuthentication no
UsePAM no
UseDNS no
Subsystem sftp internal-sftp
"""
TOOLS = ("nsenter", "unshare", "tc", "ssh-keygen")


def missing() -> str | None:
    """Why there can be no bed here, or None."""
    if sys.platform != "linux":
        return "host tests need Linux"
    if os.geteuid() != 0:
        return "host tests need root: they make network namespaces"
    if not os.access("/usr/sbin/sshd", os.X_OK):
        return "host tests need /usr/sbin/sshd (apt install openssh-server)"
    packages = {"ip": "iproute2", "nft": "nftables", "ssh": "openssh-client"}
    for tool in (*packages, *TOOLS):
        if shutil.which(tool) is None:
            return f"host tests need {tool} (apt install {packages.get(tool, 'util-linux iproute2')})"
    return None


class Host(NetworkFaults, SystemFaults):
    """A host with all fault verbs."""

    def clear_faults(self) -> None:
        """Undo every fault verb but `power_off`."""
        self.undelay_link()
        if self.is_on:
            self.clear_network_faults()
        self.clear_system_faults()


class Bed:
    """Use `Bed.up(n, directory)`, best as a context manager."""

    def __init__(self, slot: network.Slot, directory: Path, names: list[str], options: HostOptions) -> None:
        self.slot = slot
        self.dir = directory
        self.options = options
        self.head_address = slot.head
        self.hosts = [
            Host(slot, index, name, directory / "hosts" / name, options)
            for index, name in enumerate(names, start=1)
        ]

    # Up and down

    @classmethod
    def up(
        cls,
        n: int,
        base_dir: Path | str,
        *,
        shm: str = "64m",
        names: Sequence[str] | None = None,
        own_tmp: bool = False,
        shared: Sequence[Path | str] = (),
        keep: bool = False,
    ) -> Bed:
        """`n` hosts that answer ssh. `base_dir` should be the bed's own.

        own_tmp: each host has its own empty /tmp (as real hosts do), except `base_dir` and `shared`.
        shared: further paths under /root, /home or /tmp that all hosts see (the repository always is).
        keep: the bed stays when this process ends.
        """
        reason = missing()
        if reason:
            raise BedError(reason)
        directory = Path(base_dir).resolve()
        names = list(names) if names is not None else [f"h{i}" for i in range(1, n + 1)]
        if len(names) != n or n > 200:
            raise BedError(f"{n} hosts (at most 200) but {len(names)} names")
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / "bed.json").exists():
            raise BedError(f"{directory} holds a bed already; take it `down` first")
        tools = ("/root/.pyenv", "/root/.local/share", sys.prefix, sys.base_prefix, ROOT, directory)
        wanted = sorted({str(Path(p).resolve()) for p in (*tools, *shared) if Path(p).exists()})
        options = HostOptions(shm=shm, own_tmp=own_tmp, shared=_outermost(wanted))
        bed = cls(network.claim(keep=keep), directory, names, options)
        try:
            bed._write_files()
            for host in bed.hosts:
                host.boot()
            for host in bed.hosts:
                host.wait_booted()
        except BaseException:
            bed.down()
            raise
        return bed

    @classmethod
    def load(cls, base_dir: Path | str) -> Bed:
        """A bed that another process brought up."""
        directory = Path(base_dir).resolve()
        try:
            saved = json.loads((directory / "bed.json").read_text())
        except FileNotFoundError:
            raise BedError(f"no bed in {directory}") from None
        options = HostOptions(saved["shm"], saved["own_tmp"], tuple(saved["shared"]))
        return cls(network.Slot(saved["slot"]), directory, saved["names"], options)

    def down(self) -> None:
        """Nothing is left: processes, namespaces, bridge, files (other files in the directory stay)."""
        network.give_back(self.slot)
        for host in self.hosts:
            host.reap()
        for name in OURS:
            path = self.dir / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if self.dir.exists() and not any(self.dir.iterdir()):
            self.dir.rmdir()

    def __enter__(self) -> Bed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def heal(self) -> None:
        """All hosts on, no faults, nothing running: between two tests."""
        were_away = any(not host.is_on or host.has_network_fault for host in self.hosts)
        for host in self.hosts:
            host.clear_faults()
            host.power_on(wait=False)
            host.kill_all()
        for host in self.hosts:
            host.wait_listening()
        if were_away:
            self._forget_neighbours()

    def _forget_neighbours(self) -> None:
        """Who asked for the address of a host that was away is told `No route to host` seconds later, and with it
        whoever has asked meanwhile (arp(7)): a login of the next test."""
        call("ip", "neigh", "flush", "dev", self.slot.bridge, check=False)
        for host in self.hosts:
            in_netns(host.netns, "ip", "neigh", "flush", "dev", "eth0", check=False)

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise BedError(f"no host {name} in this bed: {[h.name for h in self.hosts]}")

    # How users reach the hosts

    def ssh_config(self, user: str = "root") -> Path:
        """The file for `ssh -F`."""
        return self.dir / "client" / f"ssh_config-{user}"

    @property
    def ssh_options(self) -> list[str]:
        return ["-F", str(self.ssh_config())]

    def bin_dir(self, user: str = "root") -> Path:
        """Holds `ssh`, `scp` and `sftp` that read the bed's configuration, as if it were ~/.ssh/config."""
        return self.dir / "bin" / user

    def env(self, user: str = "root") -> dict[str, str]:
        """This process's environment, in which plain `ssh h1` reaches the host as `user`."""
        return {**os.environ, "PATH": f"{self.bin_dir(user)}:{os.environ.get('PATH', os.defpath)}"}

    @property
    def hostfile(self) -> Path:
        """One address a line."""
        return self.dir / "hostfile"

    @property
    def hostfile_names(self) -> Path:
        """One name a line (ssh knows them; on the hosts /etc/hosts does)."""
        return self.dir / "hostfile-names"

    def ssh(
        self, host: str, command: str, *, user: str = "root", timeout: float = BOUND, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """`ssh HOST COMMAND` as a user of the bed types it."""
        argv = ["ssh", "-F", str(self.ssh_config(user)), "-T", "-o", "BatchMode=yes", host, command]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode != 0:
            raise BedError(f"ssh {host} {command!r}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def connect_hosts(self) -> None:
        """Let each host reach the others by ssh, as it does from here."""
        for host in self.hosts:
            host.run(["sh", "-c", f"cp {self.ssh_config()} ~/.ssh/config && chmod 600 ~/.ssh/config"])

    # Files

    def _write_files(self) -> None:
        (self.dir / "client").mkdir()
        _keygen(self.dir / "client" / "key")
        for host in self.hosts:
            self._write_host(host)
        lines = []
        for host in self.hosts:
            key = (host.dir / "host_key.pub").read_text().split()[:2]
            lines.append(f"{host.name},{host.address},{host.address6} {' '.join(key)}\n")
        (self.dir / "known_hosts").write_text("".join(lines))
        for user in ("root", "trainer"):
            self._write_client(user)
        self.hostfile.write_text("".join(f"{h.address}\n" for h in self.hosts))
        self.hostfile_names.write_text("".join(f"{h.name}\n" for h in self.hosts))
        saved = {
            "slot": self.slot.number,
            "names": [h.name for h in self.hosts],
            "shm": self.options.shm,
            "own_tmp": self.options.own_tmp,
            "shared": self.options.shared,
        }
        (self.dir / "bed.json").write_text(json.dumps(saved) + "\n")

    def _write_client(self, user: str) -> None:
        every = [
            "Host *",
            f"  User {user}",
            f'  IdentityFile "{self.dir}/client/key"',
            "  IdentitiesOnly yes",
            f'  UserKnownHostsFile "{self.dir}/known_hosts"',
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
            "  ControlMaster no",
            "  KexAlgorithms curve25519-sha256",  # the default, sntrup761, takes 0.15 s of processor time a login
        ]
        each = [f"Host {h.name}\n  HostName {h.address}\n  HostKeyAlias {h.name}" for h in self.hosts]
        self.ssh_config(user).write_text("\n".join([*each, *every]) + "\n")
        self.bin_dir(user).mkdir(parents=True)
        for tool in ("ssh", "scp", "sftp"):
            script = self.bin_dir(user) / tool
            real = shutil.which(tool) or f"/usr/bin/{tool}"
            script.write_text(f"#!/bin/sh\nexec {real} -F '{self.ssh_config(user)}' \"$@\"\n")
            script.chmod(0o755)

    def _write_host(self, host: Host) -> None:
        """What makes a host itself: its key, its names, its users and their homes."""
        etc = host.dir / "etc"
        etc.mkdir(parents=True)
        _keygen(host.dir / "host_key")
        (host.dir / "sshd_config").write_text(SSHD)
        users = Path("/etc/passwd").read_text()
        if "trainer" not in {entry.pw_name for entry in pwd.getpwall()}:
            users += f"trainer:*:{TRAINER[0]}:{TRAINER[1]}::/home/trainer:/bin/bash\n"
        texts = {
            "hosts": self._hosts_text(),
            "hostname": f"{host.name}\n",
            "passwd": users,
            "group": f"{Path('/etc/group').read_text()}trainer:x:{TRAINER[1]}:\n",
            "resolv.conf": "# no name server: /etc/hosts is all there is\n",
        }
        for name, text in texts.items():
            (etc / name).write_text(text)
        for name in ("hosts", "passwd"):
            shutil.copy(etc / name, etc / f"{name}.first")
        key = (self.dir / "client" / "key.pub").read_text()
        for user, (uid, gid) in {"root": (0, 0), "trainer": TRAINER}.items():
            home = host.home(user)
            home.mkdir(parents=True, mode=0o755)
            os.chown(home, uid, gid)
            host.write_home(user, ".ssh/authorized_keys", key)

    def _hosts_text(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{self.head_address} head"]
        lines += [f"{h.address} {h.name}" for h in self.hosts]
        lines += [f"{h.address6} {h.name}-v6" for h in self.hosts]
        return "\n".join(lines) + "\n"


def _keygen(path: Path) -> None:
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "allranks test bed", "-f", str(path))


def _outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """Without those that lie in another of the list (it is sorted)."""
    kept: list[str] = []
    for path in paths:
        if not any(path.startswith(f"{outer}/") for outer in kept):
            kept.append(path)
    return tuple(kept)
