"""The figures of an accelerate configuration, and of a launcher's own options, fit the cluster.

allranks passes them itself, so a file without them is best; one that says something else was made for other nodes.
Names: accelerate/commands/config/config_args.py (ClusterConfig), torch/distributed/run.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Facts, Nodes, by_value, differing, parts, place
from ..figures import MISSING, Ranks, absent, read_table, whole_number
from ..host import Host, Record, Request

ID = "accelerate_config"
GROUP = "software"
LEVEL = "quick"
_LABEL = "accelerate-config"
_SPOKEN = {"num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port"}
_NODES = ("num_machines", "nnodes", "num_nodes")
_EACH = ("nproc_per_node", "num_gpus", "num_accelerators")
COUNTS = (*_EACH, "num_processes")  # known only with the number of ranks of each node
_PORT = ("master_port", "main_process_port")
_RANK = ("machine_rank", "node_rank")
_LEAVE_OUT = "or leave it out: allranks passes it to every node"


def collect(host: Host) -> Optional[Record]:
    """The configuration that `accelerate launch` would read on this node; None where it reads none."""
    path = (host.request.get("launching") or {}).get("accelerate")
    if path is None:
        return None
    if path:
        return {**read_table(host, path), "file": path}
    cache = host.env.get("XDG_CACHE_HOME") or host.env.get("HOME", "") + "/.cache"
    home = host.env.get("HF_HOME") or cache + "/huggingface"
    for name in ("default_config.yaml", "default_config.json"):
        table = read_table(host, f"{home}/accelerate/{name}")
        if MISSING not in table:
            return {**table, "file": f"{home}/accelerate/{name}"}
    return None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """accelerate-config, world-size-mismatch and rank-missing-or-duplicate, each with the figure that it must be."""
    ranks = Ranks(request, facts_by_node)
    configs = parts(facts_by_node, ID)
    spoken = {n: {k: c[k] for k in _SPOKEN & set(c) if c[k]} for n, c in configs.items()}
    findings = absent(configs, str(next(iter(configs.values()))["file"])) if configs else []
    findings += _counts(configs, spoken, ranks)
    findings += _master_ip(configs, spoken, ranks, facts_by_node)
    findings += _port(request, configs, spoken)
    findings += _machine_rank(configs, spoken, ranks, bool(request.get("virtual")))
    if not (request.get("launching") or {}).get("accelerate"):  # the default file: nobody said that it is for this run
        findings = [replace(f, status="warn") for f in findings]
    return findings + judge_options(request, ranks, facts_by_node)


def _counts(configs: Nodes, spoken: Nodes, ranks: Ranks) -> List[Finding]:
    """num_machines and num_processes (of all machines together)."""
    findings = []
    for key, must, why in (
        ("num_machines", ranks.nodes, "the nodes of this run"),
        ("num_processes", ranks.world, f"all ranks of the run, {ranks}"),
    ):
        wrong = {n: c[key] for n, c in spoken.items() if whole_number(c.get(key)) not in (None, -1, must)}
        for value, nodes in by_value(wrong).items():
            one = f" ({value} is one node's)" if key == "num_processes" and whole_number(value) == ranks.each else ""
            message = f"{_file(configs, nodes)} says {key}: {value}{one}; it must be {must}: {why}"
            findings.append(Finding(_LABEL, "fail", message, f"set {key}: {must}, {_LEAVE_OUT}", place(nodes)))
    return findings


def _master_ip(configs: Nodes, spoken: Nodes, ranks: Ranks, facts_by_node: Nodes) -> List[Finding]:
    """main_process_ip is node 0's."""
    values = {n: str(c["main_process_ip"]) for n, c in spoken.items() if c.get("main_process_ip")}
    findings = []
    for value, nodes in by_value(values).items():
        whose = _owner(value, ranks, facts_by_node)
        if whose == ranks.first or whose is None:
            continue
        addresses = _addresses(facts_by_node.get(ranks.first) or {})
        whose_it_is = f"{whose}'s" if whose else "no node's of this run"
        message = f"{_file(configs, nodes)} says main_process_ip: {value}, which is {whose_it_is}; it must be node 0's"
        message += f" ({ranks.first}: {', '.join(addresses[:3]) or 'its name'})"
        remedy = f"set main_process_ip: {addresses[0] if addresses else ranks.first}, {_LEAVE_OUT}"
        findings.append(Finding(_LABEL, "fail", message, remedy, place(nodes)))
    return findings


def _owner(value: str, ranks: Ranks, facts_by_node: Nodes) -> Optional[str]:
    """The node that has this name or address; "" where none has; None where that can't be told."""
    for node, facts in facts_by_node.items():
        names = {node, str(facts.get("hostname") or node), str(facts.get("hostname") or node).partition(".")[0]}
        if value in names or value in _addresses(facts, loopback=True):
            return node
    numeric = value.replace(".", "").isdecimal() or ":" in value
    complete = all(isinstance(f.get("interfaces"), list) for f in facts_by_node.values())
    return "" if numeric and complete and facts_by_node else None


