"""Ranks outlive the ssh session: systemd-logind does not end them with it.

With KillUserProcesses the session is the lease: a broken connection ends the agent too, so --detach and a
controller that comes back find nothing (logind.conf(5)).
"""

from __future__ import annotations

from ..compare import Findings, Nodes, nodes_with, values_of, warn, who
from ..typed_facts import Request

ID = "logind"
GROUP = "host"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn; the sessions of nodes without systemd, or out of a session scope, are not touched."""
    logins = values_of(facts_by_node, lambda facts: facts.logind)
    kills = nodes_with(logins, lambda logind: logind.KillUserProcesses and logind.in_session)
    if kills:
        user = facts_by_node[kills[0]].identity.user or "$USER"
        message = f"logind on {who(kills, 'ends', 'end')} all processes of a session with "
        message += "it (KillUserProcesses=yes): there the ssh connection is the lease"
        remedy = f"add KillExcludeUsers=root {user} to /etc/systemd/logind.conf"
        yield warn(ID, kills, message, remedy)
