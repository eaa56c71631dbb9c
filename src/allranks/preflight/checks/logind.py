"""Whether systemd-logind would kill a node's ranks when the ssh session ends.

With KillUserProcesses the session is the lease: a broken connection ends the agent too, so --detach and a
controller that comes back find nothing (logind.conf(5)).
"""

from __future__ import annotations

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Nodes, part, place
from ..host import Request

ID = "logind"
GROUP = "host"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """A warning; the sessions of nodes without systemd, or out of a session scope, are not touched."""
    kills = []
    for node, facts in facts_by_node.items():
        logind = part(facts, "logind")
        if logind.get("KillUserProcesses") and logind.get("in_session") is not False:
            kills.append(node)
    if not kills:
        return []
    user = part(facts_by_node[kills[0]], "identity").get("user") or "$USER"
    message = f"logind on {join_names(kills)} {plural(len(kills), 'ends', 'end')} all processes of a session with it "
    message += "(KillUserProcesses=yes): there the ssh connection is the lease"
    remedy = f"sudo loginctl enable-linger {user}, or KillExcludeUsers=root {user} in /etc/systemd/logind.conf"
    return [Finding(ID, "warn", message, remedy, place(kills))]
