"""No second default route: traffic to other networks could leave by either.

/proc/net/route, /proc/net/ipv6_route (proc_net(5)). Two routes with one metric are ambiguous; a second
interface with a worse metric is an ordinary backup.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding

from ..compare import Nodes, place, remote
from ..host import Host, Record, Request

ID = "routes"
GROUP = "network"
LEVEL = "quick"
SECONDS = 3.0
BETWEEN_MACHINES = True
RTF_UP = 0x1
RTF_REJECT = 0x200


def collect(host: Host) -> Optional[List[Record]]:
    """The default routes: interface, gateway, metric, version."""
    text = host.text("/proc/net/route")
    if text is None:
        return None
    routes: List[Record] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == "00000000" and int(words[3], 16) & RTF_UP:
            gateway = _address(words[2]) if words[2] != "00000000" else ""
            routes.append({"interface": words[0], "gateway": gateway, "metric": int(words[6]), "version": 4})
    return (routes + _version_6(host.text("/proc/net/ipv6_route", 1 << 20) or ""))[:32]


def _version_6(text: str) -> List[Record]:
    routes: List[Record] = []
    for line in text.splitlines():
        words = line.split()
        flags = int(words[8], 16) if len(words) > 9 else RTF_REJECT
        if words[:2] == ["0" * 32, "00"] and flags & RTF_UP and not flags & RTF_REJECT and words[9] != "lo":
            routes.append({"interface": words[9], "gateway": "", "metric": int(words[5], 16), "version": 6})
    return routes


def _address(word: str) -> str:
    """Little-endian hexadecimal, as the kernel writes it."""
    return ".".join(str(int(word[i : i + 2], 16)) for i in (6, 4, 2, 0))


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """wrong-interface, a warning, where the best metric is shared by several interfaces."""
    findings = []
    for node, facts in facts_by_node.items():
        for version in (4, 6):
            routes = [r for r in facts.get(ID) or () if r["version"] == version]
            best = [r for r in routes if r["metric"] == min(x["metric"] for x in routes)]
            if len({r["interface"] for r in best}) > 1:
                findings.append(_ambiguous(node, version, best))
    return findings


def _ambiguous(node: str, version: int, routes: List[Record]) -> Finding:
    ways = " and ".join(f"{r['interface']} ({r['gateway']})" if r["gateway"] else r["interface"] for r in routes)
    message = f"{node} has {len(routes)} IPv{version} default routes with the same metric: {ways}"
    last = routes[-1]["interface"]
    remedy = f"keep one: {remote(node, 'sudo', 'ip', 'route', 'del', 'default', 'dev', last)}"
    return Finding("wrong-interface", "warn", message, remedy, place([node], interface=last))
