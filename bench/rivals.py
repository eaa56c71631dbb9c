"""What people look at many hosts with when they have no allranks: ansible, an ssh loop, pdsh."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.hosts.bed import Bed

from bench.table import OUT

VENV = OUT / "ansible-venv"  # of its own: the project's environment stays as it is
ANSIBLE = VENV / "bin" / "ansible"
FORKS = 32
LOOK = "hostname; nvidia-smi -L"
PIP = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "ansible-core")
APT = "apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pdsh"
INSTALL_SECONDS = 600.0


def ansible() -> str | None:
    """Installed if it was not; why there is none, or None."""
    if ANSIBLE.exists():
        return None
    venv.create(VENV, clear=True, with_pip=True)
    done = _quietly([str(VENV / "bin" / "python"), *PIP])
    return None if ANSIBLE.exists() else f"no ansible: pip install ansible-core failed: {done}"


def pdsh() -> str | None:
    """The same for pdsh, by apt."""
    if shutil.which("pdsh") is None:
        done = _quietly(["sh", "-c", APT])
        if shutil.which("pdsh") is None:
            return f"no pdsh: apt-get install pdsh failed: {done}"
    return None


def versions() -> str:
    """What is measured beside allranks, for the notes."""
    lines = [_first_line([str(ANSIBLE), "--version"]), _first_line(["pdsh", "-V"]), _first_line(["ssh", "-V"])]
    return ", ".join(line for line in lines if line)


def _first_line(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return (done.stdout + done.stderr).partition("\n")[0].strip()


def _quietly(argv: list[str]) -> str:
    """The last line of what it wrote."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ((done.stdout + done.stderr).strip().splitlines() or [f"exit {done.returncode}"])[-1]


class AnsibleSetup:
    """`ansible all -m setup`: facts of all hosts, on connections that are new each time.

    As delivered but for: BatchMode; `pipelining`; and the interpreter is named, which spares it a search.
    """

    def __init__(self, bed: Bed, place: Path, pipelining: bool) -> None:
        self._bed, self._place = bed, place
        self._masters = place / "cp"
        self._pipelining = pipelining
        inventory = place / "inventory"
        inventory.write_text("".join(f"{h.name} ansible_python_interpreter={sys.executable}\n" for h in bed.hosts))
        (place / "ansible.cfg").write_text("[defaults]\n")  # none of the user's own
        self.argv = [str(ANSIBLE), "-i", str(inventory), "all", "-m", "setup", "-f", str(FORKS)]

    @property
    def env(self) -> dict[str, str]:
        bin_dir = self._bed.bin_dir()
        settings = {
            "CONFIG": str(self._place / "ansible.cfg"),
            "HOME": str(self._place / "home"),
            "PIPELINING": str(self._pipelining),
            "SSH_EXECUTABLE": str(bin_dir / "ssh"),
            "SFTP_EXECUTABLE": str(bin_dir / "sftp"),
            "SSH_EXTRA_ARGS": "-o BatchMode=yes",
            "SSH_CONTROL_PATH_DIR": str(self._masters),
            "NOCOLOR": "1",
        }
        ours = {k: v for k, v in self._bed.env().items() if not k.startswith("ANSIBLE_")}
        return {**ours, **{f"ANSIBLE_{k}": v for k, v in settings.items()}, "LC_ALL": "C.UTF-8"}

    def judge(self, code: int, out: str) -> None:
        """Facts of every host, or an error."""
        good = set(re.findall(r"^(\S+) \| SUCCESS =>", out, re.MULTILINE))
        if code != 0 or good != {h.name for h in self._bed.hosts} or out.count('"ansible_kernel":') != len(good):
            raise RuntimeError(f"ansible: exit {code}, facts of {len(good)} hosts: {' '.join(out[-400:].split())}")

    def close(self) -> None:
        """Ends the connections that ansible keeps for a minute."""
        for path in self._masters.glob("*"):
            argv = [str(self._bed.bin_dir() / "ssh"), "-o", f"ControlPath={path}", "-O", "exit", "any"]
            subprocess.run(argv, capture_output=True, timeout=30, check=False)


class Loop:
    """`hostname; nvidia-smi -L` everywhere, by xargs and ssh or by pdsh; nothing is compared."""

    def __init__(self, bed: Bed, with_pdsh: bool) -> None:
        self._bed = bed
        names = shlex.quote(str(bed.hostfile_names))
        ssh = f"xargs -P {FORKS} -I HOST ssh -o BatchMode=yes HOST {shlex.quote(LOOK)} < {names}"
        pdsh = f"pdsh -R ssh -f {FORKS} -w ^{names} {shlex.quote(LOOK)}"
        self.argv = ["sh", "-c", pdsh if with_pdsh else ssh]
        self.env = {**bed.env(), "PDSH_SSH_ARGS_APPEND": "-o BatchMode=yes"}

    def judge(self, code: int, out: str) -> None:
        """Every host said its name; the exit code tells of nvidia-smi alone, which may be missing."""
        said = set(out.replace(":", " ").split())
        silent = [h.name for h in self._bed.hosts if h.name not in said]
        if silent:
            raise RuntimeError(f"exit {code}; silent: {silent}: {' '.join(out[-300:].split())}")

    def close(self) -> None:
        """Nothing stays."""


def has_gpus() -> bool:
    return shutil.which("nvidia-smi", path=os.environ.get("PATH")) is not None
