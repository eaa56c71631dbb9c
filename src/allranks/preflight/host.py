"""What a check may do on a node: read files, run commands. The real one is `allranks.agent.checks.NodeHost`.

So checks stay pure: their tests give them recorded files and outputs.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Pattern, Protocol, Sequence, Tuple, Type

from allranks.protocol.codec import decode, read_json
from allranks.protocol.facts import FreeSpace
from allranks.protocol.processes import Ran as Ran
from allranks.protocol.records import NamedTuple
from allranks.text import first_line

from .typed_facts import Facts, Kind, Request

MOST_OUTPUT = 4 << 20  # bytes of a program


class CouldNotLook(Exception):
    """Raised by a check that cannot see what it wants to judge; the text says why. It becomes `unknown`."""


class Space(NamedTuple):
    """A file system: bytes in all and free for this user, inodes in all and free (0: not counted)."""

    total: int
    free: int
    inodes: int = 0
    inodes_free: int = 0


class Host(Protocol):
    """One node. Paths are absolute; nothing here blocks longer than the check's own limit."""

    request: Request
    env: Mapping[str, str]
    """The environment that ranks will have."""
    facts: Facts
    """The node's basic facts (see `allranks.agent.node_check`), without those of other checks."""

    def read(self, path: str, limit: int = 65536) -> str:
        """Read a file's text. Raise OSError."""

    def text(self, path: str, limit: int = 65536) -> Optional[str]:
        """Read a file's text without surrounding blanks; None where it cannot be read."""

    def names(self, path: str) -> List[str]:
        """List the sorted names in a directory; empty where it cannot be read."""

    def glob(self, pattern: str) -> List[str]:
        """List the sorted paths that match."""

    def exists(self, path: str) -> bool:
        """Tell whether there is anything at a path."""

    def real(self, path: str) -> str:
        """Make a path without symbolic links and `..`, whether there is anything or not."""

    def link(self, path: str) -> Optional[str]:
        """Read where a symbolic link leads, as written; None where it is none."""

    def which(self, name: str) -> Optional[str]:
        """Find a program on the ranks' PATH (and in the usual sbin directories)."""

    def run(self, argv: Sequence[str], seconds: float = 10.0, cwd: Optional[str] = None) -> Ran:
        """Run a program in the ranks' environment with LC_ALL=C; end its whole group when time is up."""

    def python(self, code: str, seconds: float = 20.0) -> Ran:
        """Run code in the training interpreter, in the working directory."""

    def space(self, path: str) -> Space:
        """Measure the file system that holds a path. Raise OSError."""


ANSWER = "ALLRANKS-ANSWER "


def answer_of(ran: Ran, kind: Type[Kind]) -> Optional[Kind]:
    """Read what a program printed behind ANSWER, decoded; None without it. All else (sitecustomize's …) is skipped."""
    for line in ran.out.splitlines():
        if line.startswith(ANSWER):
            return decode(kind, read_json(line[len(ANSWER) :], MOST_OUTPUT))
    return None


def ask(host: Host, kind: Type[Kind], program: str, seconds: float, anywhere: bool = False) -> Kind:
    """Run a small Python program on the node that prints ANSWER and a line of JSON; decode that.

    In the training interpreter or, with `anywhere`, in python3 where there is none. Raise CouldNotLook with its last
    words.
    """
    ran = host.python(program, seconds)
    if anywhere and ran.code is None and not host.facts.interpreter.path:
        ran = host.run(["python3", "-I", "-c", program], seconds)
    answer = answer_of(ran, kind)
    if answer is None:
        raise CouldNotLook(last_line(ran.err, "Python printed nothing"))
    return answer


# "-c" puts the working directory first: its own `json.py` must not be taken.
_VERSIONS = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import json
try:
    from importlib.metadata import version
except ImportError:
    sys.exit("importlib.metadata came with Python 3.8")
versions = {}
for name in NAMES:
    try:
        versions[name] = version(name)
    except Exception:
        pass
print("\nALLRANKS-ANSWER " + json.dumps(versions))
"""


def versions(host: Host, wanted: Tuple[str, ...], seconds: float) -> Dict[str, str]:
    """Of the packages wanted those that the training interpreter has. Raises as `ask`."""
    return ask(host, Dict[str, str], f"NAMES = {wanted!r}\n{_VERSIONS}", seconds)


def version_of(text: str) -> Tuple[int, ...]:
    """Major and minor version; 0 in the place of any other text."""
    return tuple(int(re.sub(r"\D.*", "", word) or 0) for word in text.split(".")[:2])


def key_values(text: str, sign: str = "=") -> Dict[str, str]:
    """Lines `KEY=value`, of a key the first; without quotation marks."""
    values: Dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(sign)
        if separator:
            values.setdefault(key.strip(), value.strip().strip("\"'"))
    return values


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says (proc_pid_stat(5)); `start` in ticks since boot."""

    name: str
    state: str
    parent: int
    flags: int
    start: int


