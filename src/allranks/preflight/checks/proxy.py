"""No proxy variables in the ranks' environment: they lead connections between nodes away.

gRPC, HTTP stores and download tools follow them. TCPStore of torch, NCCL and Gloo do not.
"""

from __future__ import annotations

from typing import List

from allranks.text import join_names, join_words

from ..compare import Findings, Nodes, by_value, collected, unset_in_ranks, values_of, warn
from ..host import Host
from ..typed_facts import Request

ID = "proxy"
GROUP = "network"
LEVEL = "quick"
SECONDS = 2.0
NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def collect(host: Host) -> List[str]:
    """Names alone: a proxy's address may hold a password."""
    return sorted(name for name in NAMES if host.env.get(name))


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn, also where only some nodes have them."""
    names = values_of(collected(facts_by_node, ID, List[str]), ", ".join)
    for variables, nodes in by_value(names).items():
        message = f"{variables} set on {join_names(nodes)}: "
        message += "a program that fetches over HTTP or gRPC goes through a proxy"
        removal = join_words([unset_in_ranks(request, name) for name in variables.split(", ")])
        remedy = f"{removal}, or if nodes speak to each other that way --env no_proxy={','.join(facts_by_node)}"
        yield warn("proxy-env", nodes, message, remedy)
