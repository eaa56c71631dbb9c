"""The settings of NCCL leave no active InfiniBand or RoCE port unused.

NCCL_IB_DISABLE=1 moves all traffic to sockets. NCCL_IB_HCA takes prefixes, each with `:port` or
not. `^` (all but) or `=` (exact) heads the list (NCCL's src/misc/param.cc and net_ib, matchIfList).
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from allranks.protocol.facts import NcclFacts
from allranks.text import join_names

from .. import rdma
from ..compare import Findings, Nodes, alike, collected, unset_in_ranks, warn
from ..host import Host, decimal
from ..typed_facts import Request

ID = "fabric"
GROUP = "network"
LEVEL = "quick"
SECONDS = 3.0
TAKES_ALL = "NCCL takes all active ports"


def collect(host: Host) -> Optional[List[rdma.UsedPort]]:
    """Each port; None without any."""
    ports = []
    for port, path in rdma.ports(host).items():
        device, _, number = port.partition("/")
        layer = host.text(f"{path}/link_layer") or "?"
        rate = host.text(f"{path}/rate") or "?"
        ports.append(rdma.UsedPort(device, decimal(number) or 0, rdma.is_active(host, path), layer, rate))
    return ports or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings with the check's own ID: they slow training down, they do not break it."""
    problems = {}
    for node, ports in collected(facts_by_node, ID, List[rdma.UsedPort]).items():
        problems[node] = _problem(request, [port for port in ports if port.active], facts_by_node[node].nccl)
    for (sentence, remedy), nodes in alike(problems, lambda problem: problem).items():
        yield warn(ID, nodes, f"{join_names(nodes)}: {sentence}", remedy)


def _problem(request: Request, active: List[rdma.UsedPort], nccl: NcclFacts) -> Optional[Tuple[str, str]]:
    """Say what is wrong and its remedy; None where every active port is used."""
    settings = nccl.settings()
    wanted, _ = settings.get("NCCL_IB_HCA", ("", ""))
    disabled, _ = settings.get("NCCL_IB_DISABLE", ("0", ""))
    used = rdma.matching(active, wanted) if wanted else active
    if not active:
        return None
    if disabled.strip() == "1":
        sentence = f"NCCL_IB_DISABLE=1 makes NCCL use sockets, while {rdma.ports_text(active)} is active"
        return sentence, f"{unset_in_ranks(request, 'NCCL_IB_DISABLE')} (or --env NCCL_IB_DISABLE=0)"
    if not used:
        sentence = f"NCCL_IB_HCA={wanted} matches no active port, so NCCL will use sockets"
        remedy = f"{unset_in_ranks(request, 'NCCL_IB_HCA')}: {TAKES_ALL}"
        return f"{sentence} (active: {rdma.ports_text(active)})", remedy
    unused = [port for port in active if port not in used]
    if unused:
        remedy = f"{unset_in_ranks(request, 'NCCL_IB_HCA')}, unless these ports are for storage: {TAKES_ALL}"
        return f"NCCL_IB_HCA={wanted} leaves out the active ports {rdma.ports_text(unused)}", remedy
    return None
