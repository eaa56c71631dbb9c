"""Every --data-path holds the same files, by name and size, on every node.

Of a single file the first and last megabyte are compared too. Directories are listed for at most 5 s and
200,000 files, in the order of names.
"""

from __future__ import annotations

import base64
import zlib
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from allranks.findings import Finding
from allranks.protocol.codec import DecodeError, decode, read_json
from allranks.protocol.records import NamedTuple
from allranks.text import count_of, join_names, list_first, with_reason

from ..compare import (
    Findings,
    Nodes,
    by_item,
    by_value,
    collected,
    evidence_of,
    fail_if,
    nodes_with,
    remote,
    size,
    split,
    unknown,
    values_of,
)
from ..host import Host, ask
from ..typed_facts import Request

ID = "data_listing"
GROUP = "data"
LEVEL = "quick"
LABEL = "data-differs"
LISTING_SECONDS = 5.0
SECONDS = 15.0
PATHS = 8
SHOWN = 3
PACKED = 32768  # characters of a listing that travels
UNPACKED = 32 << 20  # bytes of its text: zlib makes at most a thousandth of them

# "names" is the whole listing, packed, where it is small enough to travel: so missing files get their names.
PROGRAM = r"""
import sys
import base64, hashlib, json, os, time, zlib
MOST = 200000
def one_file(path):
    size = os.path.getsize(path)
    sha = hashlib.sha256(b"%d" % size)
    with open(path, "rb") as file:
        sha.update(file.read(1 << 20))
        if size > 1 << 20:
            file.seek(max(1 << 20, size - (1 << 20)))
            sha.update(file.read(1 << 20))
    return dict(kind="file", count=1, bytes=size, digest=sha.hexdigest()[:16])
def listing(top, end):
    entries, total, cut = [], 0, ""
    stack = [""]
    while stack and not cut:
        below = stack.pop()
        folders = []
        try:
            with os.scandir(os.path.join(top, below)) as scan:
                found = sorted(scan, key=lambda e: e.name)
        except OSError:
            if not below:
                raise
            entries.append((below + "/", -1))
            found = []
        for entry in found:
            name = os.path.join(below, entry.name)
            if entry.name == "lost+found" or entry.name.startswith(".nfs") or entry.name.endswith(".lock"):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                    continue
                size = 0 if entry.is_dir() else entry.stat().st_size
            except OSError:
                size = -1
            entries.append((name, size))
            total += max(size, 0)
            if len(entries) >= MOST or time.monotonic() > end:
                cut = "%d files" % len(entries) if time.monotonic() <= end else "time"
                break
        stack += reversed(folders)
        if time.monotonic() > end:
            cut = "time"
    text = json.dumps(sorted(entries)).encode()
    packed = base64.b64encode(zlib.compress(text, 9)).decode() if len(entries) <= 20000 else ""
    digest = hashlib.sha256(text).hexdigest()[:16]
    names = packed if len(packed) <= PACKED else ""
    return dict(kind="directory", count=len(entries), bytes=total, cut=cut, digest=digest, names=names)
answer = {}
for path in PATHS:
    try:
        end = time.monotonic() + SECONDS / len(PATHS)
        answer[path] = listing(path, end) if os.path.isdir(path) else one_file(path)
    except OSError as error:
        answer[path] = dict(kind="unreadable", why=error.strerror)
print("\nALLRANKS-ANSWER " + json.dumps(answer))
"""


class PathListing(NamedTuple):
    """What is at a path: "file", "directory" or "unreadable" (and `why`); `cut` by a number of files or "time"; `names`
    packed."""

    kind: str
    count_: int = 0
    bytes: int = 0
    digest: str = ""
    cut: str = ""
    names: str = ""
    why: str = ""

    @property
    def amount(self) -> str:
        """In words."""
        if self.kind == "file":
            return f"a file of {count_of(self.bytes, 'byte')}"
        return f"{count_of(self.count_, 'file')} ({size(self.bytes)})"

    def sizes(self) -> Dict[str, int]:
        """Sizes by name; empty where the listing could not travel. Raise DecodeError where it is none."""
        if not self.names:
            return {}
        try:
            text = zlib.decompressobj().decompress(base64.b64decode(self.names[:PACKED]), UNPACKED)
        except (ValueError, zlib.error) as error:
            raise DecodeError(f"names: {error}") from None
        return dict(decode(List[Tuple[str, int]], read_json(text, UNPACKED)))