def process_stat(host: Host, pid: int) -> Optional[ProcessStat]:
    """Read what a process is; None where it cannot be read."""
    head, _, rest = text_in(host, f"/proc/{pid}/stat").rpartition(")")
    words = rest.split()
    if len(words) < 20:
        return None
    return ProcessStat(head.partition("(")[2], words[0], int(words[1]), int(words[6]), int(words[19]))


def user_of(host: Host, pid: int) -> str:
    """Read the number of a process's real user; empty where it cannot be read."""
    fields = key_values(text_in(host, f"/proc/{pid}/status"), ":")
    return fields.get("Uid", "").partition("\t")[0]


def text_in(host: Host, path: str, limit: int = 65536) -> str:
    """Read a file's text without surrounding blanks; empty where it cannot be read."""
    return host.text(path, limit) or ""


def lines_of(host: Host, path: str, limit: int = 65536) -> List[str]:
    """Read the lines of a file; none where it cannot be read."""
    return text_in(host, path, limit).splitlines()


def linked_name(host: Host, path: str) -> str:
    """Read the last part of where a symbolic link leads; empty where it is none."""
    return base_name(host.link(path) or "")


def search_in(pattern: Pattern[str], text: str) -> str:
    """Return the first group of a match; empty without one."""
    match = pattern.search(text)
    if not match:
        return ""
    return match.group(1) or ""


def base_name(path: str) -> str:
    """Return what stands behind the last slash."""
    return path.rpartition("/")[2]


def last_line(text: str, otherwise: str) -> str:
    """Return the last words of a program, or what stands in their place where it printed none."""
    return (text.strip().splitlines() or [otherwise])[-1][:300]


def number_in(host: Host, path: str) -> Optional[int]:
    """Read the number in a file of /proc or /sys; None where it holds none that is 0 or more."""
    return decimal(host.text(path, 64))


def decimal(text: Optional[str]) -> Optional[int]:
    """Read a number that is 0 or more; None for anything else."""
    if text and text.isdecimal():
        return int(text)
    return None


def uptime(host: Host) -> Optional[float]:
    """Seconds since boot; None where they cannot be read."""
    words = text_in(host, "/proc/uptime", 256).split()
    if not words:
        return None
    return float(words[0])


# -- the kernel log --------------------------------------------------------------------------------

_LAST = 4_000_000  # bytes: the newest part of a large ring buffer
_STAMP = r"^(?:<\d+>)?\[ *(\d+\.\d+)\](?: \S+ kernel:)? ?(.*)"


def kernel_text(host: Host) -> str:
    """dmesg, or the journal's copy where kernel.dmesg_restrict keeps it from users."""
    ran = host.run(["sh", "-c", f"dmesg | tail -c {_LAST}"], 10.0)
    if ran.out.strip():
        return ran.out
    other = host.run(["sh", "-c", f"journalctl -k -b -q --no-pager -o short-monotonic | tail -c {_LAST}"], 15.0)
    if other.out.strip():
        return other.out
    why = first_line(ran.err, 200) or "the kernel log is empty"
    raise CouldNotLook(f"{why} (sudo sysctl kernel.dmesg_restrict=0, or join the group adm or systemd-journal)")


def kernel_lines(text: str, up: Optional[float]) -> List[Tuple[Optional[int], str]]:
    """Each line of the kernel log with its age in seconds; None where it has no time or `up` is not known."""
    lines: List[Tuple[Optional[int], str]] = []
    for line in text.splitlines():
        age = None
        match = re.match(_STAMP, line)
        if match and up is not None:
            age = round(max(0.0, up - float(match.group(1))))
        lines.append((age, match.group(2) if match else line))
    return lines


NODE_DIR_BYTES = 64 << 20
NODE_DIR_INODES = 100


class Mount(NamedTuple):
    """A line of fstab or /proc/self/mounts."""

    source: str
    point: str
    kind: str
    options: Tuple[str, ...]


def read_mounts(text: str) -> List[Mount]:
    """Read the lines that mount something."""
    mounts = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and not words[0].startswith("#") and words[1].startswith("/"):
            point = words[1].replace("\\040", " ").rstrip("/") or "/"
            mounts.append(Mount(words[0], point, words[2], tuple(words[3].split(","))))
    return mounts


def has_room(space: FreeSpace) -> bool:
    """Tell whether the node directory has room; else the check nodedir speaks, and not disk_space."""
    return (space.bytes or 0) >= NODE_DIR_BYTES and (space.inodes is None or space.inodes >= NODE_DIR_INODES)
