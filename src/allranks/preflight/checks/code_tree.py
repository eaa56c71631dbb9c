"""The working directory holds the same code and configuration on every node, committed or not.

Compared are files with an ending of code: names, sizes and, up to 1 MB, contents. What runs write (outputs, logs,
caches) is left out. Where nodes are at different commits, `code_git` says it.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

from allranks.protocol.records import NamedTuple
from allranks.text import join_names, list_first

from ..compare import Findings, Nodes, by_value, collected, remote, split, unknown, values_of, warn
from ..host import Host, ask
from ..typed_facts import Request
from .code_git import ID as GIT
from .code_git import SYNC, Repository

ID = "code_tree"
GROUP = "code"
LEVEL = "full"
SECONDS = 45.0
SHOWN = 5
# fmt: off
CODE = (".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini",
        ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
FOLDERS = ("__pycache__", "runs", "outputs", "checkpoints", "wandb", "mlruns", "lightning_logs", "node_modules", "venv")
DATA = ("data", "datasets", "output", "checkpoint", "ckpt", "logs", "log", "tensorboard", "build", "dist", "tmp")
# fmt: on

# Hidden names (.git, .venv, .cache) are left out. Below DATA a file of JSON is data, and it is walked last: a million
# images in data/ must not use up the walk before src/ is reached.
PROGRAM = r"""
import sys
import hashlib, json, os, time
MOST, BYTES, EACH, LISTED, WALKED = 5000, 64 << 20, 1 << 20, 500, 200000
end = time.monotonic() + 30
files, cut, walked = [], "", 0
for folder, folders, names in os.walk(TOP):
    folders[:] = [n for n in folders if not n.startswith(".") and n not in FOLDERS]
    folders.sort(key=lambda n: (n in DATA, n))
    data = set(os.path.relpath(folder, TOP).split(os.sep)) & set(DATA)
    walked += len(names)
    for name in names:
        path = os.path.join(folder, name)
        code = name.endswith(CODE) and not (data and name.endswith(".json"))
        if code and not name.startswith(".") and os.path.isfile(path):
            files.append(os.path.relpath(path, TOP))
    if walked > WALKED or time.monotonic() > end:
        cut = "more than %d files" % WALKED
        break
files.sort()
if len(files) > MOST:
    cut = cut or "%d files" % len(files)
found, read = {}, 0
for shown in files[:MOST]:
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
answer = dict(count=len(found), cut=cut, files=found if len(found) <= LISTED else None)
answer["digest"] = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]
answer["folders"] = dict((k, folders[k].hexdigest()[:8]) for k in sorted(folders)[:LISTED])
print("\nALLRANKS-ANSWER " + json.dumps(answer))
"""


class TreeHashes(NamedTuple):
    """Hashes by file (None: too many) and by folder, and what cut the reading short."""

    count_: int
    digest: str
    files: Optional[Dict[str, str]] = None
    folders: Mapping[str, str] = {}
    cut: str = ""


def collect(host: Host) -> Optional[TreeHashes]:
    """None where the working directory can't be entered, or holds no project: /, or where node directories are made."""
    top = host.facts.workdir.path
    no_projects = ["/", *(room.path for room in host.facts.disk.node_dirs)]
    if not host.facts.workdir.cwd_ok or top.rstrip("/") in [path.rstrip("/") for path in no_projects]:
        return None
    constants = f"TOP, CODE, FOLDERS, DATA = {top!r}, {CODE!r}, {FOLDERS!r}, {DATA!r}"
    return ask(host, TreeHashes, f"{constants}\n{PROGRAM}", SECONDS - 5, anywhere=True)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of each odd node."""
    if len({repository.commit for repository in collected(facts_by_node, GIT, Repository).values()}) > 1:
        return
    nodes = collected(facts_by_node, ID, TreeHashes)
    late = [node for node, tree in nodes.items() if "were over" in tree.cut]
    if late:
        message = f"the working directory of {join_names(late)} could not be read within 30 s and is not compared"
        yield unknown(ID, late, message, "name a smaller directory with --workdir")
    trees = {node: tree for node, tree in nodes.items() if node not in late}
    counts = list(by_value(values_of(trees, lambda tree: tree.count_)).items())
    evidence = [f"{join_names(names)}: {count} files" for count, names in counts[:6]]
    cuts = [tree.cut for tree in trees.values() if tree.cut]
    evidence += [f"only the first of {cut} are compared" for cut in cuts[:1]]
    for odd in split(values_of(trees, lambda tree: tree.digest)):
        top = facts_by_node[odd.nodes[0]].workdir.path
        differs = f"differs between {join_names(odd.nodes)}"
        copy = ""
        if odd.fine:
            differs = f"on {join_names(odd.nodes)} differs from {odd.rest}"
            copy = remote(odd.fine[0], "rsync -a", f"{top}/", f"{odd.nodes[0]}:{top}/") + ", or "
        files = _odd_files([trees[node] for node in odd.nodes + odd.fine])
        yield warn(ID, odd.nodes, f"{top} {differs}: {files}", copy + SYNC, evidence)


def _odd_files(trees: Sequence[TreeHashes]) -> str:
    items: List[Mapping[str, str]] = [tree.files for tree in trees if tree.files is not None]
    if len(items) < len(trees):
        items = [tree.folders for tree in trees]
    everywhere = set(items[0].items()).intersection(*(one.items() for one in items))
    odd = {name for one in items for name, _ in one.items() - everywhere}
    return list_first(sorted(odd) or ["(files beyond the first 500)"], SHOWN)
