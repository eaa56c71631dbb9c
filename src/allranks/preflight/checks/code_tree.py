"""Without git: the working directory holds the same files on every node.

Names, sizes and, up to 1 MB, contents are compared; what runs write (outputs, logs, caches) is left out.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, part, parts, place, remote, some, split
from ..host import Host, Record, Request, ask

ID = "code_tree"
GROUP = "code"
LEVEL = "full"
SECONDS = 45.0
SHOWN = 5
CODE = (".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".sh")
FOLDERS = (
    "__pycache__",
    "runs",
    "outputs",
    "checkpoints",
    "wandb",
    "mlruns",
    "lightning_logs",
    "node_modules",
    "venv",
)
DATA = ("data", "datasets", "output", "checkpoint", "ckpt", "logs", "log", "tensorboard", "build", "dist", "tmp")
WRITTEN = (
    ".pyc",
    ".log",
    ".out",
    ".err",
    ".tmp",
    ".lock",
    ".pid",
    ".swp",
    ".pt",
    ".pth",
    ".ckpt",
    ".safetensors",
    ".npz",
    ".egg-info",
    "~",
)

# Code comes first, so that the limits of number and bytes cut what matters less; the order is the same
# everywhere. Hidden names (.git, .venv, .cache) are left out; below DATA only code counts, and it comes last.
PROGRAM = r"""
import sys
sys.path[:] = [p for p in sys.path if p]
import hashlib, json, os, time
MOST, BYTES, EACH, LISTED, WALKED = 5000, 64 << 20, 1 << 20, 500, 200000
end = time.monotonic() + 30
files, cut, walked = [], "", 0
for folder, folders, names in os.walk(TOP):
    folders[:] = [n for n in folders if not n.startswith(".") and n not in FOLDERS and not n.endswith(WRITTEN)]
    folders.sort(key=lambda n: (n in DATA, n))
    data = set(os.path.relpath(folder, TOP).split(os.sep)) & set(DATA)
    walked += len(names)
    for name in sorted(names):
        path = os.path.join(folder, name)
        shown = os.path.relpath(path, TOP)
        code = name.endswith(CODE) and not (data and name.endswith(".json"))
        if name.startswith(".") or name.endswith(WRITTEN) or "tfevents" in name or (data and not code):
            continue
        if os.path.isfile(path):
            files.append((not code, shown))
    if walked > WALKED or time.monotonic() > end:
        cut = "more than %d files" % WALKED
        break
files.sort()
if len(files) > MOST:
    cut = cut or "%d files" % len(files)
found, read = {}, 0
for _, shown in files[:MOST]:
    try:
        size = os.path.getsize(os.path.join(TOP, shown))
        text = "%d" % size
        if size <= EACH and read + size <= BYTES and time.monotonic() < end:
            read += size
            with open(os.path.join(TOP, shown), "rb") as file:
                text += ":" + hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        text = "unreadable"
    found[shown] = hashlib.sha256(text.encode()).hexdigest()[:8]
folders = {}
for shown in sorted(found):
    folders.setdefault(os.path.dirname(shown) + "/", hashlib.sha256()).update((shown + found[shown]).encode())
if time.monotonic() > end:
    cut = "30 s were over"
answer = {
    "count": len(found), "cut": cut, "digest": hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest(),
    "files": found if len(found) <= LISTED else None,
    "folders": {k: v.hexdigest()[:8] for k, v in sorted(folders.items())[:LISTED]},
}
print("\nALLRANKS-ANSWER " + json.dumps(answer))
"""


def collect(host: Host) -> Optional[Record]:
    """{"count", "digest", "files" {name: hash} (None: too many), "folders", "cut", "git": whether .git is there}."""
    workdir = part(host.facts, "workdir")
    top = str(workdir.get("path") or "")
    if not workdir.get("cwd_ok") or len([w for w in top.split("/") if w]) < 1:  # not / itself
        return None
    constants = f"TOP, CODE, FOLDERS, DATA, WRITTEN = {top!r}, {CODE!r}, {FOLDERS!r}, {DATA!r}, {WRITTEN!r}"
    answer: Dict[str, Any] = ask(host, f"{constants}\n{PROGRAM}", SECONDS - 5, anywhere=True)
    return {**answer, "digest": answer["digest"][:16], "top": top, "git": _in_git(host, top)}


def _in_git(host: Host, path: str) -> bool:
    while path:
        if host.exists(path + "/.git"):
            return True
        path = path.rstrip("/").rpartition("/")[0]
    return False


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning for each odd node. Where all are git checkouts, code_git and code_changes judge."""
    trees = parts(facts_by_node, ID)
    if all(v.get("git") for v in trees.values()):
        return []
    late = [n for n, v in trees.items() if "were over" in str(v.get("cut"))]
    trees = {n: v for n, v in trees.items() if n not in late}
    findings = _late(late)
    parted = split({n: str(v["digest"]) for n, v in trees.items()})
    if parted is None:
        return findings
    for nodes in [list(trees)] if not parted.fine else list(parted.odd.values()):
        findings.append(_finding(trees, nodes, parted.fine))
    return findings


def _late(late: List[str]) -> List[Finding]:
    if not late:
        return []
    message = f"the working directory of {join_names(late)} could not be read within 30 s and is not compared"
    return [Finding(ID, "unknown", message, "name a smaller directory with --workdir", place(late))]


def _finding(trees: Nodes, nodes: List[str], fine: List[str]) -> Finding:
    """`nodes` against a node of the majority, or against each other."""
    compared = [nodes[0], fine[0]] if fine else nodes
    files = _odd([trees[n] for n in compared])
    shown = some(files, SHOWN)
    top = str(trees[nodes[0]].get("top"))
    message = (
        f"{top} differs between {join_names(nodes)}" if not fine else f"{top} on {join_names(nodes)} differs from "
    )
    if fine:
        message += f"the other {len(fine)}" if len(fine) + len(nodes) == len(trees) else f"{len(fine)} other nodes"
    evidence = [f"{join_names(n)}: {v} files" for v, n in by_value({n: v["count"] for n, v in trees.items()}).items()]
    cut = next((f"only the first of {v['cut']} are compared" for v in trees.values() if v.get("cut")), "")
    remedy = "copy this machine's code to all nodes with run --sync"
    if fine:
        remedy = f"{remote(fine[0], 'rsync', '-a', f'{top}/', f'{nodes[0]}:{top}/')}, or {remedy}"
    return Finding(ID, "warn", f"{message}: {shown}", remedy, place(nodes), tuple(evidence[:6] + [cut] * bool(cut)))


def _odd(trees: Sequence[Record]) -> List[str]:
    """The files that are not the same in all, or (of very many) the folders."""
    key = "files" if all(t.get("files") is not None for t in trees) else "folders"
    items = [set((t.get(key) or {}).items()) for t in trees]
    everywhere = items[0].intersection(*items)
    return sorted({name for tree in items for name, _ in tree - everywhere}) or ["(files beyond the first 500)"]
