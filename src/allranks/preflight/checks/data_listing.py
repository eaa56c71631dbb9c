"""Every --data-path holds the same files, by name and size, on every node.

Of a single file the first and last megabyte are compared too. A directory is listed for at most 20 s and
200,000 files, in the order of names.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Dict, List, Optional, Set

from allranks.findings import Finding
from allranks.text import count_of, join_names

from ..compare import Difference, Nodes, differences, parts, place, remote, size, some, split
from ..host import Host, Record, Request, ask

ID = "data_listing"
GROUP = "data"
LEVEL = "full"
SECONDS = 90.0
PATHS = 8
SHOWN = 3

# "names" is the whole listing, packed, where it is small enough to travel: so missing files get their names.
PROGRAM = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import base64, hashlib, json, os, time, zlib
MOST, PACKED = 200000, 32768
def one_file(path):
    size = os.path.getsize(path)
    sha = hashlib.sha256(b"%d" % size)
    with open(path, "rb") as file:
        sha.update(file.read(1 << 20))
        if size > 1 << 20:
            file.seek(max(1 << 20, size - (1 << 20)))
            sha.update(file.read(1 << 20))
    return {"kind": "file", "count": 1, "bytes": size, "digest": sha.hexdigest()[:16], "cut": ""}
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
    return {"kind": "directory", "count": len(entries), "bytes": total, "cut": cut,
            "digest": hashlib.sha256(text).hexdigest()[:16], "names": packed if len(packed) <= PACKED else ""}
answer = {}
for path in PATHS:
    try:
        answer[path] = listing(path, time.monotonic() + 20 / len(PATHS)) if os.path.isdir(path) else one_file(path)
    except OSError as error:
        answer[path] = {"kind": "unreadable", "why": error.strerror}
print("\nALLRANKS-ANSWER " + json.dumps(answer))
"""


def collect(host: Host) -> Optional[Record]:
    """{path: {"kind", "count", "bytes", "digest", "cut", "names"}}; None without a --data-path."""
    paths = [str(p) for p in host.request.get("data_paths") or ()][:PATHS]
    if not paths:
        return None
    answer: Dict[str, Any] = ask(host, f"PATHS = {paths!r}\n{PROGRAM}", SECONDS - 5, anywhere=True)
    return answer


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: each node may well have its own share of the data. `data_paths` speaks of absent ones."""
    collected = parts(facts_by_node, ID)
    paths = dict.fromkeys(path for findings in collected.values() for path in findings)
    findings = []
    for path in paths:
        listings = {n: v[path] for n, v in collected.items() if path in v and v[path].get("kind") != "unreadable"}
        findings += _late(path, [n for n, v in listings.items() if v.get("cut") == "time"])
        listings = {n: v for n, v in listings.items() if v.get("cut") != "time"}
        digests = {n: str(v["digest"]) for n, v in listings.items()}
        parted = split(digests)
        for odd in differences(path, digests):
            if parted and (parted.fine or not _shares(listings)):
                findings.append(_finding(path, listings, odd, parted.fine))
    return findings


def _shares(by_node: Nodes) -> bool:
    """No file of one node is on another: each has its own share, and that is meant so."""
    listings = [v for v in by_node.values() if v.get("names")]
    names_before: Set[str] = set()
    for one in listings:
        names = {str(name) for name, _ in _unpack(str(one["names"]))}
        if not names or names & names_before:
            return False
        names_before |= names
    return len(listings) == len(by_node)


def _late(path: str, late: List[str]) -> List[Finding]:
    if not late:
        return []
    message = f"{join_names(late)}: {path} could not be listed within 20 s and is not compared"
    return [Finding(ID, "unknown", message, "name a smaller directory with --data-path", place(late))]


def _finding(path: str, listings: Nodes, odd: Difference, fine: List[str]) -> Finding:
    shown = {n: _amount(listings[n]) for n in listings}
    if fine and shown[odd.nodes[0]] != shown[fine[0]]:
        message = (
            f"{path} holds {shown[odd.nodes[0]]} on {join_names(odd.nodes)}; {shown[fine[0]]} on {join_names(fine)}"
        )
    elif fine:
        message = f"{path} on {join_names(odd.nodes)} differs from that on {join_names(fine)} ({shown[fine[0]]})"
    else:
        message = f"{path} is not the same on {join_names(odd.nodes)}, and no majority has the same"
    message += _some(listings, [odd.nodes[0], fine[0]] if fine else odd.nodes[:2])
    cut = next((str(v["cut"]) for v in listings.values() if v.get("cut")), "")
    evidence = [f"{n}: {shown[n]}, {v['digest']}" for n, v in list(listings.items())[:8]]
    evidence += [f"only the first {cut} are compared"] if cut else []
    remedy = _copy(path, listings, odd.nodes[0], fine[0] if fine else odd.nodes[-1])
    return Finding(ID, "warn", message, remedy, place(odd.nodes), tuple(evidence))


def _copy(path: str, listings: Nodes, odd: str, fine: str) -> str:
    """From the node with more; rsync adds and replaces, it removes nothing."""
    source, other = (odd, fine) if int(listings[odd]["count"]) > int(listings[fine]["count"]) else (fine, odd)
    full_path = path.rstrip("/") + ("/" if listings[source].get("kind") == "directory" else "")
    line = remote(source, "rsync", "-a", full_path, f"{other}:{full_path}")
    return f"{line}; fine if each node is meant to have its own share"


def _amount(one: Record) -> str:
    if one.get("kind") == "file":
        return f"a file of {count_of(int(one['bytes']), 'byte')}"
    return f"{count_of(int(one['count']), 'file')} ({size(float(one['bytes']))})"


def _some(listings: Nodes, two: List[str]) -> str:
    """The names by which two nodes differ, where the listings could travel."""
    if len(two) < 2 or not all(listings[n].get("names") for n in two):
        return ""
    first, second = (dict(_unpack(str(listings[n]["names"]))) for n in two)
    words = []
    for what, names in (
        (f"{two[0]} lacks", sorted(set(second) - set(first))),
        (f"{two[1]} lacks", sorted(set(first) - set(second))),
        ("of another size", sorted(n for n in set(first) & set(second) if first[n] != second[n])),
    ):
        if names:
            words.append(f"{what} {some(names, SHOWN)}")
    return f": {'; '.join(words)}" if words else ""


def _unpack(text: str) -> List[Any]:
    entries: List[Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return entries