def collect(host: Host) -> Optional[Dict[str, PathListing]]:
    """Read a `PathListing` by path; None without a --data-path."""
    paths = host.request.asked.data_paths[:PATHS]
    if not paths:
        return None
    program = f"PATHS, PACKED, SECONDS = {paths!r}, {PACKED}, {LISTING_SECONDS}\n{PROGRAM}"
    return ask(host, Dict[str, PathListing], program, SECONDS - 5, anywhere=True)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail where a node lacks what others have; warn where each may have its own share, or a container other mounts.

    `data_paths` speaks of absent ones.
    """
    is_bare = not request.asked.wrap
    for path, by_node in by_item(collected(facts_by_node, ID, Dict[str, PathListing])).items():
        late = nodes_with(by_node, lambda one: one.cut == "time")
        if late:
            where = f"within {LISTING_SECONDS:g} s on {join_names(late)}"
            message = f"{path} could not be listed {where} and is not compared"
            yield unknown(ID, late, message, "name a smaller directory with --data-path")
        listings = {node: one for node, one in by_node.items() if node not in late and one.kind != "unreadable"}
        for odd in split(values_of(listings, lambda one: one.digest)):
            if odd.fine:
                yield _finding(path, listings, odd.nodes, odd.fine, is_bare)
            elif not _shares(list(listings.values())):
                few, many = _part_and_whole(listings)
                yield _finding(path, listings, few or odd.nodes, many, is_bare)


def _shares(listings: Sequence[PathListing]) -> bool:
    """No file of one node is on another: each has its own share, and that is meant so."""
    names_before: Set[str] = set()
    for listing in listings:
        names = set(listing.sizes())
        if not names or names & names_before:
            return False
        names_before |= names
    return True


def _part_and_whole(listings: Mapping[str, PathListing]) -> Tuple[List[str], List[str]]:
    """Tell the nodes that have a part of what the others have, and those others; nothing where it is not so."""
    groups = list(by_value(values_of(listings, lambda one: one.digest)).values())
    if len(groups) != 2 or not all(listing.names for listing in listings.values()):
        return [], []
    for few, many in (groups, groups[::-1]):
        if listings[few[0]].sizes().items() < listings[many[0]].sizes().items():
            return few, many
    return [], []


def _finding(path: str, listings: Mapping[str, PathListing], odd: List[str], fine: List[str], is_bare: bool) -> Finding:
    first = odd[0]
    other = fine[0] if fine else odd[-1]
    amount = listings[first].amount
    usual = listings[other].amount
    if not fine:
        message = f"{path} is not the same on {join_names(odd)}, and no majority has the same"
    elif amount != usual:
        message = f"{path} holds {amount} on {join_names(odd)}, and {usual} on {join_names(fine)}"
    else:
        message = f"{path} on {join_names(odd)} differs from that on {join_names(fine)} ({usual})"
    message = with_reason(message, _names(listings, first, other if fine else odd[1]))
    evidence = evidence_of(listings, lambda node: f"{listings[node].amount}, {listings[node].digest}")
    cuts = [one.cut for one in listings.values() if one.cut]
    evidence += [f"only the first {cut} are compared" for cut in cuts[:1]]
    source, target = (first, other) if listings[first].count_ > listings[other].count_ else (other, first)
    full_path = path.rstrip("/") + ("/" if listings[source].kind == "directory" else "")
    copy = remote(source, "rsync -a", full_path, f"{target}:{full_path}")  # it adds and replaces, and removes nothing
    remedy = f"{copy}, unless each node is meant to have its own share (--allow {LABEL})"
    return fail_if(bool(fine) and is_bare, LABEL, odd, message, remedy, evidence)


def _names(listings: Mapping[str, PathListing], one: str, other: str) -> str:
    if not listings[one].names or not listings[other].names:
        return ""
    first = listings[one].sizes()
    second = listings[other].sizes()
    resized = [name for name in first if name in second and first[name] != second[name]]
    lists = {
        f"{one} lacks": second.keys() - first.keys(),
        f"{other} lacks": first.keys() - second.keys(),
        "of another size": resized,
    }
    return ", ".join(f"{what} {list_first(sorted(names), SHOWN)}" for what, names in lists.items() if names)
