"""NCCL, RCCL, Gloo, torch and OpenMP are set alike on every node.

Ranks that choose another algorithm, protocol or buffer size wait for each other for ever. As NCCL reads
them (src/misc/param.cc): the environment, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf. What
names a node's own devices or files may differ and is not compared.
"""

from __future__ import annotations

import re
import shlex
from typing import Dict, List, Mapping, Optional, Tuple

from allranks.findings import Finding
from allranks.text import list_first, plural

from ..compare import Difference, Findings, Nodes, advise, by_odd_nodes, collected, values_of, warn, who
from ..host import Host
from ..typed_facts import Request

ID = "settings"
GROUP = "software"
LEVEL = "quick"
SECONDS = 2.0
PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_", "OMP_")
LONGEST = 200
MOST = 100
SHOWN = 4
_SECRET = r"(?i)KEY|TOKEN|SECRET|PASS|CRED|AUTH"
_OF_A_NODE = (
    r"(_IFNAME|_HCA|_FILE|_DIR|_PATH|_HOME|_ADDR|_GID_INDEX|_PLACES)\Z"
    r"|\A(NCCL_DEBUG|NCCL_DEBUG_SUBSYS|NCCL_HOSTID|NCCL_IGNORE_CPU_AFFINITY|NCCL_COMM_ID|OMP_DISPLAY_\w+"
    r"|TORCH_LOGS|TORCH_CPP_LOG_LEVEL|TORCH_SHOW_CPP_STACKTRACES|TORCH_CUDA_ARCH_LIST)\Z"
)
ENVIRONMENT = "environment"
Setting = Tuple[str, str]  # the value and where it is set


def collect(host: Host) -> Optional[Dict[str, Setting]]:
    """By name; None where nothing is set."""
    settings: Dict[str, Setting] = {}
    for name in sorted(host.env):
        if name.startswith(PREFIXES):
            settings[name] = (host.env[name][:LONGEST], ENVIRONMENT)
    for path, text in host.facts.nccl.conf.items():
        for line in text.splitlines():  # # begins a comment only at a line's start, the first of two lines counts
            name, sign, value = line.partition("=")
            if sign and name.startswith(PREFIXES):
                settings.setdefault(name, (value[:LONGEST], path))
    shown = [name for name in sorted(settings) if not re.search(_SECRET, name)]
    return {name: settings[name] for name in shown[:MOST]} or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: one for each set of odd nodes."""
    nodes: Dict[str, Dict[str, Setting]] = {node: {} for node, facts in facts_by_node.items() if ID in facts}
    nodes.update(collected(facts_by_node, ID, Dict[str, Setting]))
    values = values_of(nodes, lambda settings: {name: value for name, (value, _) in settings.items()})
    names = sorted({name for settings in nodes.values() for name in settings if not re.search(_OF_A_NODE, name)})
    for odds in by_odd_nodes(names, values):
        yield _finding(nodes, odds)


def _finding(nodes: Mapping[str, Dict[str, Setting]], odds: List[Difference[Optional[str]]]) -> Finding:
    names = odds[0].nodes
    first = odds[0].what
    message = odds[0].message
    if len(odds) > 1:
        shown = list_first([odd.what for odd in odds], SHOWN)
        message = f"{who(names, 'differs', 'differ')} in {len(odds)} settings: {shown}"
    places = {node: nodes[node][first][1] for node in names if first in nodes[node]}
    evidence = [odd.message for odd in odds[:8]]
    evidence += [f"{node}: {first} from {place}" for node, place in list(places.items())[:4]]
    usual = [shlex.quote(f"{odd.what}={odd.norm}") for odd in odds if odd.norm is not None]
    remedy = f"set {plural(len(usual), 'it', 'them')} for all: {' '.join(f'--env {word}' for word in usual[:8])}"
    if not usual:
        node, place = next(iter(places.items()), (names[0], ENVIRONMENT))
        show = ("grep", first, place) if place != ENVIRONMENT else ("grep", "-s", first, ".bashrc", ".profile")
        remedy = advise(f"unset it, or set one value for all with --env {first}=…", node, *show)
    return warn(ID, names, message, remedy, evidence)
