"""join as an engine: every node runs the same command, and node 0 has the controller (IO).

The meeting before the run, and the node that follows, are in `meeting` and `join`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from allranks.agent.netfacts import interfaces
from allranks.cluster import Cluster
from allranks.cluster.schedulers import node_names
from allranks.errors import AllranksError
from allranks.exitcodes import CTRL_C, NODE_FAILED
from allranks.findings import Verdict
from allranks.gang.agent_archive import node_zip
from allranks.gang.places import RunContext, setup_order
from allranks.gang.plugins import all_checks
from allranks.gang.session import Session, environments
from allranks.gang.transport import NodeReach
from allranks.plan.network import never_reached
from allranks.plan.own_orders import NodeArguments
from allranks.protocol.codec import document_line, omit_none
from allranks.protocol.plan_facts import NodeFacts
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved
from allranks.settings.roles import deal, spec_of
from allranks.settings.secrets import redact_argv

from . import NotStarted
from .controlled import ControlledRun, begin
from .dialled import DialledTransport
from .hosts import Hosts
from .join import follow, hello_of
from .joinsecret import JoinSecret, own_secret_differs, secret_of
from .meeting import Meeting, NoStart, end_sentence, with_ranks_of_each, write_termination
from .signals import SignalWatch

OTHER_FIRST = ("staged", "pairs")  # suites whose groups may have another first node than node 0
VERDICT_CONFIDENCE = 0.9
LABEL = "join"  # before what a node says of the meeting
TERMINATION_LOG = "ALLRANKS_TERMINATION_LOG"


@dataclasses.dataclass(frozen=True)
class NodeResult(ResultDocument):
    """How a run ended, as a node that is not the first knows it: what node 0 said, or a `verdict` of its own."""

    message: str = ""

    def known_here(self) -> NodeEnd:
        """Return what this node knows: the run directory is on node 0."""
        return NodeEnd(self.exit, self.message, self.verdict)


@omit_none
class NodeEnd(NamedTuple):
    """What `join --json` prints on a node that is not the first."""

    exit: int
    message: str
    verdict: Verdict | None = None


class JoinPlan(NamedTuple):
    """What `join --dry-run --json` prints: this node's part. `role`: it coordinates, or dials node 0."""

    node_rank: int | None
    nnodes: int | None
    master_addr: str | None
    port: int
    role: str
    command: Sequence[str]
    nproc: int | None


class JoinLaunch:
    """What one node does: node 0 waits for the others and controls the run, the others dial it."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._spec = resolved.spec

    def describe(self, as_json: bool) -> str:
        """Return this node's part."""
        spec = self._spec
        _, own = _own_role(spec)
        role = "coordinates"
        if spec.target.node_rank != 0:
            role = f"dials {spec.rendezvous.master_addr}:{spec.target.join_port}"
        plan = JoinPlan(
            node_rank=spec.target.node_rank,
            nnodes=spec.target.nodes,
            master_addr=spec.rendezvous.master_addr,
            port=spec.target.join_port,
            role=role,
            command=redact_argv(own.launch.command),
            nproc=own.launch.nproc,
        )
        if as_json:
            return document_line(plan)
        return "\n".join(f"{key:<12}{value}" for key, value in plan._asdict().items())

    def start(self, view: View) -> CoordinatedRun | JoinedNode:
        """Meet the other nodes, on node 0; raise NotStarted where they do not come. Elsewhere be ready to dial."""
        secret = self._secret()
        if self._spec.target.node_rank != 0:
            return JoinedNode(self._spec, secret, view)
        meeting = CoordinatedMeeting(self._spec, secret, view)
        with meeting.failure_is_sent():
            cluster = meeting.gather()
            spec = meeting.spec_on(cluster)
            reach = NodeReach(meeting.transport())
            reach.awaited_since = meeting.opened_t
            controlled = begin(dataclasses.replace(self._resolved, spec=spec), cluster, reach, view)
            return CoordinatedRun(controlled.session, view, meeting)

    def meet(self, view: View) -> CoordinatedMeeting:
        """Return node 0's meeting, for a check or a test of the nodes that come."""
        return CoordinatedMeeting(self._spec, self._secret(), view)

    def _secret(self) -> JoinSecret:
        target = self._spec.target
        host = self._spec.rendezvous.master_addr or "127.0.0.1"
        return secret_of(target.secret_file, os.environ, host, target.join_port, alone=(target.nodes or 1) == 1)


