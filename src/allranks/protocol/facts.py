"""The facts of a node as its agent writes them, one record a part (pure, Python 3.8).

Facts are an object by name: what `agent.node_check` collects, and what each check collects under its own name. A part
that could not be collected is {"error": …}. `plan_facts` reads them; the checks read the records one by one.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from .codec import omit_empty, omit_none
from .records import NamedTuple


@omit_none
class Address(NamedTuple):
    """An address of an interface; `label` is its name where that differs from the interface's (eth0:1)."""

    address: str
    prefix: int = 32
    family: int = 4
    scope: Optional[str] = None
    flags: Optional[Tuple[str, ...]] = None
    label: Optional[str] = None


class InterfaceFacts(NamedTuple):
    """A network interface of a node."""

    name: str
    up: bool = False
    running: bool = False
    loopback: bool = False
    addresses: Tuple[Address, ...] = ()


class Identity(NamedTuple):
    """Which machine a node is: two with the same boot_id, netns and pidns are the same one.

    `hardware` is the UUID of its board (DMI), which root may read."""

    boot_id: Optional[str] = None
    machine_id: Optional[str] = None
    netns: Optional[int] = None
    pidns: Optional[int] = None
    uid: Optional[int] = None
    user: Optional[str] = None
    hardware: Optional[str] = None


class NodeScheduler(NamedTuple):
    """Who started what runs on a node: `slurm`, `kubernetes` or `none`; `job` is its number, or the pod's name."""

    name: str = ""
    job: str = ""


class NcclFacts(NamedTuple):
    """What may speak about NCCL's or Gloo's interfaces: variables, files by path in NCCL's order, plug-ins, devices."""

    environ_: Mapping[str, str] = {}
    conf: Mapping[str, str] = {}
    plugins: Tuple[str, ...] = ()
    rdma: Tuple[str, ...] = ()

    def settings(self) -> Dict[str, Tuple[str, str]]:
        """Return what NCCL reads, and where it is set: "environment" or a file.

        The first to set a name wins (NCCL's src/misc/param.cc, initEnvFunc and setEnvFile: setenv without overwrite).
        """
        settings = {name: (value, "environment") for name, value in self.environ_.items()}
        for path, text in self.conf.items():
            for line in text.splitlines():
                key, sign, value = line.strip().partition("=")
                if sign and not key.startswith("#"):
                    settings.setdefault(key.strip(), (value.strip(), path))
        return settings


@omit_empty()
class OwnName(NamedTuple):
    """What a node's own name resolves to, or why to nothing."""

    addresses: Tuple[str, ...] = ()
    error: str = ""


@omit_empty("error")
class Gpus(NamedTuple):
    """The GPUs that ranks may use: how many, where the count comes from, nvidia or amd."""

    count_: Optional[int] = None
    source: Optional[str] = None
    vendor: Optional[str] = None
    mig: bool = False
    error: str = ""


@omit_none
class Memory(NamedTuple):
    """Bytes of a node's memory."""

    total: Optional[int] = None


@omit_empty()
class Interpreter(NamedTuple):
    """The training interpreter: where it is and which rule chose it, then what it says of itself, or why nothing.

    `version` of a free-threaded build ends with "t". `torch` None: absent. `ray` is read for --ray alone.
    `lacks`: needed modules that it does not have.
    `syntax`: why it cannot compile the script, with the line.
    """

    kind: str = ""
    how: str = ""
    path: str = ""
    version: str = ""
    torch: Optional[str] = None
    ray: str = ""
    cuda: str = ""
    hip: str = ""
    lacks: Tuple[str, ...] = ()
    syntax: str = ""
    error: str = ""
    missing: Optional[bool] = None
    skipped: str = ""


class DirectoryFacts(NamedTuple):
    """The ranks' working directory; `cwd_ok`: it may be entered."""

    path: str = ""
    exists: bool = False
    cwd_ok: bool = False


@omit_empty()
class TargetFacts(NamedTuple):
    """What the command runs, and whether it is there.

    `kind` is python-script, python-module, python-other or program. `beside`: scripts in the directory of one that is
    absent. A program is absent as well where its file may not be executed or lies on no PATH, and `beside` has it then.
    """

    kind: str = ""
    name: str = ""
    path: str = ""
    exists: Optional[bool] = None
    readable: Optional[bool] = None
    beside: Tuple[str, ...] = ()


class PathFacts(NamedTuple):
    """A --data-path on a node."""

    path: str
    exists: bool = False
    readable: bool = False


@omit_none
class FreeSpace(NamedTuple):
    """Free bytes and inodes for this user of the file system at a path; None: not known, or not counted."""

    path: str = ""
    writable: bool = False
    bytes: Optional[int] = None
    inodes: Optional[int] = None


class DiskFacts(NamedTuple):
    """The node directory that was chosen, and the places that were tried for it."""

    node_dir: Optional[FreeSpace] = None
    node_dirs: Tuple[FreeSpace, ...] = ()


class SharedMemory(NamedTuple):
    """Bytes of /dev/shm; -1: not known."""

    bytes: int = -1


class LoginFacts(NamedTuple):
    """What systemd-logind does to this user's processes when a session ends (names of logind.conf(5))."""

    KillUserProcesses: bool = False
    in_session: bool = True
