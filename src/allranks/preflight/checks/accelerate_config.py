"""The figures of an accelerate configuration, and of a launcher's own options, fit the cluster.

allranks passes them itself, so a file without them is best. One that says something else was made for other nodes.
Names: accelerate/commands/config/config_args.py (ClusterConfig), torch/distributed/run.py.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Findings, Nodes, alike, by_value, collected, differing, fail, having, those, values_of
from ..host import Host
from ..launcher_config import MISSING, RankCounts, Table, absent, read_table, whole_number
from ..typed_facts import Facts, Launching, Request

ID = "accelerate_config"
GROUP = "software"
LEVEL = "quick"
_LABEL = "accelerate-config"
_RANK_LABEL = "rank-missing-or-duplicate"
_NODES = ("num_machines", "nnodes", "num_nodes")
_EACH = ("nproc_per_node", "num_gpus", "num_accelerators")
COUNTS = (*_EACH, "num_processes")  # known only with the number of ranks of each node
_PORT = ("master_port", "main_process_port")
_RANK = ("machine_rank", "node_rank")
# accelerate/commands/launch.py copies these from `deepspeed_config:` to its options; utils/launch.py
# (prepare_deepspeed_cmd_env) and utils/dataclasses.py (DeepSpeedPlugin) read nothing else of it.
READ_OF_DEEPSPEED = frozenset(
    {
        *("deepspeed_config_file", "deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"),
        *("deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names", "zero_stage", "zero3_init_flag"),
        *("zero3_save_16bit_model", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device"),
        *("offload_param_device", "offload_optimizer_nvme_path", "offload_param_nvme_path"),
    }
)
_LEAVE_OUT = "or leave it out: allranks passes it to every node"


def collect(host: Host) -> Optional[Table]:
    """Read the configuration that `accelerate launch` would read on this node; None where it reads none."""
    path = host.request.asked.launching.accelerate
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


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail with the figure that it must be: accelerate-config, world-size-mismatch, rank-missing-or-duplicate."""
    launching = request.asked.launching
    ranks = RankCounts(request, facts_by_node)
    files = Files(collected(facts_by_node, ID, Table), ranks, facts_by_node, launching)
    for finding in files.judge(request):
        if launching.accelerate:
            yield finding
        else:  # the default file: nothing says that it is for this run
            yield finding._replace(status="warn")
    yield from judge_options(request, ranks, facts_by_node)


class Files:
    """The configurations by node, against the ranks that the run would have.

    An option of the command overrides the file's key, as accelerate has it.
    """

    def __init__(
        self, tables: Mapping[str, Table], ranks: RankCounts, facts_by_node: Nodes, launching: Launching
    ) -> None:
        self._overridden = {} if launching.holds else launching.options
        self._holds = launching.holds
        self.tables = tables
        self.ranks = ranks
        self.facts_by_node = facts_by_node

    def judge(self, request: Request) -> Findings:
        """All figures of the files."""
        if self.tables:
            yield from absent(self.tables, next(iter(self.tables.values()))["file"])
        yield from self._count("num_machines", self.ranks.nodes, "the nodes of this run")
        yield from self._count("num_processes", self.ranks.world, f"all ranks of the run, {self.ranks}")
        yield from self._master_ip()
        yield from self._port(whole_number(str(request.asked.master_port)))
        if not request.asked.virtual and self.ranks.nodes > 1:
            yield from self._machine_rank()
        yield from self._unread()

    def _unread(self) -> Findings:
        for keys, nodes in alike(self.tables, _unread_keys).items():
            message = f"{self.tables[nodes[0]]['file']} on {join_names(nodes)} has {keys} below deepspeed_config, "
            message += "where accelerate does not read it and it has no effect"
            remedy = "write DeepSpeed's own keys into a JSON file and name that as deepspeed_config_file:, or use "
            remedy += "accelerate's keys there (zero_stage, gradient_accumulation_steps, offload_optimizer_device)"
            yield fail(_LABEL, nodes, message, remedy)._replace(status="warn")

    def _values(self, key: str) -> "dict[str, str]":
        if key in self._overridden:
            return {}
        return having(self.tables, lambda table: table.get(key))

    def _numbers(self, key: str) -> "dict[str, int]":
        numbers = values_of(self._values(key), whole_number)
        return {node: number for node, number in numbers.items() if number is not None}

    def _wrong(self, label: str, nodes: Sequence[str], wrong: str, must: str, remedy: str) -> Finding:
        message = f"{self.tables[nodes[0]]['file']} on {join_names(nodes)} says {wrong}, and it must be {must}"
        return fail(label, nodes, message, remedy)

    def _count(self, key: str, must: int, why: str) -> Findings:
        wrong = those(self._numbers(key), lambda number: number not in (-1, must))
        for number, nodes in by_value(wrong).items():
            of_one = " (of one node)" if key == "num_processes" and number == self.ranks.each else ""
            remedy = f"set {key}: {must}, {_LEAVE_OUT}"
            yield self._wrong(_LABEL, nodes, f"{key}: {number}{of_one}", f"{must} ({why})", remedy)

    def _master_ip(self) -> Findings:
        key = "main_process_ip"
        first = self.ranks.first
        for value, nodes in by_value(self._values(key)).items():
            owner = _owner(value, self.facts_by_node)
            if owner == first or owner is None:
                continue
            addresses = addresses_of(self.facts_by_node.get(first, Facts()))
            whose = f"is {owner}'s" if owner else "no node of this run has"
            must = f"node 0's ({first} has {', '.join(addresses[:3]) or 'its name'})"
            remedy = f"set {key}: {[*addresses, first][0]}, {_LEAVE_OUT}"
            yield self._wrong(_LABEL, nodes, f"{key}: {value}, which {whose}", must, remedy)

    def _port(self, wanted: Optional[int]) -> Findings:
        """Judge main_process_port: the same on every node, and the one that --master-port names."""
        key = "main_process_port"
        ports = self._values(key)
        groups = by_value(ports)
        usual = next(iter(groups), "")
        if len(groups) > 1:
            odd = [node for node, port in ports.items() if port != usual]
            message = f"{key} differs between nodes, and it must be the same everywhere: {differing(ports)}"
            yield fail(_LABEL, odd, message, f"set {key}: {usual}, {_LEAVE_OUT}")
        elif wanted and usual and whole_number(usual) != wanted:
            must = f"that of --master-port ({wanted})"
            yield self._wrong(_LABEL, list(ports), f"{key}: {usual}", must, f"set {key}: {wanted}, {_LEAVE_OUT}")

    def _machine_rank(self) -> Findings:
        """Each node's own: its place in the host list. The same on every node is a file that was copied."""
        must = {node: index for index, node in enumerate(self.ranks.by_node)}
        groups = by_value(self._numbers("machine_rank"))
        if not self._holds and list(map(len, groups.values())) == [len(must)]:
            return
        remedy = "leave machine_rank out: allranks passes each node its own"
        for rank, nodes in groups.items():
            if len(nodes) > 1:
                figures = ", ".join(f"{must[node]} on {node}" for node in nodes[:4])
                message = f"machine_rank is {rank} on {join_names(nodes)}, and it must be {figures}"
                yield fail(_RANK_LABEL, nodes, message, remedy)
            elif rank != must[nodes[0]]:
                place = f"{must[nodes[0]]} (its place in the host list)"
                yield self._wrong(_RANK_LABEL, nodes, f"machine_rank: {rank}", place, remedy)


