"""--dry-run: the exact commands and environments, without doing anything."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from allranks.agent.binding import bind_ranks
from allranks.agent.node_check import OF_ENVIRONMENT, choose_interpreter
from allranks.agent.rank_start import environment_of
from allranks.cluster import Cluster
from allranks.gang.members import NodeState
from allranks.gang.places import RunContext, place_for, setup_order
from allranks.gang.roles import parts_of
from allranks.gang.session import make_context
from allranks.gang.working_tree import list_tree
from allranks.plan.environment import HandedOver, NodeLaunch
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt, NodePlan
from allranks.preflight.check import Check
from allranks.protocol import node_names as names
from allranks.protocol.codec import document_line, make_document, omit_empty, spread
from allranks.protocol.command_words import read_command
from allranks.protocol.facts import Interpreter
from allranks.protocol.orders import RankOrder, SuiteNodes
from allranks.protocol.plan_facts import NodeFacts
from allranks.protocol.run_facts import WorkingTree
from allranks.settings import RunSpec
from allranks.settings.runspec import SSH, Role
from allranks.settings.secrets import redact_argv, redact_env
from allranks.text import count_of, format_duration

from . import reach_nodes

SYNCED = "<node dir>/tree"
BIND_RULES = {
    "numa": "each rank runs on the CPUs of its GPU's NUMA node, without GPUs of one chosen by its local rank",
    "socket": "each rank runs on the CPUs of its GPU's socket",
    "cores": "ranks share the cores of their GPUs' NUMA node, each has its own",
    "core-complex": "each rank runs on cores of its GPU's NUMA node that share a cache",
}


@dataclasses.dataclass(frozen=True)
class ReachedNode:
    """A node, and the command that reaches it."""

    name: str
    reached_by: list[str]


@omit_empty("role")
@dataclasses.dataclass(frozen=True)
class StartedNode(ReachedNode):
    """A node, and what it would be ordered to start, without secrets."""

    nproc: int
    ranks: tuple[RankOrder, ...]
    role: str = ""


@spread("tree")
class ShippedTree(NamedTuple):
    """What --sync would ship; `to` is where it would lie on a node."""

    tree: WorkingTree
    to: str


@omit_empty("sync", "tests", "spares", "environment", "avoided", "controller")
@dataclasses.dataclass(frozen=True)
class DryRunDocument:
    """What `run --dry-run --json` prints; `tests` are the ranks of the collective tests before the program.

    `environment` names variables of the caller that ranks on other hosts get, and do not get. `controller` is the
    node that decides for the run, where it is not this machine.
    """

    world_size: int
    sync: ShippedTree | None
    nodes: list[StartedNode]
    tests: list[StartedNode]
    spares: list[ReachedNode]
    environment: HandedOver | None
    avoided: tuple[str, ...] = ()
    controller: str = ""


def describe(spec: RunSpec, cluster: Cluster, as_json: bool, controller: str = "") -> str:
    """Return what `run` would do. Words in <> are known only once a node has answered. `controller`: as documented."""
    parts = parts_of(spec, cluster)
    dry_runs = [DryRun(part.spec, part.cluster, part.role, controller) for part in parts]
    if as_json:
        documents = [dry_run.document for dry_run in dry_runs]
        size = sum(one.world_size for one in documents)
        nodes = [node for one in documents for node in one.nodes]
        whole = dataclasses.replace(documents[0], world_size=size, nodes=nodes, controller=controller)
        return json.dumps(make_document(whole))
    return "\n\n".join("\n".join(dry_run.lines()) for dry_run in dry_runs)


class DryRun:
    """What `run` would do. Where tests go before the program, they are an attempt of their own."""

    def __init__(self, spec: RunSpec, cluster: Cluster, role: Role, controller: str = "") -> None:
        run = f"{spec.places.name}-<time>"
        outputs = os.path.join(os.path.abspath(spec.places.runs_dir), run, names.OUTPUTS)
        context = make_context(spec, cluster, os.environ, os.getcwd(), RunContext(run, "<uid>", "", "", outputs), ())
        tree = list_tree(spec, os.getcwd()).tree if spec.launch.sync else None
        self._spec = spec
        self._is_here = not controller
        self._role = role
        self._context = dataclasses.replace(context, tree=tree, role=role)
        self._plan = make_plan(spec, cluster, {})
        self._reached = {node.name: node for node in reached_nodes(spec, cluster)}
        tests: list[StartedNode] = []
        if spec.tests.test:
            tests = self._started(0, SuiteNodes(tuple(node.name for node in cluster.nodes)))
        if spec.launch.command or not tests:
            nodes = self._started(len(tests[:1]), None)
        else:
            nodes = tests
            tests = []
        handed_over = self._context.handed_over
        self.document = DryRunDocument(
            self._plan.world_size,
            ShippedTree(tree, SYNCED) if tree is not None else None,
            nodes=nodes,
            tests=tests,
            spares=[self._reached[node.name] for node in cluster.spares],
            environment=handed_over if handed_over.sentence else None,
            avoided=cluster.avoided,
        )

    def lines(self) -> list[str]:
        """Return what a person reads."""
        document = self.document
        lines = []
        if document.tests:
            lines += [*self._lines_of(document.tests, "collective tests first: "), ""]
        lines += self._lines_of(document.nodes)
        lines += [f"spare {n.name}: {shlex.join(n.reached_by)}   (stands by, without ranks)" for n in document.spares]
        lines += document.avoided
        if document.sync is not None:
            tree = document.sync.tree
            what = f"{count_of(tree.files, 'file')} ({count_of(tree.bytes, 'byte')}) of {tree.root}"
            lines.append(f"would ship {what} to {SYNCED} on each node")
            lines += [f"  left out, a large checkpoint outside of git: {name}" for name in tree.left_out]
        return lines

    def _started(self, number: int, tests: SuiteNodes | None) -> list[StartedNode]:
        """Return what each node would be ordered to start in an attempt, made as `run` makes it."""
        rendezvous = self._spec.rendezvous
        address = rendezvous.master_addr or "<checked address>"
        port = rendezvous.master_port or "<free port>"
        attempt = Attempt(number, address, port, repeats=number, tests=tests)
        return [self._started_node(planned, attempt) for planned in self._plan.nodes]

    def _started_node(self, planned: NodePlan, attempt: Attempt) -> StartedNode:
        node = planned.node
        # Its environment is this process's.
        is_known = self._is_here and node.is_local and self._spec.launch.prelude is None
        state = NodeState(node.name, node.index, node_dir="<node dir>")
        place = place_for(self._spec, self._context, state, self._chosen_later(is_known))
        facts = NodeFacts(interpreter=self._interpreter(os.getcwd()) if is_known else self._interpreter_there())
        order = orders(NodeLaunch(self._spec, self._plan.world_size, planned, place, attempt, facts))
        started: Iterable[RankOrder] = order.ranks
        if is_known and names.BIND in order.ranks[0].env:
            started = bind_ranks(order.ranks, os.environ)[0]
        if is_known:
            started = map(_as_started, started)
        ranks = tuple(rank._replace(argv=tuple(redact_argv(rank.argv)), env=redact_env(rank.env)) for rank in started)
        reached_by = self._reached[node.name].reached_by
        return StartedNode(node.name, reached_by, planned.nproc, ranks, self._role.name)

    def _interpreter_there(self) -> Interpreter:
        """Return what is known of the training interpreter of a node that was not asked: the user's own word."""
        python = self._spec.launch.python
        if python is not None:
            return Interpreter("", "--python", python)
        return self._environment_here()

    def _environment_here(self) -> Interpreter:
        """Return the interpreter of the caller's environment: nodes take it where they have it.

        Empty where the command or --python names one, or the prelude may.
        """
        interpreter = self._interpreter("/")
        is_of_environment = interpreter.how.partition(":")[0] in OF_ENVIRONMENT
        if self._spec.launch.prelude is not None or not is_of_environment:
            return Interpreter()
        return interpreter

    def _interpreter(self, workdir: str) -> Interpreter:
        """Return the training interpreter that an agent here would find, by its own rules."""
        order = setup_order(self._spec, self._context)
        program = read_command(order.command, order.kind)
        path, how = choose_interpreter(order, program, order.workdir or workdir, os.environ)
        return Interpreter(program.kind, how, path or "")

    def _chosen_later(self, is_known: bool) -> dict[str, str]:
        """Return variables whose values are chosen later: of the network by the rendezvous check, CPUs by the node."""
        later = {}
        if self._spec.launch.bind != "none" and not is_known:
            later[names.CPUS] = "<cpus>"
        name = "GLOO_SOCKET_IFNAME"
        if name in self._spec.launch.env or name in self._context.forwarded or (is_known and name in os.environ):
            return later
        return {**later, name: "<interface>"}

    def _lines_of(self, nodes: Sequence[StartedNode], head: str = "") -> list[str]:
        launch = self._spec.launch
        what = f"{head}{count_of(self._plan.world_size, 'rank')} on {count_of(len(nodes), 'node')}"
        lines = [f"would start {what} (launcher {launch.launcher}), and nothing was done"]
        if self._role.name:
            lines = [f"role {self._role.name}: {lines[0]}", *_terms_of(self._role)]
        for node in nodes:
            lines += ["", *_node_lines(node)]
        if "PATH" not in launch.env and launch.launcher == "direct":
            lines += ["", "PATH begins with the directory of the training interpreter, as after `activate`"]
        if launch.bind != "none":
            lines += ["", f"--bind {launch.bind}: {BIND_RULES[launch.bind]}, of the CPUs that the node's agent may use"]
        if launch.reach != SSH and self._spec.target.hosts:
            where = "this machine" if self._is_here else "the controller's host"
            lines += ["", f"--reach {launch.reach}: ssh ends once a node has dialled {where}. One that cannot keeps it"]
        interpreter = self._environment_here()
        if interpreter.path and self._spec.target.hosts:
            lines += ["", f"{interpreter.path} is taken where a node has it ({interpreter.how}), else its python3"]
        if self._context.handed_over.sentence:
            lines += ["", f"variables {self._context.handed_over.sentence}"]
        ranks = "Without --nproc a node with GPUs starts a rank for each. " if launch.nproc is None else ""
        return [*lines, "", f"{ranks}Addresses and ports are chosen and checked before ranks start"]


