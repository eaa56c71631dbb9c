"""Uncommitted changes in the working directory's repository are the same on every node.

Compared are changed files under version control, and new files that are code. What a run writes on one
node only (logs, checkpoints) is not.
"""

from __future__ import annotations

import hashlib
import re
from typing import Dict, List, Optional, Sequence, Set, Tuple

from allranks.protocol.records import NamedTuple
from allranks.text import first_line, join_names

from ..compare import Findings, Nodes, by_value, collected, some, unlike, values_of, warn
from ..host import CouldNotLook, Host, Ran, search_in
from ..typed_facts import Request

ID = "code_changes"
GROUP = "code"
LEVEL = "full"
SECONDS = 40.0
MOST = 200  # files, of each kind
SHOWN = 5
CODE = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
# The user may be another than the checkout's owner; what git would run by configuration is left out.
GIT = (
    "git",
    "-c",
    "safe.directory=*",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.quotePath=false",
    "--no-optional-locks",
)
STATUS = ("status", "--porcelain", "-z", "--untracked-files=normal", "--no-renames")
DIFF = (
    "diff",
    "HEAD",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--full-index",
    "-U0",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--submodule=short",
)
_OUTSIDE = re.compile(r"not a git repository|ambiguous argument 'HEAD'", re.IGNORECASE)  # or no commit yet
_NEW = re.compile(r"^index [0-9a-f]+\.\.([0-9a-f]+)", re.MULTILINE)


class Changes(NamedTuple):
    """The commit, and the hash of what each changed or new file is now; `count_` has all of them."""

    head: str
    count_: int
    files: Dict[str, str]


def collect(host: Host) -> Optional[Changes]:
    """None without git or a repository."""
    where = host.facts.workdir.path or host.request.asked.workdir
    if not where or host.which("git") is None:
        return None
    top = host.run([*GIT, "-C", where, "rev-parse", "--show-toplevel", "HEAD"], 10)
    if _OUTSIDE.search(top.err):
        return None
    lines = top.out.splitlines()
    if not top.ok or len(lines) < 2:
        raise CouldNotLook(_first(top))
    changed, new, folders = _status(_git(host, lines[0], STATUS))
    new += _inside(host, lines[0], folders)
    files = {name: _content(host, f"{lines[0]}/{name}") for name in new[:MOST]}
    if changed:
        files.update(list(_changes(_git(host, lines[0], DIFF)).items())[:MOST])
    return Changes(lines[1], len(changed) + len(new), files)


def _git(host: Host, top: str, words: Sequence[str]) -> str:
    ran = host.run([*GIT, "-C", top, *words], 15)
    if not ran.ok:
        raise CouldNotLook(_first(ran))
    return ran.out


def _first(ran: Ran) -> str:
    return first_line(ran.err, 300) or "git said nothing"


def _status(text: str) -> Tuple[List[str], List[str], List[str]]:
    """List changed files, new ones that are code, new folders. git-status(1): XY, a blank, the name, NUL."""
    entries = [entry for entry in text.split("\0") if len(entry) > 3]
    changed = [entry[3:] for entry in entries if not entry.startswith("?? ")]
    untracked = [entry[3:] for entry in entries if entry.startswith("?? ")]
    new = [name for name in untracked if name.endswith(CODE)]
    return changed, new, [name for name in untracked if name.endswith("/")]


def _inside(host: Host, top: str, folders: Sequence[str]) -> List[str]:
    """Code in new folders; a folder with very much in it (data, outputs) is given up on."""
    if not folders:
        return []
    ran = host.run([*GIT, "-C", top, "ls-files", "-z", "--others", "--exclude-standard", "--", *folders[:50]], 8)
    if not ran.ok:
        return []
    return [name for name in ran.out.split("\0") if name.endswith(CODE)]


def _changes(text: str) -> Dict[str, str]:
    """By file, what the diff makes of it: the new content's hash is in its index line."""
    hashes = {}
    for section in re.split(r"^diff --git ", text, flags=re.MULTILINE)[1:]:
        header = section.partition("\n")[0]
        name = header[: len(header) // 2].strip('"')[len("a/") :]  # both names are the same
        hashes[name] = search_in(_NEW, section)[:12] or _hash(section)
    return hashes


def _content(host: Host, path: str) -> str:
    text = host.text(path, 1 << 20)
    return "unreadable" if text is None else _hash(text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of each odd node. Where commits differ, `code_git` says it and files can't be compared."""
    nodes = collected(facts_by_node, ID, Changes)
    values = values_of(nodes, lambda one: tuple(sorted(one.files.items())))
    if len({one.head for one in nodes.values()}) > 1:
        return
    remedy = f"copy this machine's code to all nodes with run --sync, or look: allranks exec {request.target}"
    remedy += " -- git diff HEAD --stat"
    for odd in unlike(values, "differ"):
        files = _odd_files([set(values[node]) for node in odd.nodes + odd.fine])
        evidence = []
        for value, names in list(by_value(values).items())[:8]:
            changed = [name for name, _ in value if name in files]
            evidence.append(f"{join_names(names)}: {', '.join(changed[:SHOWN]) or 'no change'}")
        yield warn(ID, odd.nodes, f"uncommitted changes{odd.message}: {some(files, SHOWN)}", remedy, evidence)


def _odd_files(every: List[Set[Tuple[str, str]]]) -> List[str]:
    everywhere = every[0].intersection(*every)
    return sorted({name for files in every for name, _ in files - everywhere})
