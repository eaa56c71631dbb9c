"""The training script, and the project's own files that it imports, are the same on every node.

Files below the script's directory are found by the import statements in them, at most 300 files of 8 MB in all. What is
imported by name at run time is seen by `code_tree` alone.
"""

from __future__ import annotations

import re
import shlex
from typing import Dict, Iterator, List, Mapping, Optional, Set

from allranks.protocol.records import NamedTuple
from allranks.text import count_of, list_first, plural

from ..compare import Findings, Nodes, by_item, by_odd_nodes, collected, evidence_of, fail_if, values_of
from ..host import Host, base_name
from ..typed_facts import Request
from .code_git import SYNC

ID = "code_script"
GROUP = "code"
LEVEL = "quick"
LABEL = "code-differs"
LIMIT = 4 << 20
FILES = 300
BYTES = 8 << 20
TRIED = 5000  # names of modules, most of which are installed elsewhere
SHOWN = 4
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]{1,20}(\.{0,20})(\w[\w.]*|)[ \t]{1,20}import[ \t]+(\([^)]{0,4000}|[^\n#;]*)|"
    r"import[ \t]+([^\n#;]+))",
    re.MULTILINE,
)


class Content(NamedTuple):
    """The script and what is in it; `imported` are hashes of files by their paths below its directory."""

    path: str
    size: int
    hash: str
    imported: Mapping[str, str] = {}


def collect(host: Host) -> Optional[Content]:
    """None for a module or a program."""
    script = host.facts.script
    if script.kind != "python-script" or not script.exists:
        return None
    text = host.read(script.path, LIMIT)
    folder = script.path.rpartition("/")[0]
    imported = {name: _hash(found) for name, found in _imported(host, folder, text).items()}
    return Content(script.path, len(text.encode("utf-8", "replace")), _hash(text), imported)


def _hash(text: str) -> str:
    import hashlib  # late: it loads OpenSSL, 3 ms, and a module or a program has no script

    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _imported(host: Host, top: str, script: str) -> Dict[str, str]:
    """Read the files below a directory that a script imports, and those that they import."""
    found: Dict[str, str] = {}
    tried: Set[str] = set()
    waiting = [("", script)]  # the directory of a file below `top`, and its text
    room = BYTES
    while waiting:
        for name in _files_imported(*waiting.pop()):
            if name in tried:
                continue
            tried.add(name)
            path = f"{top}/{name}"
            if len(tried) > TRIED or len(found) >= FILES or room <= 0:
                return found
            if host.exists(path):
                text = host.text(path, min(LIMIT, room)) or ""
                room -= len(text)
                found[name] = text
                waiting.append((name.rpartition("/")[0], text))
    return found


def _files_imported(folder: str, text: str) -> Iterator[str]:
    """Give the paths that the modules of import statements would have below the script's directory."""
    for dots, module, names, modules in IMPORT.findall(text):
        if modules:
            for name in modules.split(","):
                for word in name.split()[:1]:
                    yield from _files_of(word.split("."))
            continue
        base: List[str] = []
        if dots:
            parts = folder.split("/") if folder else []
            if len(dots) > len(parts) + 1:
                continue
            base = parts[: len(parts) + 1 - len(dots)]
        base = [*base, *filter(None, module.split("."))]
        yield from _files_of(base)
        for name in re.sub(r"[(]|#[^\n]*", "", names).split(","):
            for word in name.split()[:1]:
                yield from _files_of([*base, word])


def _files_of(parts: List[str]) -> Iterator[str]:
    """Give the files that a module may be, with the packages above it."""
    if all(part.isidentifier() for part in parts):
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            yield f"{path}.py"
            yield f"{path}/__init__.py"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail where nodes would run different programs; warn under a wrapper, which may well show another file."""
    scripts = collected(facts_by_node, ID, Content)
    files = values_of(scripts, lambda script: {base_name(script.path): script.hash, **script.imported})
    shown = values_of(scripts, lambda script: f"{script.hash[:8]} {count_of(script.size, 'byte')} {script.path}")
    evidence = evidence_of(shown, shown.__getitem__)
    for same in by_odd_nodes(by_item(files), files, lambda value: str(value)[:8], "version {value} of {what}"):
        odd = same[0]
        remedy = SYNC
        if odd.fine and len(same) == 1:
            ends = (odd.fine[0], odd.nodes[0])
            paths = [f"{node}:{scripts[node].path.rpartition('/')[0]}/{odd.what}" for node in ends]
            remedy = f"scp -3 {' '.join(map(shlex.quote, paths))}, or {SYNC}"
        others = [one.what for one in same[1:]]
        also = f", and {list_first(others, SHOWN)} {plural(len(others), 'differs', 'differ')} too" if others else ""
        yield fail_if(not request.asked.wrap, LABEL, odd.nodes, odd.message + also, remedy, evidence)