def _terms_of(role: Role) -> list[str]:
    meaning = {"run": "its success ends the run", "never": "its end is a failure", "any": "its success means nothing"}
    terms = [f"after {', '.join(role.after)}" if role.after else "at once"]
    if role.ready:
        terms.append(f"ready once {role.ready} is, within {format_duration(role.ready_timeout)}")
    terms.append(meaning[role.ends])
    if role.on_failure != "end":
        terms.append(f"on_failure {role.on_failure}")
    return [f"  it starts {', '.join(terms)}"]


def reached_nodes(spec: RunSpec, cluster: Cluster) -> list[ReachedNode]:
    """Return how this process would reach each node of a target, the spares last."""
    described = reach_nodes(spec, cluster).transport.described
    return [ReachedNode(node.name, described(node)) for node in cluster.everyone]


def _as_started(rank: RankOrder) -> RankOrder:
    """Return a rank with the variables that it would get from this process's environment below the order."""
    base = dict(os.environ)
    environment = environment_of(rank, base)
    shown = {name: environment[name] for name in rank.env}
    if environment["PATH"] != base.get("PATH"):
        shown["PATH"] = environment["PATH"]
    return rank._replace(env=shown)


def _node_lines(node: StartedNode) -> list[str]:
    lines = [f"{node.name}: {shlex.join(node.reached_by)}"]
    for rank in node.ranks:
        lines.append(f"  rank {rank.rank}: cd {shlex.quote(rank.workdir)} && {shlex.join(rank.argv)}")
    common = set.intersection(*(set(rank.env.items()) for rank in node.ranks))
    lines += [f"    {name}={shlex.quote(value)}" for name, value in sorted(common)]
    for rank in node.ranks:
        rank_only = [f"{name}={shlex.quote(value)}" for name, value in rank.env.items() if (name, value) not in common]
        if rank_only:
            lines.append(f"  rank {rank.rank}: {' '.join(rank_only)}")
    return lines


