"""What a check may do on a node: read files, run commands. The real one is `allranks.agent.host.Host`.

So checks stay pure: their tests give them recorded files and outputs.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

Record = Mapping[str, Any]
"""A JSON object, as the facts of a node and what a check collects are."""
Request = Mapping[str, Any]
"""What was asked of the nodes (workdir, command, data_paths, nproc, …): see `judge.judge`."""


class CouldNotLook(Exception):
    """Raised by a check that cannot see what it wants to judge; the text says why. It becomes `unknown`."""


class Ran(NamedTuple):
    """A command that was run; `code` is None where it could not be started or took too long (see `err`)."""

    code: Optional[int]
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """It ended with 0."""
        return self.code == 0


class Space(NamedTuple):
    """A file system: bytes in all and free for this user, inodes in all and free (0: not counted)."""

    total: int
    free: int
    inodes: int
    inodes_free: int


class Host(Protocol):
    """One node. Paths are absolute; nothing here blocks longer than the check's own limit."""

    request: Request
    env: Mapping[str, str]
    """The environment that ranks will have."""
    facts: Mapping[str, Any]
    """The node's basic facts (see `allranks.agent.facts`), without those of other checks."""

    def read(self, path: str, limit: int = 65536) -> str:
        """A file's text; raises OSError."""
        ...

    def text(self, path: str, limit: int = 65536) -> Optional[str]:
        """A file's text without surrounding blanks; None where it cannot be read."""
        ...

    def names(self, path: str) -> List[str]:
        """Sorted names in a directory; empty where it cannot be read."""
        ...

    def glob(self, pattern: str) -> List[str]:
        """Sorted paths that match."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is anything."""
        ...

    def link(self, path: str) -> Optional[str]:
        """Where a symbolic link leads, as written; None where it is none."""
        ...

    def which(self, name: str) -> Optional[str]:
        """A program on the ranks' PATH (and in the usual sbin directories)."""
        ...

    def run(self, argv: Sequence[str], seconds: float = 10.0, cwd: Optional[str] = None, input: str = "") -> Ran:
        """Runs a program in the ranks' environment with LC_ALL=C, ends its whole group when time is up."""
        ...

    def python(self, code: str, seconds: float = 20.0) -> Ran:
        """Runs code in the training interpreter, in the working directory."""
        ...

    def space(self, path: str) -> Space:
        """Of the file system that holds a path; raises OSError."""
        ...

    def now(self) -> float:
        """Unix seconds by the node's clock."""
        ...


ANSWER = "ALLRANKS-ANSWER "


def ask(host: Host, program: str, seconds: float, anywhere: bool = False) -> Any:
    """Runs a small Python program on the node that prints ANSWER and a line of JSON; gives that.

    In the training interpreter or, with `anywhere`, in python3 where there is none. What the program prints
    else (or what sitecustomize prints) is passed over. Raises CouldNotLook with its last words.
    """
    ran = host.python(program, seconds)
    if anywhere and ran.code is None and not (host.facts.get("interpreter") or {}).get("path"):
        ran = host.run(["python3", "-I", "-c", program], seconds)
    for line in ran.out.splitlines():
        if line.startswith(ANSWER):
            return json.loads(line[len(ANSWER) :])
    raise CouldNotLook((ran.err.strip().splitlines() or ["Python printed nothing"])[-1][:300])


# "-c" puts the working directory first: its own `json.py` must not be taken.
_VERSIONS = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import json
try:
    from importlib.metadata import version
except ImportError:
    sys.exit("importlib.metadata came with Python 3.8")
found = {}
for name in NAMES:
    try:
        found[name] = version(name)
    except Exception:
        pass
print("\nALLRANKS-ANSWER " + json.dumps(found))
"""


def versions(host: Host, wanted: Tuple[str, ...], seconds: float) -> Dict[str, str]:
    """Of the packages wanted those that the training interpreter has. Raises as `ask`."""
    answer: Dict[str, str] = ask(host, f"NAMES = {wanted!r}\n{_VERSIONS}", seconds)
    return answer


def number_in(host: Host, path: str) -> Optional[int]:
    """The number that a file of /proc or /sys holds; None where it holds none that is 0 or more."""
    text = host.text(path, 64) or ""
    return int(text) if text.isdecimal() else None


def uptime(host: Host) -> Optional[float]:
    """Seconds since boot; None where they cannot be read."""
    words = (host.text("/proc/uptime", 64) or "").split()
    return float(words[0]) if words else None


# -- the kernel log --------------------------------------------------------------------------------

_LAST = 4_000_000  # bytes: the newest part of a large ring buffer
_STAMP = re.compile(r"^(?:<\d+>)?\[ *(\d+\.\d+)\](?: \S+ kernel:)? ?(.*)")


def kernel_text(host: Host) -> str:
    """dmesg, or the journal's copy where kernel.dmesg_restrict keeps it from users."""
    ran = host.run(["sh", "-c", f"dmesg | tail -c {_LAST}"], 10.0)
    if ran.out.strip():
        return ran.out
    other = host.run(["sh", "-c", f"journalctl -k -b -q --no-pager -o short-monotonic | tail -c {_LAST}"], 15.0)
    if other.out.strip():
        return other.out
    why = (ran.err.strip().splitlines() or ["the kernel log is empty"])[0]
    raise CouldNotLook(f"{why[:200]} (sudo sysctl kernel.dmesg_restrict=0, or join the group adm or systemd-journal)")


def kernel_lines(text: str, up: Optional[float]) -> List[Tuple[Optional[int], str]]:
    """Each line of the kernel log with its age in seconds; None where it has no time or `up` is not known."""
    lines: List[Tuple[Optional[int], str]] = []
    for line in text.splitlines():
        match = _STAMP.match(line)
        if match is None:
            lines.append((None, line))
        else:
            age = None if up is None else round(max(0.0, up - float(match.group(1))))
            lines.append((age, match.group(2)))
    return lines


def ago(seconds: float) -> str:
    """`3 days ago`."""
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
