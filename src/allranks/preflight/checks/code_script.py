"""The training script itself is the same on every node."""

from __future__ import annotations

import shlex
from typing import Optional

from allranks.protocol.records import NamedTuple
from allranks.text import count_of

from ..compare import Findings, Nodes, collected, differences, evidence_of, fail_if, values_of
from ..host import Host
from ..typed_facts import Request

ID = "code_script"
GROUP = "code"
LEVEL = "quick"
LABEL = "code-differs"
LIMIT = 4 << 20
SYNC = "copy this machine's code to all nodes with run --sync"


class Content(NamedTuple):
    """The script and what is in it."""

    path: str
    size: int
    hash: str

    @property
    def shown(self) -> str:
        """Words for evidence."""
        return f"{self.hash[:8]} {count_of(self.size, 'byte')} {self.path}"


def collect(host: Host) -> Optional[Content]:
    """None for a module or a program."""
    script = host.facts.script
    if script.kind != "python-script" or not script.exists:
        return None
    import hashlib  # late: it loads OpenSSL, 3 ms, and a module or a program has no script

    data = host.read(script.path, LIMIT).encode("utf-8", "replace")
    return Content(script.path, len(data), hashlib.sha256(data).hexdigest()[:16])


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail where nodes would run different programs; warn under a wrapper, which may well show another file."""
    scripts = collected(facts_by_node, ID, Content)
    hashes = values_of(scripts, lambda script: script.hash)
    evidence = evidence_of(scripts, lambda node: scripts[node].shown)
    for odd in differences("version", hashes, lambda value: value[:8]):
        path = scripts[odd.nodes[0]].path
        remedy = SYNC
        if odd.fine:
            copy = f"scp -3 {shlex.quote(f'{odd.fine[0]}:{path}')} {shlex.quote(f'{odd.nodes[0]}:{path}')}"
            remedy = f"{copy}, or {SYNC}"
        message = f"{path.rpartition('/')[2]} differs between nodes: {odd.message}"
        yield fail_if(not request.asked.wrap, LABEL, odd.nodes, message, remedy, evidence)