class ListedCheck(NamedTuple):
    """A check as it is listed: its id, its group, quick or full, and what holds where it passes."""

    id: str
    group: str
    level: str
    passes: str


@dataclasses.dataclass(frozen=True)
class CheckList:
    """What `check --list --json` prints."""

    checks: list[ListedCheck]


@dataclasses.dataclass(frozen=True)
class CheckPlan(CheckList):
    """What `check --dry-run --json` prints."""

    nodes: list[ReachedNode]


def list_checks(checks: Iterable[Check]) -> list[ListedCheck]:
    """List checks for a document."""
    return [ListedCheck(check.name, check.group, check.level, check.title) for check in checks]


def describe_checks(checks: Iterable[Check], as_json: bool) -> str:
    """Return the list that `check --list` prints: a line a check, those of a group together."""
    if as_json:
        return document_line(CheckList(list_checks(checks)))
    return "\n".join(_check_lines(checks))


def _check_lines(checks: Iterable[Check]) -> list[str]:
    listed = list_checks(checks)
    width = max((len(check.id) for check in listed), default=0)
    return [f"{check.id:<{width}}  {check.level:<5}  {check.passes}" for check in listed]


def describe_check(spec: RunSpec, cluster: Cluster, checks: Sequence[Check], as_json: bool) -> str:
    """Return what `check` would do: how each node is reached, and what would be looked at there."""
    nodes = reached_nodes(spec, cluster)
    if as_json:
        return document_line(CheckPlan(list_checks(checks), nodes))
    lines = [f"would make {count_of(len(checks), 'check')} on {count_of(len(nodes), 'node')}, and nothing was done"]
    lines += [f"  {node.name}: {shlex.join(node.reached_by)}" for node in nodes]
    return "\n".join([*lines, *(f"  {line}" for line in _check_lines(checks))])
