"""No proxy variables in the ranks' environment: they lead connections between nodes away.

gRPC, HTTP stores and download tools follow them; torch's TCPStore, NCCL and Gloo do not.
"""

from __future__ import annotations

from typing import List, Optional

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, place
from ..host import Host, Request

ID = "proxy"
GROUP = "network"
LEVEL = "quick"
SECONDS = 2.0
NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def collect(host: Host) -> Optional[List[str]]:
    """Names alone: a proxy's address may hold a password."""
    return sorted({name for name in NAMES if host.env.get(name)})


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning, also where only some nodes have them."""
    variables_of = {n: ", ".join(f.get(ID) or ()) for n, f in facts_by_node.items() if f.get(ID)}
    findings = []
    for variables, nodes in by_value(variables_of).items():
        message = f"{join_names(nodes)}: {variables} set: a program that fetches over HTTP or gRPC goes through a proxy"
        remedy = "if nodes speak to each other that way: --env no_proxy=" + ",".join(facts_by_node) + ", or unset them"
        findings.append(Finding("proxy-env", "warn", message, remedy, place(nodes)))
    return findings
