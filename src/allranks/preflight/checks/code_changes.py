"""Uncommitted changes in the working directory's repository are the same on every node.

Compared are changed files under version control, and new files that are code; what a run writes on one
node only (logs, checkpoints) is not.
"""

from __future__ import annotations

import hashlib
import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, part, parts, place, some, split, target
from ..host import CouldNotLook, Host, Record, Request

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


def collect(host: Host) -> Optional[Record]:
    """{"files": {name: hash of what it is now}, "count", "head"}; None without git or a repository."""
    where = str(part(host.facts, "workdir").get("path") or host.request.get("workdir") or "")
    if not where or host.which("git") is None:
        return None
    top = host.run([*GIT, "-C", where, "rev-parse", "--show-toplevel", "HEAD"], 10)
    if _OUTSIDE.search(top.err):
        return None
    lines = top.out.splitlines()
    if not top.ok or len(lines) < 2:
        raise CouldNotLook((top.err.strip().splitlines() or ["git said nothing"])[0][:300])
    changed, new, folders = _status(_git(host, lines[0], STATUS))
    new += _inside(host, lines[0], folders)
    files = {name: _content(host, f"{lines[0]}/{name}") for name in new[:MOST]}
    if changed:
        files.update(list(_changes(_git(host, lines[0], DIFF)).items())[:MOST])
    return {"head": lines[1], "count": len(changed) + len(new), "files": files}


def _git(host: Host, top: str, words: Sequence[str]) -> str:
    ran = host.run([*GIT, "-C", top, *words], 15)
    if not ran.ok:
        raise CouldNotLook((ran.err.strip().splitlines() or ["git said nothing"])[0][:300])
    return ran.out


def _status(text: str) -> Tuple[List[str], List[str], List[str]]:
    """Changed files, new ones that are code, new folders. git-status(1): XY, a blank, the name, NUL."""
    changed = []
    new = []
    folders = []
    for entry in text.split("\0"):
        if not entry.startswith("?? "):
            changed += [entry[3:]] if len(entry) > 3 else []
        elif entry.endswith("/"):
            folders.append(entry[3:])
        elif entry.endswith(CODE):
            new.append(entry[3:])
    return changed, new, folders


def _inside(host: Host, top: str, folders: Sequence[str]) -> List[str]:
    """Code in new folders; a folder with very much in it (data, outputs) is given up on."""
    if not folders:
        return []
    ran = host.run([*GIT, "-C", top, "ls-files", "-z", "--others", "--exclude-standard", "--", *folders[:50]], 8)
    return [name for name in ran.out.split("\0") if name.endswith(CODE)] if ran.ok else []


def _changes(text: str) -> Dict[str, str]:
    """By file, what the diff makes of it: the new content's hash is in its index line."""
    hashes = {}
    for section in re.split(r"^diff --git ", text, flags=re.MULTILINE)[1:]:
        header = section.partition("\n")[0]
        name = header[: len(header) // 2].strip('"')[len("a/") :]  # both names are the same
        new = _NEW.search(section)
        hashes[name] = new.group(1)[:12] if new else hashlib.sha256(section.encode()).hexdigest()[:12]
    return hashes


def _content(host: Host, path: str) -> str:
    text = host.text(path, 1 << 20)
    return "unreadable" if text is None else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning for each odd node. Where commits differ, `code_git` says it and files can't be compared."""
    collected = parts(facts_by_node, ID)
    if len({v.get("head") for v in collected.values()}) > 1:
        return []
    values = {n: tuple(sorted(v["files"].items())) for n, v in collected.items()}
    parted = split(values)
    if parted is None:
        return []
    if not parted.fine:
        return [
            _finding(
                request,
                list(values),
                f"uncommitted changes differ between {join_names(list(values))}",
                _odd(list(parted.odd)),
                values,
            )
        ]
    findings = []
    count = "the other " + str(len(parted.fine)) if len(parted.odd) == 1 else "most nodes"
    for value, nodes in parted.odd.items():
        message = f"uncommitted changes on {join_names(nodes)} differ from {count}"
        findings.append(_finding(request, nodes, message, _odd([value, parted.norm]), values))
    return findings


def _odd(values: Sequence[Tuple[Tuple[str, str], ...]]) -> List[str]:
    """Files that are not the same in all."""
    everywhere = set(values[0]).intersection(*map(set, values))
    return sorted({name for value in values for name, _ in set(value) - everywhere})


def _finding(
    request: Request,
    nodes: List[str],
    message: str,
    files: List[str],
    values: Mapping[str, Tuple[Tuple[str, str], ...]],
) -> Finding:
    shown = some(files, SHOWN)
    evidence = []
    for value, nodes_alike in list(by_value(values).items())[:8]:
        changed = [name for name, _ in value if name in files]
        evidence.append(f"{join_names(nodes_alike)}: {', '.join(changed[:SHOWN]) or 'no change'}")
    remedy = f"copy this machine's code to all nodes with run --sync, or look: allranks run {target(request)}"
    remedy += " --launcher command -- git diff HEAD --stat"
    return Finding(ID, "warn", f"{message}: {shown}", remedy, place(nodes), tuple(evidence))
