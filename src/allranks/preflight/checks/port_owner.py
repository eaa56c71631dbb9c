"""Nobody listens on --master-port on the first node.

A listening socket refuses a second one, on any address, also with SO_REUSEADDR (socket(7)). From
/proc/net/tcp and tcp6 (state 0A) and /proc/PID/fd.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Set

from allranks.findings import Finding

from ..compare import Nodes, part, place, remote, target
from ..host import Host

ID = "port_owner"
GROUP = "leftovers"
LEVEL = "quick"
SECONDS = 5.0
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN = "0A"
TABLE_LIMIT = 8 << 20
MARK = "ALLRANKS_MARK="


def collect(host: Host) -> Optional[Dict[str, Any]]:
    """{} where the port is free; else "uid" and, where they can be seen, "user", "pid", "program", "ours"."""
    port = int(host.request.get("master_port") or 0)
    if port <= 0:
        return None
    owners: Dict[str, int] = {}
    for table in TABLES:
        owners.update(_listeners(host.text(table, TABLE_LIMIT) or "", port))
    if not owners:
        return {}
    uid = next(iter(owners.values()))
    found: Dict[str, Any] = {"uid": uid, "user": _user(host, uid)}
    pid = _process(host, {f"socket:[{inode}]" for inode in owners})
    if pid is not None:
        marked = MARK in (host.text(f"/proc/{pid}/environ", 1 << 20) or "")
        found.update(pid=pid, program=host.text(f"/proc/{pid}/comm") or "?", ours=marked)
    return found


def _listeners(text: str, port: int) -> Dict[str, int]:
    """{inode: uid}. proc(5): sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …"""
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == LISTEN and int(words[1].rpartition(":")[2], 16) == port:
            found[words[9]] = int(words[7])
    return found


def _process(host: Host, links: Set[str]) -> Optional[int]:
    """The lowest pid that has a socket open; a child may have inherited it."""
    for pid in sorted(int(name) for name in host.names("/proc") if name.isdigit()):
        directory = f"/proc/{pid}/fd"
        if any(host.link(f"{directory}/{fd}") in links for fd in host.names(directory)):
            return pid
    return None


def _user(host: Host, uid: int) -> str:
    for line in (host.text("/etc/passwd", 1 << 20) or "").splitlines():
        words = line.split(":")
        if len(words) > 2 and words[2] == str(uid):
            return words[0]
    return str(uid)


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """port-in-use on the first node: rank 0 listens there, the others do not."""
    node = next(iter(facts_by_node), None)
    found = part(facts_by_node[node], ID) if node is not None else {}
    if node is None or not found:
        return []
    port = int(request.get("master_port") or 0)
    whose = f"user {found.get('user')}"
    mine = part(facts_by_node[node], "identity").get("uid") == found.get("uid")
    who = f"{found['program']} (pid {found['pid']}, {whose})" if found.get("pid") else f"a process of {whose}"
    remedy = "choose another --master-port (0 takes a free one)"
    if found.get("ours"):
        remedy += f", or end what an earlier run left: allranks clean --leftovers {target(request)}"
    elif mine and found.get("pid"):
        remedy += f", or end it: {remote(node, 'kill', str(found['pid']))}"
    message = f"port {port} of {node} is taken: {who} listens on it"
    return [Finding("port-in-use", "fail", message, remedy, place([node], port=port))]
