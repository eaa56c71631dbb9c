"""No second default route: traffic to other networks could leave by either.

/proc/net/route, /proc/net/ipv6_route (proc_net(5)). Two routes with one metric are ambiguous. A second
interface with a worse metric is an ordinary backup.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.protocol.records import NamedTuple

from ..compare import Findings, Nodes, collected, group, remote, warn
from ..host import Host, lines_of
from ..typed_facts import Request

ID = "routes"
GROUP = "network"
LEVEL = "quick"
SECONDS = 3.0
BETWEEN_MACHINES = True
RTF_UP = 0x1
RTF_REJECT = 0x200


class Route(NamedTuple):
    """A default route of IP version 4 or 6."""

    interface: str
    gateway: str
    metric: int
    version: int


def collect(host: Host) -> Optional[List[Route]]:
    """Read the default routes; None where /proc shows none."""
    text = host.text("/proc/net/route")
    if text is None:
        return None
    routes = []
    for words in (line.split() for line in text.splitlines()[1:]):
        if len(words) > 7 and words[1] == words[7] == "00000000" and int(words[3], 16) & RTF_UP:
            routes.append(Route(words[0], _address(words[2]), int(words[6]), 4))
    for words in (line.split() for line in lines_of(host, "/proc/net/ipv6_route", 1 << 20)):
        is_default = len(words) > 9 and words[:2] == ["0" * 32, "00"] and words[9] != "lo"
        if is_default and int(words[8], 16) & (RTF_UP | RTF_REJECT) == RTF_UP:
            routes.append(Route(words[9], "", int(words[5], 16), 6))
    return routes[:32]


def _address(word: str) -> str:
    if word == "00000000":
        return ""
    return ".".join(str(int(word[i : i + 2], 16)) for i in (6, 4, 2, 0))


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """wrong-interface, a warning, where the best metric is shared by several interfaces."""
    for node, every in collected(facts_by_node, ID, List[Route]).items():
        for version, routes in group(every, lambda route: route.version).items():
            least = min(route.metric for route in routes)
            best = [route for route in routes if route.metric == least]
            if len({route.interface for route in best}) > 1:
                ways = [f"{route.interface} ({route.gateway})".replace(" ()", "") for route in best]
                message = f"{node} has {len(best)} IPv{version} default routes with the same metric: "
                last = best[-1].interface
                remedy = f"keep one: {remote(node, f'sudo ip route del default dev {last}')}"
                yield warn("wrong-interface", node, message + " and ".join(ways), remedy, interface=last)
