"""Plan: which ranks run on which node, with which argv and environment.

`make_plan` needs the facts of every node (slots, interpreter); `orders` needs the attempt's address.
What it returns is what an agent executes and what --dry-run prints.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from allranks.cluster import Cluster, Node
from allranks.errors import UsageError
from allranks.protocol.command_words import read_command
from allranks.protocol.node_names import ERROR_FILE
from allranks.protocol.orders import FollowedFile, PreloadOrder, RankOrder, StartOrder, StartTerms
from allranks.protocol.plan_facts import NodeFacts, gpu_count
from allranks.protocol.processes import ImportRecord
from allranks.settings import RunSpec
from allranks.settings.command_line import fill
from allranks.settings.ray import RAY
from allranks.settings.roles import fill_roles
from allranks.settings.tools import node_rank_in, read_tool

from .environment import NodeLaunch, PlannedProcess, rank_environment, weak_names
from .launchers import LAUNCHERS, OF_RAY, collectives
from .launchers.training_command import ranks_asked_for
from .ranks import NodePlan, Plan

Launcher = Callable[[NodeLaunch], Iterable[PlannedProcess]]


def make_plan(spec: RunSpec, cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Plan:
    """Fix the number of ranks a node: --nproc, slots, the command's own, visible devices, GPUs listed, else 1."""
    if len(cluster) > 1 and spec.launch.launcher == "command":
        _refuse_one_rank_for_all(spec)
    nodes = []
    first = 0
    shared_by = len(cluster) if spec.target.local else 1
    for rank, node in enumerate(cluster.nodes):
        count, _ = ranks_of(spec, node, facts.get(node.name, NodeFacts()), len(cluster), shared_by)
        nodes.append(NodePlan(node, count, first, len(cluster), rank))
        first += count
    return Plan(tuple(nodes))


def _refuse_one_rank_for_all(spec: RunSpec) -> None:
    """Raise UsageError for a node's number that stands in a command of several nodes: each would be that node.

    Of the launchers that we know, the check of their options says it.
    """
    words = node_rank_in(spec.launch.command)
    if not words or read_tool(spec.launch.command) is not None:
        return
    line = shlex.join(spec.launch.command).replace(shlex.join(words), f"{words[0].partition('=')[0]} $NODE_RANK", 1)
    raise UsageError(
        f"{shlex.join(words)} would be the number of every node\nhint: --launcher command bash -c {shlex.quote(line)}"
    )


def ranks_of(
    spec: RunSpec, node: Node, facts: NodeFacts, nodes: int | None = None, shared_by: int = 1
) -> tuple[int, str]:
    """How many ranks a node runs, and what says so; `shared_by` virtual nodes have one machine's GPUs."""
    if spec.launch.nproc is not None:
        return spec.launch.nproc, "--nproc"
    if node.slots is not None:
        return node.slots, "slots in the host list"
    asked_for = ranks_asked_for(spec, nodes)
    if asked_for is not None:
        return asked_for, "the command's own option"
    count = gpu_count(facts) // shared_by
    if count and facts.gpus is not None:
        return count, facts.gpus.source or "GPUs found"
    is_collective_test = spec.tests.test == "full" and spec.tests.suite != "pairs"
    return 2 if is_collective_test else 1, "no GPU found"


def room_on(node: Node, facts: NodeFacts) -> int | None:
    """How many ranks a node can take, by its slots, else its GPUs; None where nothing says so."""
    if node.slots is not None:
        return node.slots
    return gpu_count(facts) or None


def orders(launch: NodeLaunch) -> StartOrder:
    """Make the order to start for one node's agent."""
    launch = _filled(launch)
    return StartOrder(
        attempt=launch.attempt.number,
        ranks=tuple(_rank_order(launch, process) for process in _launcher_of(launch)(launch)),
        make=(launch.place.output_dir,),
        follow=_followed(launch),
        terms=terms(launch),
        template=keeps_template(launch),
        preload=preload_of(launch),
    )


def preload_order(launch: NodeLaunch, imports: ImportRecord | None = None) -> PreloadOrder:
    """Have a node import what its ranks will need; the master and the interfaces need not be known."""
    launch = _filled(launch)
    first = _rank_order(launch, next(iter(_launcher_of(launch)(launch))))
    return PreloadOrder(launch.attempt.number, first, preload_of(launch), imports, terms(launch))


def _launcher_of(launch: NodeLaunch) -> Launcher:
    if launch.attempt.tests:
        return collectives
    return {**LAUNCHERS, **OF_RAY}[launch.spec.launch.launcher]


