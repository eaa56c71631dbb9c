"""The working directory is at the same git commit on every node.

Read from .git alone (gitrepository-layout(5)): HEAD, refs, packed-refs, and the .git file of a worktree
or submodule. So neither git nor its safe.directory is in the way.
"""

from __future__ import annotations

import re
import shlex
from typing import List, Optional, Tuple

from allranks.protocol.records import NamedTuple

from ..compare import LISTED, Findings, Nodes, collected, differences, nodes_with, others, values_of, warn, who
from ..host import CouldNotLook, Host, lines_of, search_in
from ..typed_facts import Request

ID = "code_git"
GROUP = "code"
LEVEL = "quick"
SYNC = "copy this machine's code to all nodes with run --sync"
PACKED = 8 << 20  # bytes of packed-refs: some hundred thousand refs
_HASH = re.compile(r"^([0-9a-f]{40}|[0-9a-f]{64})\b")
_BRANCH = re.compile(r"^ref: *(?:refs/heads/)?(.*)")


class Repository(NamedTuple):
    """Its top, the commit (None: none yet) and the branch (None: detached)."""

    top: str
    commit: Optional[str]
    branch: Optional[str] = None


def collect(host: Host) -> Optional[Repository]:
    """None outside a repository."""
    start = host.facts.workdir.path or host.request.asked.workdir
    directories = start.startswith("/") and _find(host, host.real(start))
    if not directories:
        return None
    top, git = directories
    common = host.text(git + "/commondir", 4096)
    bases = [git, _within(host, git, common)] if common else [git]
    head = host.text(git + "/HEAD", 4096)
    if head is None:
        raise CouldNotLook(f"{git}/HEAD can't be read")
    branch = search_in(_BRANCH, head)
    if branch == ".invalid":
        raise CouldNotLook(f"{git} keeps its refs as a reftable")
    return Repository(top, _resolve(host, bases, head), branch or None)


def _find(host: Host, path: str) -> Optional[Tuple[str, str]]:
    while True:
        dot = path.rstrip("/") + "/.git"
        text = host.text(dot, 4096)
        if text is not None and text.startswith("gitdir:"):
            return path, _within(host, path, text[len("gitdir:") :].strip())
        if host.exists(dot + "/HEAD"):
            return path, dot
        if path == "/":
            return None
        path = path.rpartition("/")[0] or "/"


def _within(host: Host, base: str, path: str) -> str:
    return host.real(path if path.startswith("/") else f"{base}/{path}")


def _resolve(host: Host, bases: List[str], value: str) -> Optional[str]:
    """Look up a ref's commit: loose in the worktree's or the common directory, else packed."""
    for _ in range(5):
        if not value.startswith("ref:"):
            return search_in(_HASH, value) or None
        ref = value[len("ref:") :].strip()
        loose = (host.text(f"{base}/{ref}", 4096) for base in bases)
        value = next((text for text in loose if text), "") or _packed(host, bases[-1], ref)
    return None


def _packed(host: Host, base: str, ref: str) -> str:
    for line in lines_of(host, base + "/packed-refs", PACKED):
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: a commit that differs, and a node without a repository among nodes with one."""
    repositories = collected(facts_by_node, ID, Repository)
    commits = values_of(repositories, lambda one: one.commit)
    shown = [f"{node}: {str(one.commit)[:16]} {one.branch or '(detached)'}" for node, one in repositories.items()]
    for odd in differences("commit", commits, lambda commit: str(commit)[:10], "is at", "are at"):
        top = shlex.quote(repositories[odd.nodes[0]].top)
        pull = f"allranks exec {request.target} -- git -C {top} pull --ff-only"
        yield warn(ID, odd.nodes, odd.message, f"{pull}, or {SYNC}", shown[:LISTED])
    outside = {node: facts.workdir for node, facts in facts_by_node.items() if ID in facts and facts[ID] is None}
    without = nodes_with(outside, lambda workdir: workdir.exists)
    if without and len(repositories) > max(1, len(without)):
        message = f"{outside[without[0]].path} on {who(without, 'is', 'are')} in no git"
        message += " repository" + others(list(repositories), "are in one", "is in one")
        yield warn(ID, without, message, f"clone it there too, or {SYNC}")
