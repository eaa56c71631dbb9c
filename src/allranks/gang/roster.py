"""Roster: what a gang knows of its nodes, ranks and failures; every phase reads it and writes its part. Pure.

Times by the clock of the limits (never set) are called `…_at`, unix seconds `…_t`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from allranks.cluster import Cluster, Node
from allranks.diagnose.recorded import own_addresses
from allranks.diagnose.words import short
from allranks.findings import Finding, Logins, Verdict, typed_here
from allranks.plan.ranks import NodePlan, Plan
from allranks.preflight.judge import judge
from allranks.protocol.messages import ExitMessage, FaultMessage
from allranks.protocol.orders import ShipOrder
from allranks.protocol.plan_facts import NodeFacts, outer_addresses
from allranks.protocol.run_facts import Fact, NodeLost, Stamped
from allranks.settings import RunSpec
from allranks.settings.tools import is_one_process

from .members import NodeState, RankState
from .places import RunContext, collectors, collectors_on, judge_request, setup_order
from .states import Send, State

Kind = TypeVar("Kind")
LONGEST_VERDICT = 500  # characters of the sentence that the ranks of the next attempt get
UNUSABLE_AFTER = (
    "agent-death",
    "supervisor-lost",
    "lease-over",
)  # faults after which nothing would watch over ranks there


class Roster:
    """State and simple questions; the phases add what to do about events."""

    def __init__(self, spec: RunSpec, cluster: Cluster, context: RunContext, now: float, t: float) -> None:
        """`now` and `t` as in `Gang.handle`."""
        self.spec = spec
        self.cluster = cluster
        self.context = context
        self.role = context.role
        self.may_start = context.role.is_plain  # else other roles come first
        self.addresses: dict[str, str] = {}  # of the nodes, on the network of the master's
        self.ports: tuple[int, ...] = ()  # those that `context.ports` names
        self.state = State.GATHERING
        self.nodes = {n.name: NodeState(n.name, n.index) for n in cluster.nodes}  # in the order of their ranks
        self.spares = {n.name: NodeState(n.name, n.index) for n in cluster.spares}
        self.retired: dict[str, NodeState] = {}  # others have taken their places
        self.plan: Plan | None = None
        self.master_addr = ""
        self.master_port = 0
        self.stop_reason: str | None = None
        self.is_adopted = False
        self.testing = bool(spec.tests.test)  # the present attempt runs the collective tests
        self.started = t
        self.began_at = now
        self.event_t = t  # of the event in hand
        self.attempt = 0
        self.last_verdict = ""  # of the attempt before, in a sentence
        self.former_world_size = 0  # of the attempt before, where it came to a plan
        self.findings: list[Finding] = []
        self.failed_to_reach = False  # a node, at any time
        self._witnesses: dict[str, NodeState] = {}  # by question: of which node it held when it was last asked
        self.begin_attempt(now)

    def begin_attempt(self, now: float, pause: float = 0.0) -> None:
        """Know nothing of an attempt that begins, but for nodes; nothing is tried for `pause` seconds."""
        self.former_world_size = self.world_size
        self.findings = [f for f in self.findings if f.lasts]
        self.attempt_at = now
        self.resume_at = now + pause if pause else 0.0
        self.start_at = now + pause  # from when the time for the start counts
        self.last_sign_at = now
        self.exits: list[Stamped[ExitMessage]] = []
        self.faults: list[Stamped[FaultMessage]] = []
        self.lost: list[Stamped[NodeLost]] = []
        self.init_timeout_hit = False
        self.refused_by_check = False
        self.initialised_t: float | None = None
        self.group_limit: float | None = None  # seconds after which a process group gives up a collective
        self.failed_t: float | None = None
        self.failed_at: float | None = None

    def remember_verdict(self, verdict: Verdict) -> None:
        """Keep a failed attempt's verdict in a sentence, for the ranks of the next."""
        self.last_verdict = short(verdict.finding.message, LONGEST_VERDICT)

    def note_limit(self, limit: float | None) -> None:
        """Keep the shortest limit of the ranks' process groups, in seconds."""
        if limit:
            self.group_limit = min(limit, self.group_limit or limit)

    def take_launch(self, spec: RunSpec, context: RunContext) -> None:
        """Know of a run that was taken over what its ranks were started with. Nodes that had the tree still have it."""
        self.spec = spec
        self.context = context
        for node in (*self.nodes.values(), *self.spares.values()):
            node.synced = context.tree is not None

    @property
    def logins(self) -> Logins:
        """How someone here gets a command onto a node."""
        return self.cluster.logins._replace(is_slurm=self.spec.target.slurm)

    def rename(self, old: str, new: str) -> None:
        """Give a node that the list knows by address its own name, in every output from now on."""
        node = self.state_of(old)
        node.name = new
        node.address = old
        self.nodes = _with_new_key(self.nodes, old, new)
        self.spares = _with_new_key(self.spares, old, new)
        cluster = self.cluster
        nodes, spares = _renamed(cluster.nodes, old, new), _renamed(cluster.spares, old, new)
        self.cluster = dataclasses.replace(cluster, nodes=nodes, spares=spares)

    def adopt_owned(self, node: NodeState, ranks: Iterable[int]) -> list[int]:
        """Let a node own ranks that its agent has, of a run that was taken over; return them, without others' ranks."""
        taken = {rank for other in self.nodes.values() if other is not node for rank in other.owned}
        numbers = sorted({*ranks} - taken)
        node.owned.update(numbers)
        return numbers

    def set_places(self, names: Collection[str]) -> None:
        """Give these nodes places, in the order of the list; all others stand by or are away."""
        entries = sorted(self.cluster.everyone, key=lambda entry: entry.index)
        states = {**self.spares, **self.nodes}
        nodes = tuple(entry for entry in entries if entry.name in names)
        spares = tuple(entry for entry in entries if entry.name not in names)
        self.cluster = Cluster(nodes, self.cluster.source, spares)
        self.nodes = {entry.name: states[entry.name] for entry in nodes}
        self.spares = {entry.name: states[entry.name] for entry in spares}

    def exchange(self, old: str, node: NodeState) -> None:
        """Put a node into the place of another: its place in `nodes` is its node rank."""
        places = [node if name == old else present for name, present in self.nodes.items()]
        self.nodes = {present.name: present for present in places}

    # -- facts ---------------------------------------------------------------------------------------

    def stamp(self, fact: Kind, node: str = "", t: float | None = None) -> Stamped[Kind]:
        """Stamp what was decided or has happened: on which node, and when where that was not just now."""
        return Stamped(node, self.event_t if t is None else t, self.attempt, fact)

    # -- findings and faults -------------------------------------------------------------------------

    def add_finding(self, finding: Finding) -> Stamped[Fact]:
        """Keep a finding; its event."""
        kept = typed_here(finding, self.logins)
        self.findings.append(kept)
        return self.stamp(kept)

    def add_lasting(self, finding: Finding) -> list[Stamped[Fact]]:
        """Keep a finding that holds to the end of the run, and is said again after each broken connection: once."""
        is_known = any(f.lasts and (f.id, f.where) == (finding.id, finding.where) for f in self.findings)
        return [] if is_known else [self.add_finding(finding)]

    @property
    def warnings(self) -> dict[str, tuple[str, ...]]:
        """What lastingly ails each node."""
        by_node: dict[str, tuple[str, ...]] = {}
        for finding in self.findings:
            if finding.lasts and finding.where.node:
                by_node[finding.where.node] = (*by_node.get(finding.where.node, ()), finding.message)
        return by_node

    def add_passing(self, findings: Sequence[Finding]) -> list[Stamped[Fact]]:
        """Keep the warnings among findings; the events of all that forbid nothing."""
        self.findings += [f for f in findings if f.status == "warn"]
        return [self.stamp(f) for f in findings if f.status != "fail"]

    def add_in_order(self, finding: Finding) -> Stamped[Fact]:
        """Keep a finding of a node in the order of the host list, whichever node failed first."""
        note = self.add_finding(finding)
        self.findings.sort(key=self._index_of)
        return note

    def _index_of(self, finding: Finding) -> int:
        node = self.nodes.get(finding.where.node or "")
        if node is None:
            return -1
        return node.index

    def add_fault(self, fault: Stamped[FaultMessage]) -> Stamped[Fact]:
        """Keep a fault, and give it back for the log."""
        self.faults.append(fault)
        return fault

    # -- questions -----------------------------------------------------------------------------------

    @property
    def everyone(self) -> dict[str, NodeState]:
        """The nodes with the hot spares and those that were replaced."""
        return {**self.retired, **self.nodes, **self.spares}

    def state_of(self, name: str) -> NodeState:
        """One of `everyone`, which is not put together for it: each frame asks."""
        return self.spares.get(name) or self.nodes.get(name) or self.retired[name]

    @property
    def master(self) -> NodeState:
        """The first node."""
        return self.nodes[self.cluster.master.name]

    @property
    def may_change(self) -> bool:
        """Whether the number of nodes may change."""
        return self.spec.target.min_nodes is not None

    @property
    def most_nodes(self) -> int:
        """How many nodes find a place."""
        return self.spec.target.nodes or len(self.nodes) + len(self.spares)

    @property
    def has_all_facts(self) -> bool:
        """Whether every node has been looked at."""
        return not self.any_node("facts", lambda node: node.facts is None)

    def any_node(self, question: str, holds: Callable[[NodeState], bool]) -> bool:
        """Tell whether something holds of a node.

        Each fact of each node asks, and nodes answer roughly in their order: the last of which it holds is found once,
        and asked first from then on.
        """
        witness = self._witnesses.get(question)
        if witness is not None and self.nodes.get(witness.name) is witness and holds(witness):
            return True
        found = next((node for node in reversed(self.nodes.values()) if holds(node)), None)
        if found is None:
            self._witnesses.pop(question, None)
            return False
        self._witnesses[question] = found
        return True

    def first_order(self, node: NodeState) -> Send:
        """Make an agent's first order: to take the tree (it says how much has arrived), else to look at the node."""
        tree = self.context.tree
        if tree is not None and not node.synced:
            return Send(node.name, ShipOrder(tree.sha256, tree.packed, tree.bytes, tree.files))
        order = setup_order(self.spec, self.context, node.node_dir)
        return Send(node.name, order._replace(checks=collectors_on(self.spec, self.context, node.index)))

    def judge(self, nodes: Iterable[NodeState]) -> list[Finding]:
        """Judge what was found on nodes."""
        facts = {node.name: dict(node.facts or {}) for node in nodes}
        request = judge_request(self.spec, self.context, self.cluster)
        return judge(request, facts, self.context.checks, self.spec.preflight.allow)

    def share_checks(self) -> list[Stamped[Fact]]:
        """Give every virtual node what the checks of the first have seen of their one machine; what is to be kept."""
        first = next((node for node in self.everyone.values() if node.index == self.context.first), None)
        if not self.spec.target.local or first is None or first.facts is None:
            return []
        seen = {name: first.facts[name] for name in collectors(self.context.checks) if name in first.facts}
        changed: list[Stamped[Fact]] = []
        for node in self.everyone.values():
            if node.facts is not None and not seen.keys() <= node.facts.keys():
                kept = node.take_facts({**seen, **node.facts})
                if kept.deepspeed:  # all else is the node's own, and was kept
                    changed.append(self.stamp(kept, node.name))
        return changed

    @property
    def plan_facts(self) -> dict[str, NodeFacts]:
        """What the plan reads of every node's facts."""
        return {n.name: n.plan_facts for n in self.nodes.values()}

    @property
    def node_at(self) -> dict[str, str]:
        """Map addresses that one node alone has to that node."""
        return own_addresses({node.name: outer_addresses(node.plan_facts) for node in self.nodes.values()})

    def planned(self) -> Iterator[tuple[NodePlan, NodeState]]:
        """Give what the plan has for each node, with the node; nothing without a plan."""
        if self.plan is not None:
            for of_node in self.plan.nodes:
                yield of_node, self.nodes[of_node.node.name]

    @property
    def rank_counts(self) -> dict[str, int]:
        """How many ranks the plan gives each node, in the order of the node ranks; nothing without a plan."""
        if self.plan is None:
            return {}
        return {planned.node.name: planned.nproc for planned in self.plan.nodes}

    @property
    def ranks_by_node(self) -> dict[str, int]:
        """How many ranks each node has: by the plan, and in a run that was taken over those that are known."""
        return self.rank_counts or {name: len(node.ranks) for name, node in self.nodes.items()}

    @property
    def world_size(self) -> int:
        """The plan's world size; of a run that was taken over the ranks that are known, else 0."""
        return sum(self.rank_counts.values()) or len(self.ranks())

    @property
    def has_unreachable(self) -> bool:
        """Whether a node could not be reached."""
        return self.failed_to_reach and any(n.state == "unreachable" for n in self.nodes.values())

    def ranks(self) -> list[RankState]:
        """All ranks of the present attempt, in order."""
        return [r for n in self.nodes.values() for r in n.ranks.values()]

    def processes(self) -> list[RankState]:
        """Ranks that have a process of their own: with a launcher, the first of each node."""
        return [rank for node in self.nodes.values() for rank in self._processes_of(node)]

    def _processes_of(self, node: NodeState) -> list[RankState]:
        ranks = list(node.ranks.values())
        if self.spec.launch.launcher == "direct" or self.testing:
            return ranks
        return ranks[:1]

    @property
    def all_have_ended(self) -> bool:
        """Whether no process of a rank runs any more."""
        return not self.any_node("processes", lambda node: any(r.exit is None for r in self._processes_of(node)))

    def running_ranks(self) -> dict[str, tuple[int, ...]]:
        """List the ranks that run, by node, on the nodes from which an answer may come."""
        running: dict[str, tuple[int, ...]] = {}
        for node in self.nodes.values():
            ranks = tuple(r.rank for r in node.ranks.values() if r.pid is not None and r.exit is None)
            if ranks and not node.gone:
                running[node.name] = ranks
        return running

    def layout(self) -> dict[int, tuple[str, int]]:
        """Node and local rank of every rank that the program has, behind a launcher too."""
        if self.plan is None:  # adopted from another controller
            return {r.rank: (n.name, r.local_rank) for n in self.nodes.values() for r in n.ranks.values()}
        return {rank: (n.node.name, at) for n in self.plan.nodes for at, rank in enumerate(n.ranks)}

    def node_of_rank(self) -> dict[int, str]:
        """Map every rank that the program has to its node's name."""
        return {rank: place[0] for rank, place in self.layout().items()}

    @property
    def has_one_process(self) -> bool:
        """Whether one process of each node stands for all of its ranks in this attempt."""
        launch = self.spec.launch
        return is_one_process(launch.launcher, launch.command) and not self.testing

    @property
    def program_failed(self) -> bool:
        """A rank has failed by itself: it ended so, or its program did and its process went on."""
        return any(end.fact.failed_by_itself or self.program_code(end) for end in self.exits)

    def program_code(self, end: Stamped[ExitMessage]) -> int | None:
        """Return what a process would have ended with that allranks ended after its program had ended; else None."""
        node = self.nodes.get(end.node)
        rank = node.ranks.get(end.fact.rank) if node is not None else None
        if rank is None or not end.fact.expected or rank.departure.ended_t is None:
            return None
        return rank.departure.code

    def attempt_seconds(self, now: float) -> float:
        """How long the attempt has taken, to its first failure where it has one."""
        return round((self.failed_at if self.failed_at is not None else now) - self.attempt_at, 1)

    def is_past_init_limit(self, now: float) -> bool:
        """Whether the time for the start is over, for the first time in this attempt."""
        return now - self.start_at > self.spec.limits.init_timeout and not self.init_timeout_hit

    @property
    def unusable_nodes(self) -> tuple[str, ...]:
        """Nodes on which no rank can be started as they are: lost, not reached, or without agent or supervisor."""
        gone = [n.name for n in self.nodes.values() if n.gone]
        faulty = [f.node for f in self.faults if f.fact.id in UNUSABLE_AFTER and f.node in self.nodes]
        return tuple(dict.fromkeys([*gone, *faulty]))

    @property
    def can_retry(self) -> bool:
        """Whether the same nodes can go on as they are."""
        return self.plan is not None and not self.unusable_nodes


def _with_new_key(items: dict[str, NodeState], old: str, new: str) -> dict[str, NodeState]:
    """Give an item another name in its place. Lists do it in 0.1 ms of 4,096 nodes, who all may say a name."""
    if old not in items:
        return items
    names = list(items)
    names[names.index(old)] = new
    return dict(zip(names, items.values(), strict=True))


def _renamed(nodes: tuple[Node, ...], old: str, new: str) -> tuple[Node, ...]:
    names = [node.name for node in nodes]
    if old not in names:
        return nodes
    at = names.index(old)
    return (*nodes[:at], dataclasses.replace(nodes[at], name=new), *nodes[at + 1 :])
