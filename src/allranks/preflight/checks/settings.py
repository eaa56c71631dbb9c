"""NCCL, RCCL, Gloo, torch and OpenMP are set alike on every node.

Ranks that choose another algorithm, protocol or buffer size wait for each other for ever. As NCCL reads
them (src/misc/param.cc): the environment, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf. What
names a node's own devices or files may differ and is not compared.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Dict, List, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Difference, Nodes, differences, part, place, remote, some
from ..host import Host, Record, Request

ID = "settings"
GROUP = "software"
LEVEL = "quick"
SECONDS = 2.0
PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_", "OMP_")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
LONGEST = 200
MOST = 100
SHOWN = 4
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH", re.IGNORECASE)
_OF_A_NODE = re.compile(
    r"(_IFNAME|_HCA|_FILE|_DIR|_PATH|_HOME|_ADDR|_GID_INDEX|_PLACES)\Z"
    r"|\A(NCCL_DEBUG|NCCL_DEBUG_SUBSYS|NCCL_HOSTID|NCCL_IGNORE_CPU_AFFINITY|NCCL_COMM_ID|OMP_DISPLAY_\w+"
    r"|TORCH_LOGS|TORCH_CPP_LOG_LEVEL|TORCH_SHOW_CPP_STACKTRACES|TORCH_CUDA_ARCH_LIST)\Z"
)


def collect(host: Host) -> Optional[Dict[str, List[str]]]:
    """{name: [value, where it is set]}; None where nothing is set."""
    settings: Dict[str, List[str]] = {}
    for name in sorted(host.env):
        if name.startswith(PREFIXES) or name in VISIBLE:
            settings[name] = [host.env[name][:LONGEST], "environment"]
    for path, text in (part(host.facts, "nccl").get("conf") or {}).items():
        for name, value in _assignments(str(text)):
            settings.setdefault(name, [value[:LONGEST], str(path)])
    shown = [name for name in sorted(settings) if not _SECRET.search(name)]
    return {name: settings[name] for name in shown[:MOST]} or None


def _assignments(text: str) -> List[Tuple[str, str]]:
    """Lines NAME=value; # begins a comment only at a line's start, the first of two lines counts."""
    assignments = []
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and name.startswith(PREFIXES):
            assignments.append((name, value))
    return assignments


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: one for each set of odd nodes, and one for unequal numbers of visible GPUs."""
    failed = [n for n, f in facts_by_node.items() if "error" in (f.get(ID) or {}) or ID not in f]
    settings_of: Dict[str, Any] = {n: f[ID] or {} for n, f in facts_by_node.items() if n not in failed}
    parted: Dict[Tuple[str, ...], List[Tuple[str, Difference]]] = {}
    for name in sorted({name for findings in settings_of.values() for name in findings}):
        if name not in VISIBLE and not _OF_A_NODE.search(name):
            for odd in differences(name, {n: _value(findings, name) for n, findings in settings_of.items()}):
                parted.setdefault(tuple(odd.nodes), []).append((name, odd))
    findings = [_finding(settings_of, list(nodes), odds) for nodes, odds in parted.items()]
    return findings + [f for name in VISIBLE for f in _visible(settings_of, name)]


def _value(settings: Record, name: str) -> Optional[str]:
    return str(settings[name][0]) if name in settings else None


def _finding(settings_of: Nodes, nodes: List[str], odds: List[Tuple[str, Difference]]) -> Finding:
    message = odds[0][1].message
    if len(odds) > 1:
        shown = some([name for name, _ in odds], SHOWN)
        message = f"{join_names(nodes)} {plural(len(nodes), 'differs', 'differ')} in {len(odds)} settings: {shown}"
    name = odds[0][0]
    evidence = [d.message for _, d in odds[:8]]
    evidence += [f"{n}: {name} from {settings_of[n][name][1]}" for n in nodes[:4] if name in settings_of[n]]
    return Finding(ID, "warn", message, _remedy(settings_of, nodes, odds), place(nodes), tuple(evidence))


def _remedy(settings_of: Nodes, nodes: List[str], odds: List[Tuple[str, Difference]]) -> str:
    usual = [shlex.quote(f"{name}={odd.norm}") for name, odd in odds if odd.norm is not None]
    if usual:
        return f"set {plural(len(usual), 'it', 'them')} for all: {' '.join(f'--env {word}' for word in usual[:8])}"
    name = odds[0][0]
    node = next((n for n in nodes if name in settings_of[n]), nodes[0])
    where = str(settings_of[node][name][1]) if name in settings_of[node] else "environment"
    look = ("grep", name, where) if where.startswith("/") else ("grep", "-s", name, ".bashrc", ".profile")
    return f"unset it, or set one value for all with --env {name}=…; look: {remote(node, *look)}"


def _visible(settings_of: Nodes, name: str) -> List[Finding]:
    """Which GPUs is a node's own affair; how many is compared among the nodes that set it."""
    counts = {
        n: len([w for w in findings[name][0].split(",") if w.strip()])
        for n, findings in settings_of.items()
        if name in findings
    }
    findings = []
    for odd in differences("GPU count", counts):
        remedy = f"set {name} to as many GPUs on each node, or --nproc to the smallest number"
        evidence = tuple(f"{n}: {name}={settings_of[n][name][0]}" for n in odd.nodes[:8])
        findings.append(Finding(ID, "warn", f"{name}: {odd.message}", remedy, place(odd.nodes), evidence))
    return findings
