"""The training script itself is the same on every node."""

from __future__ import annotations

import hashlib
import shlex
from typing import List, Optional

from allranks.findings import Finding
from allranks.text import count_of

from ..compare import Nodes, differences, part, parts, place, split
from ..host import Host, Record, Request

ID = "code_script"
GROUP = "code"
LEVEL = "quick"
SECONDS = 5.0
LIMIT = 4 << 20


def collect(host: Host) -> Optional[Record]:
    """{"path", "size", "hash"} of a Python script; None for a module or a program."""
    script = part(host.facts, "script")
    if script.get("kind") != "python-script" or not script.get("exists"):
        return None
    text = host.read(str(script["path"]), LIMIT)
    data = text.encode("utf-8", "replace")
    return {"path": str(script["path"]), "size": len(data), "hash": hashlib.sha256(data).hexdigest()[:16]}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure where nodes would run different programs; a wrapper may well show another file: a warning."""
    scripts = parts(facts_by_node, ID)
    hashes = {n: str(v.get("hash")) for n, v in scripts.items()}
    parted = split(hashes)
    findings = []
    for odd in differences("version", hashes, lambda value: value[:8]):
        one = scripts[odd.nodes[0]]
        path = str(one.get("path"))
        name = path.rpartition("/")[2]
        message = f"{name} differs between nodes: {odd.message}"
        remedy = _remedy(path, odd.nodes, parted.fine if parted else [])
        evidence = tuple(f"{n}: {v['hash'][:8]} {count_of(v['size'], 'byte')} {v['path']}" for n, v in scripts.items())
        findings.append(
            Finding(ID, "warn" if request.get("wrap") else "fail", message, remedy, place(odd.nodes), evidence[:8])
        )
    return findings


def _remedy(path: str, odd: List[str], fine: List[str]) -> str:
    if not fine:
        return "copy this machine's code to all nodes with run --sync"
    copy = f"scp -3 {shlex.quote(f'{fine[0]}:{path}')} {shlex.quote(f'{odd[0]}:{path}')}"
    return f"{copy}; or copy this machine's code to all nodes with run --sync"