def _addresses(facts: Facts, loopback: bool = False) -> List[str]:
    items = facts.get("interfaces")
    addresses = []
    for item in items if isinstance(items, list) else []:
        if loopback or not item.get("loopback"):
            addresses += [str(a.get("address")) for a in item.get("addresses") or () if a.get("scope") != "link"]
    return addresses


def _port(request: Request, configs: Nodes, spoken: Nodes) -> List[Finding]:
    """The same port on every node, and the one that --master-port names."""
    ports = {n: str(c["main_process_port"]) for n, c in spoken.items() if c.get("main_process_port")}
    groups = by_value(ports)
    if len(groups) > 1:
        usual = next(iter(groups))
        odd = [n for value, nodes in groups.items() if value != usual for n in nodes]
        message = f"main_process_port differs between nodes: {differing(ports)}; it must be the same everywhere"
        return [Finding(_LABEL, "fail", message, f"set main_process_port: {usual}, {_LEAVE_OUT}", place(odd))]
    wanted = whole_number(request.get("master_port"))
    if not wanted or not ports or whole_number(next(iter(groups))) == wanted:
        return []
    nodes = list(ports)
    message = f"{_file(configs, nodes)} says main_process_port: {next(iter(groups))}, and --master-port {wanted}"
    return [Finding(_LABEL, "fail", message, f"set main_process_port: {wanted}, {_LEAVE_OUT}", place(nodes))]


def _machine_rank(configs: Nodes, spoken: Nodes, ranks: Ranks, virtual: bool) -> List[Finding]:
    """Each node's own: its place in the host list."""
    if virtual or ranks.nodes < 2:
        return []
    must = {node: index for index, node in enumerate(ranks.by_node)}
    configured = {
        n: str(c["machine_rank"]) for n, c in spoken.items() if whole_number(c.get("machine_rank")) is not None
    }
    twice = [(value, nodes) for value, nodes in by_value(configured).items() if len(nodes) > 1]
    remedy = "leave machine_rank out: allranks passes each node its own"
    findings = []
    for value, nodes in twice:
        figures = ", ".join(f"{must[n]} on {n}" for n in nodes[:4])
        message = f"machine_rank: {value} stands on {join_names(nodes)}; it must be {figures}"
        findings.append(Finding("rank-missing-or-duplicate", "fail", message, remedy, place(nodes)))
    wrong = [
        n for n, value in configured.items() if int(value) != must[n] and not any(n in nodes for _, nodes in twice)
    ]
    for node in wrong:
        message = (
            f"{_file(configs, [node])} says machine_rank: {configured[node]}; it must be {must[node]}: its place in the"
        )
        findings.append(Finding("rank-missing-or-duplicate", "fail", f"{message} host list", remedy, place([node])))
    return findings


def judge_options(request: Request, ranks: Ranks, facts_by_node: Nodes) -> List[Finding]:
    """What the command itself says: `torchrun --nnodes 4 --nproc_per_node 8 train.py`."""
    launching: Record = request.get("launching") or {}
    options: Record = launching.get("options") or {}
    findings = []
    for option, must, what in (
        *((name, ranks.nodes, "nodes of this run") for name in _NODES),
        *((name, ranks.each, "ranks a node") for name in _EACH),
        ("num_processes", ranks.world, f"all ranks of the run, {ranks}"),
        *((name, whole_number(request.get("master_port")) or None, "the port of --master-port") for name in _PORT),
    ):
        value = whole_number(options.get(option))
        if value is not None and must is not None and value != must:
            message = f"the command says --{option} {value}; it must be {must}: {what}"
            remedy = f"write --{option} {must}, or leave it out: allranks passes it; other figures: --nodes, --nproc"
            findings.append(Finding("world-size-mismatch", "fail", message, remedy))
    for option in ("main_process_ip", "master_addr"):
        whose = _owner(str(options[option]), ranks, facts_by_node) if options.get(option) else None
        if whose and whose != ranks.first:
            message = f"the command says --{option} {options[option]}, which is {whose}'s; it must be {ranks.first}'s"
            findings.append(Finding(_LABEL, "fail", message, f"leave --{option} out: allranks passes it"))
    return findings + _same_rank(launching, options, ranks)


def _same_rank(launching: Record, options: Record, ranks: Ranks) -> List[Finding]:
    """Only where the command is run as it stands (--launcher command)."""
    option = next((name for name in _RANK if whole_number(options.get(name)) is not None), None)
    if option is None or not launching.get("holds") or ranks.nodes < 2:
        return []
    message = f"the command says --{option} {options[option]} on every node; it must be 0 to {ranks.nodes - 1}"
    remedy = f"use --launcher {launching.get('name')}, which gives each node its own"
    return [Finding("rank-missing-or-duplicate", "fail", message, remedy)]


def _file(configs: Nodes, nodes: List[str]) -> str:
    return f"{configs[nodes[0]].get('file')} on {join_names(nodes)}"