def _rank_order(launch: NodeLaunch, process: PlannedProcess) -> RankOrder:
    spec = launch.spec
    place = launch.place
    environment = rank_environment(launch, process)
    if process.per_rank:
        error_files: tuple[str, ...] = (environment[ERROR_FILE],)
    else:
        error_files = tuple(place.files.error(rank, launch.attempt.number) for rank in launch.node.ranks)
    wrap = shlex.split(spec.launch.wrap) if spec.launch.wrap else []
    return RankOrder(
        rank=process.rank,
        local_rank=process.local_rank,
        argv=(*wrap, *process.argv),
        env={**environment, **process.env},
        weak=tuple(weak_names(spec, place)),
        path_first=_programs_beside(launch, process.argv),
        workdir=place.workdir,
        files=dict(process.files),
        error_files=error_files,
        starts_ranks=not process.per_rank and spec.launch.launcher not in ("command", *OF_RAY),
    )


def preload_of(launch: NodeLaunch) -> str:
    """Return --preload, as far as nothing that was asked for forbids it."""
    if launch.attempt.tests or forbids_template(launch.spec):
        return "never"
    return launch.spec.recovery.preload


def keeps_template(launch: NodeLaunch) -> bool:
    """Tell whether a node keeps a process that imports for the next attempt."""
    attempt = launch.attempt
    has_retry_left = attempt.number - attempt.repeats < launch.spec.recovery.retries
    may_follow = has_retry_left or launch.spec.target.min_nodes is not None
    return may_follow and preload_of(launch) != "never"


def forbids_template(spec: RunSpec) -> bool:
    """Tell whether something that was asked for forbids that ranks are forked from one that has imported."""
    launch = spec.launch
    if launch.launcher != "direct" or launch.wrap or launch.prelude or spec.recovery.audit_data:
        return True
    return read_command(launch.command).kind not in ("python-script", "python-module")


def _filled(launch: NodeLaunch) -> NodeLaunch:
    place = launch.place
    values = {"run": place.run, "output_dir": place.output_dir, "attempt": str(launch.attempt.number)}
    command = tuple(fill_roles(word, place.peers) for word in fill(launch.spec.launch.command, values))
    if command == launch.spec.launch.command:
        return launch
    return replace(launch, spec=launch.spec.changed(command=command))


def _programs_beside(launch: NodeLaunch, argv: tuple[str, ...]) -> str | None:
    """Where the training interpreter's own programs lie (torchrun, ninja), first on PATH as after `activate`; None
    where the user sets PATH, or where another program is started and no --python was asked for."""
    if "PATH" in launch.spec.launch.env:
        return None
    directory, _, name = argv[0].rpartition("/")
    is_named = launch.spec.launch.python is not None or launch.spec.launch.launcher in OF_RAY
    if not name.startswith("python") and is_named:
        directory = launch.facts.interpreter.path.rpartition("/")[0]
    elif not name.startswith("python"):
        return None
    return directory if directory.startswith("/") else None


def terms(launch: NodeLaunch) -> StartTerms:
    """Say what a joined node needs to make its own order to start from its own spec: see `plan.own_orders`."""
    node = launch.node
    attempt = launch.attempt
    place = launch.place
    return StartTerms(
        world_size=launch.world_size,
        index_=node.rank,
        of=node.of,
        first_rank=node.first_rank,
        nproc=node.nproc,
        attempt=attempt.number,
        repeats=attempt.repeats,
        master_addr=attempt.master_addr,
        master_port=attempt.master_port,
        run=place.run,
        run_tag=place.run_tag,
        node_dir=place.node_dir,
        interfaces=place.interfaces,
        tests=attempt.tests,
        peers=place.peers,
    )


def _followed(launch: NodeLaunch) -> tuple[FollowedFile, ...]:
    place = launch.place
    files = place.files
    attempt = launch.attempt
    followed = [FollowedFile("ras", 0, files.ras)]
    if launch.spec.launch.launcher == RAY:
        followed.append(FollowedFile("ray", launch.node.first_rank, files.ray_log(attempt.number)))
    for rank in launch.node.ranks:
        paths = {
            "metrics": f"{place.output_dir}/rank_{rank:02d}_metrics.jsonl",
            "nccl": files.nccl_log(rank, attempt.number),
            "stacks": files.stacks(rank),
            "flight": files.flight(rank),
            "dump": files.torch_dump(rank, attempt.number),
        }
        if launch.spec.recovery.audit_data and not attempt.tests:
            paths["audit"] = files.audit(rank, attempt.number)
        followed += [FollowedFile(kind, rank, path) for kind, path in paths.items()]
    return tuple(followed)