class CoordinatedMeeting:
    """Node 0's side of a meeting. Every node that has come hears how it ended."""

    def __init__(self, spec: RunSpec, secret: JoinSecret, view: View) -> None:
        self._spec = spec
        names = node_names(os.environ, spec.rendezvous.master_addr or "", spec.target.nodes or 1)
        self._meeting = Meeting(spec, hello_of(spec, 0, os.getcwd()), secret, names, partial(view.say, LABEL))
        self._signals = SignalWatch()
        self.opened_t = time.time()

    def gather(self) -> Cluster:
        """Wait for the other nodes. Raise NotStarted, with the end written, where they do not come."""
        self._meeting.open()
        cluster = self._meeting.gather(self._signals.taken)
        if isinstance(cluster, NoStart):
            refused = self._meeting.no_start(cluster)
            _terminate(refused.result.verdict, cluster.finding.message)
            raise refused
        self._signals.throw()
        return cluster

    def spec_on(self, cluster: Cluster) -> RunSpec:
        """Return the settings on the nodes that came."""
        spec = with_ranks_of_each(self._spec, cluster)
        if spec.rendezvous.network or spec.launch.roles or (spec.tests.test and spec.tests.suite in OTHER_FIRST):
            return spec.changed(master_addr=None)  # not the address that was named
        return spec

    def transport(self) -> DialledTransport:
        """Return how the nodes that came are reached."""
        return self._meeting.transport()

    def on_stop(self, stop: Callable[[str], None]) -> None:
        """Say what to do when a node asks for the end."""
        self._meeting.on_stop(stop)

    def hand_to(self, session: Session) -> None:
        """Pass what nodes ask for on to the session of the run, and let commands of this host reach the nodes."""
        self._meeting.on_stop(session.stop_from_afar)
        self._meeting.on_signal(session.signal_at_node)
        self._meeting.serve_commands(session.context.uid)

    @contextlib.contextmanager
    def failure_is_sent(self) -> Iterator[None]:
        """Tell every node how it ended, where what is inside raises."""
        try:
            yield
        except NotStarted as refused:
            self.finish(refused.result.exit, end_sentence(refused.result))
            raise
        except AllranksError as error:
            self.finish(error.exit_code, str(error))
            raise
        except KeyboardInterrupt:
            self.finish(CTRL_C, "ended by Ctrl-C on node 0")
            raise
        except BaseException:
            self.finish(NODE_FAILED, "the coordinator failed")
            raise

    def finish(self, exit_code: int, message: str) -> None:
        """Tell every node how it ended, whatever signal comes now."""
        self._signals.note()
        self._meeting.finish(exit_code, message)


class CoordinatedRun(ControlledRun):
    """The run on the nodes that came, in the hands of this process."""

    def __init__(self, session: Session, view: View, meeting: CoordinatedMeeting) -> None:
        super().__init__(session, view)
        self._meeting = meeting
        meeting.hand_to(session)

    def follow(self, asks: bool) -> ResultDocument | None:
        """Control the run until it is over, and tell every node how it ended."""
        with self._meeting.failure_is_sent():
            result = super().follow(asks)
        ended = result or ResultDocument()
        message = end_sentence(ended)
        _terminate(ended.verdict, message)
        self._meeting.finish(ended.exit, message)
        return result


class JoinedNode:
    """A node that dials node 0 and does what it was started for. The run directory is on node 0."""

    run: RunDirectory | None = None
    job: str | None = None
    leaves_page = False
    awaits_ranks = False

    def __init__(self, spec: RunSpec, secret: JoinSecret, view: View) -> None:
        self._spec = spec
        self._secret = secret
        self._view = view
        node_zip(tuple(all_checks()))  # made now: the relay starts the faster

    def show_in(self, view: View) -> None:
        """Show what comes in another view from now on."""
        self._view = view

    def follow(self, asks: bool) -> NodeResult:
        """Dial node 0 and stay until the run is over; return exit code and message, with a verdict of this node's."""
        spec = self._spec
        hello = hello_of(spec, spec.target.node_rank or 0, os.getcwd())
        places = [(spec.rendezvous.master_addr or "", spec.target.join_port)]
        say = partial(self._view.say, LABEL)
        host, port = places[0]
        say(f"node {spec.target.node_rank} of {spec.target.nodes} ({hello.hostname}): dialling {host}:{port}")
        outcome = follow(spec, own_of(spec), self._secret.value, hello, places, say)
        if outcome.other_secret and self._secret.made_at:
            outcome = outcome._replace(message=f"{outcome.message}\n{own_secret_differs(self._secret, host)}")
        result = NodeResult(exit=outcome.exit, message=outcome.message)
        if outcome.tried:
            facts = NodeFacts(interfaces=tuple(interfaces()))
            finding = never_reached(hello.hostname, spec, facts, outcome.tried)
            say(outcome.message)
            verdict = Verdict(finding, finding.id, VERDICT_CONFIDENCE)
            result = NodeResult(exit=outcome.exit, message=finding.message, verdict=verdict)
        _terminate(result.verdict, result.message)
        return result

    def linger(self, result: ResultDocument) -> None:
        """Nothing: node 0 has the run."""


def own_of(spec: RunSpec) -> NodeArguments:
    """Return what this node takes from no other machine: its command, directory, interpreter, environment."""
    role, spec = _own_role(spec)
    context = RunContext(
        run="",
        uid="",
        token="",
        workdir=os.getcwd(),
        run_outputs="",
        environments=environments(os.environ),
    )
    return NodeArguments(spec, setup_order(spec, context)._replace(target=None), tuple(all_checks()), role)


def _own_role(spec: RunSpec) -> tuple[str, RunSpec]:
    """Return the role that this node has by its rank, and its settings: there the node has a number within the role."""
    roles = spec.launch.roles
    rank = spec.target.node_rank or 0
    for role, places in zip(roles, deal(roles, spec.target.nodes or 1, "--nnodes").values(), strict=True):
        if rank in places:
            return role.name, spec_of(spec, role).changed(node_rank=places.index(rank), nodes=len(places))
    return "", spec


def _terminate(verdict: Verdict | None, message: str) -> None:
    path = os.environ.get(TERMINATION_LOG)
    if path:
        write_termination(path, verdict, message)


class Join(Hosts):
    """Nodes that come by themselves."""

    def prepare(self, resolved: Resolved) -> JoinLaunch:
        """Return this node's part."""
        return JoinLaunch(resolved)


ENGINE = Join()