def _unread_keys(table: Table) -> str:
    below = {key.split(".")[1] for key in table if key.startswith("deepspeed_config.")}
    return ", ".join(sorted(below - READ_OF_DEEPSPEED))


def _owner(value: str, facts_by_node: Nodes) -> Optional[str]:
    for node, facts in facts_by_node.items():
        hostname = facts.hostname or node
        if value in (node, hostname, hostname.partition(".")[0], *addresses_of(facts, loopback=True)):
            return node
    is_numeric = value.replace(".", "").isdecimal() or ":" in value
    is_complete = all(isinstance(facts.get("interfaces"), list) for facts in facts_by_node.values())
    if is_numeric and is_complete and facts_by_node:
        return ""
    return None


def addresses_of(facts: Facts, loopback: bool = False) -> List[str]:
    """List a node's addresses, without link-local ones."""
    every = [(one, address) for one, address in facts.addresses if address.scope != "link"]
    return [address.address for one, address in every if loopback or not one.loopback]


def judge_options(request: Request, ranks: RankCounts, facts_by_node: Nodes) -> Findings:
    """Judge what the command itself says: `torchrun --nnodes 4 --nproc_per_node 8 train.py`."""
    launching = request.asked.launching
    options = launching.options
    numbers = {name: whole_number(value) for name, value in options.items()}
    for names, must, what in (
        (_NODES, ranks.nodes, "nodes of this run"),
        (_EACH, ranks.each, "ranks a node"),
        (("num_processes",), ranks.world, f"all ranks of the run, {ranks}"),
        (_PORT, request.asked.master_port or None, "the port of --master-port"),
    ):
        for name in names:
            if names is _NODES and numbers.get(name) == 1 and not launching.holds:
                continue  # of a command for one machine: the nodes become the run's
            if None not in (numbers.get(name), must) and numbers[name] != must:
                message = f"the command says --{name} {numbers[name]}, and it must be {must} ({what})"
                remedy = f"write --{name} {must}, or leave it out, as allranks passes it."
                remedy += " To change it, use --nodes and --nproc"
                yield Finding("world-size-mismatch", "fail", message, remedy)
    for name in ("main_process_ip", "master_addr"):
        value = options.get(name) or ""
        owner = value and _owner(value, facts_by_node)
        if owner and owner != ranks.first:
            message = f"the command says --{name} {value}, which is {owner}'s, and it must be {ranks.first}'s"
            yield Finding(_LABEL, "fail", message, f"leave --{name} out: allranks passes it")
    for name in _RANK:  # only where the command is run as it stands (--launcher command)
        if numbers.get(name) is not None and launching.holds and ranks.nodes > 1:
            message = f"the command says --{name} {options[name]} on every node, and it must be 0 to {ranks.nodes - 1}"
            remedy = f"use --launcher {launching.name}, which gives each node its own"
            yield Finding(_RANK_LABEL, "fail", message, remedy)
            break
