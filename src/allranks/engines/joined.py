"""join: every node runs the same command, and node 0 has the controller (IO).

Who is admitted, and the node that follows, are in `join`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from allranks.agent.files import text_of_errno
from allranks.agent.netfacts import interfaces
from allranks.cluster import Cluster, Node
from allranks.cluster.nodes import JOINED
from allranks.cluster.schedulers import node_names
from allranks.errors import AllranksError, UsageError
from allranks.exitcodes import CTRL_C, NODE_FAILED, TERMINATED
from allranks.findings import Finding, Verdict, Where
from allranks.gang.agent_archive import node_zip
from allranks.gang.places import RunContext, setup_order
from allranks.gang.plugins import all_checks
from allranks.gang.session import Session, environments
from allranks.gang.transport import NodeReach
from allranks.plan.network import never_reached
from allranks.plan.own_orders import OwnOrders
from allranks.protocol.codec import omit_none
from allranks.protocol.orders import Order, terms_alone
from allranks.protocol.plan_facts import NodeFacts
from allranks.protocol.run_facts import RunStart, Stamped
from allranks.runs.documents import NodeEntry, ResultDocument, RunDocument
from allranks.runs.opening import write_opening
from allranks.runs.questions import socket_name
from allranks.runs.result import least_result, new_run, write_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved
from allranks.settings.roles import deal, spec_of
from allranks.text import format_duration, name_with, plural

from . import NotStarted
from .calls import serve_channels
from .controlled import ControlledRun, begin
from .dialled import ANY, LOOPBACK, STOPS, DialledTransport, Listener
from .following import StartedRun
from .join import Admission, follow, hello_of
from .joinsecret import JoinSecret, is_this_machine, own_secret_differs, secret_of
from .signals import SignalWatch

# -- The coordinator: meets the other nodes, gives the cluster they make, tells them the end ---------------------------

OTHER_FIRST = ("staged", "pairs")  # suites whose groups may have another first node than node 0
VERDICT_CONFIDENCE = 0.9
LABEL = "join"  # before what a node says of the meeting


class Meeting:
    """Node 0's side: it waits for the other nodes, and every node that has come hears how it ended."""

    def __init__(self, spec: RunSpec, secret: JoinSecret, view: View) -> None:
        self._spec = spec
        self._secret = secret
        self._say = partial(view.say, LABEL)  # a line here
        self._count = spec.target.nodes or 1
        names = node_names(os.environ, spec.rendezvous.master_addr or "", self._count)
        self._names = [*names, *[""] * self._count]
        hello = hello_of(spec, 0, os.getcwd())
        self._host = hello.hostname
        self._admission = Admission(hello)
        self._listener = Listener(self._count, secret.value, self._admission, self._say)
        self._signals = SignalWatch()
        self._started = time.monotonic()
        self.opened_t = time.time()
        self._stop = ""

    def gather(self) -> Cluster:
        """Wait for the other nodes. Raise UsageError without the port, NotStarted where they do not come."""
        self._open()
        deadline = self._started + self._spec.limits.init_timeout
        missing = self._listener.wait(
            deadline, self._tell, lambda: bool(self._admission.failure or self._stop or self._signals.first)
        )
        refusal = self._refusal(missing)
        if refusal is not None:
            raise self._not_started(*refusal)
        self._admission.started = True
        self._signals.install(throws=True)
        return self._cluster()

    def _open(self) -> None:
        target, port = self._spec.rendezvous.master_addr or "127.0.0.1", self._spec.target.join_port
        hosts = LOOPBACK if self._secret.made_at and is_this_machine(target, port) else ANY
        self.on_stop(self._stopped_early)
        port = self._listener.start(hosts, port)
        clear = self._listener.clear_because
        cover = f"authenticated, not encrypted: {clear}" if clear else "encrypted (TLS)"
        connections = f", connections are {cover}" if self._listener.seats else ""
        self._say(f"node 0 of {self._count} ({self._host}) listens on port {port}{connections}")
        if self._secret.made_at:
            self._say(f"the secret is this user's own, in {self._secret.made_at}")

    def _refusal(self, missing: list[int]) -> tuple[int, Finding] | None:
        """Say why the run does not begin, with its exit code; None where all are here."""
        if self._admission.failure is not None:
            return UsageError.exit_code, self._admission.failure
        signal = self._signals.first
        if signal is None and not self._stop:
            return (NODE_FAILED, self._never_came(missing)) if missing else None
        who = f"node 0 ({self._host})" if signal else "a node"
        name = signal or STOPS[self._stop]
        is_ctrl_c = name == "SIGINT"
        by = "Ctrl-C" if is_ctrl_c else name
        waited_for = f" while it waited for node {self._listed(missing)}" if missing else ""
        finding = Finding("unknown", "fail", f"{who} was ended by {by}{waited_for}")
        return CTRL_C if is_ctrl_c else TERMINATED, finding

    def _not_started(self, code: int, finding: Finding) -> NotStarted:
        """Write the run directory of a run that did not begin, and return the error to raise, with its result."""
        nodes = tuple(NodeEntry(name, rank, name, node_rank=rank) for rank, name in self._known().items())
        known = RunDocument(started=self.opened_t, nodes=nodes, source=JOINED, workdir=os.getcwd())
        verdict = Verdict(finding, finding.id, VERDICT_CONFIDENCE)
        with new_run(self._spec.places, time.time()) as run:
            write_opening(run, self._spec, known)
            run.append(Stamped("", time.time(), None, RunStart(run.name, "")))
            run.append(Stamped("", time.time(), None, finding))
            result = least_result(run, code, verdict, [finding])
            write_result(run, result, code in (CTRL_C, TERMINATED))
        return NotStarted(run, result)

    # -- the nodes that came -------------------------------------------------------------------------

    def spec_on(self, cluster: Cluster) -> RunSpec:
        """Return the settings on the nodes that came: where their --nproc differ, each node's own holds."""
        spec = self._spec
        if len({node.slots for node in cluster.nodes}) > 1:
            spec = spec.changed(nproc=None)
        if spec.rendezvous.network or spec.launch.roles or (spec.tests.test and spec.tests.suite in OTHER_FIRST):
            return spec.changed(master_addr=None)  # not the address that was named
        return spec

    def transport(self) -> DialledTransport:
        """Return how the nodes that came are reached."""
        dials = {name: partial(self._listener.connect, rank) for name, rank in self._ranks.items()}
        return JoinedTransport(dials, self._spec.launch)

    def on_stop(self, stop: Callable[[str], None]) -> None:
        """Call `stop` when a node asks for the end, or at once where one has asked since all were here."""
        self._listener.stopped = stop
        if self._stop:
            stop(self._stop)

    def hand_to(self, session: Session) -> None:
        """Pass what nodes ask for on to the session of the run.

        `exec` and `fetch` of this host reach the nodes, as far as these consent.
        """
        names = {rank: name for name, rank in self._ranks.items()}
        self.on_stop(session.stop_from_afar)
        self._listener.signalled = lambda rank, signal: session.signal_at_node(names[rank], signal)
        try:
            self._listener.serve(serve_channels(self._listener, self._ranks, socket_name(session.context.uid)))
        except OSError as error:
            self._say(f"allranks exec and fetch cannot reach the nodes of this run: {text_of_errno(error)}")

    # -- the end -------------------------------------------------------------------------------------

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
        self._signals.install(throws=False)
        self._listener.finish(exit_code, message)

    # -- words -------------------------------------------------------------------------------------

    def _stopped_early(self, reason: str) -> None:
        self._stop = self._stop or reason

    def _known(self) -> dict[int, str]:
        here = {0: self._host}
        for rank, seat in self._listener.seats.items():
            if seat.line is not None:
                here[rank] = seat.hello.hostname or seat.address
        return here

    def _tell(self, missing: list[int]) -> None:
        here = self._known()
        names = ", ".join(here[rank] for rank in sorted(here)[:16]) + (", …" if len(here) > 16 else "")
        text = f"{len(here)} of {self._count} nodes are here ({names})"
        if missing:
            left = self._spec.limits.init_timeout - (time.monotonic() - self._started)
            text += f", waiting up to {format_duration(max(0.0, round(left)))} for node {self._listed(missing)}"
        self._say(text)
        self._listener.say(text)

    def _listed(self, ranks: list[int]) -> str:
        """Name node ranks that no node has taken, with the names that the scheduler gives them."""
        names = ", ".join(name_with(str(rank), self._names[rank]) for rank in ranks[:16])
        return names + (f" and {len(ranks) - 16} more" if ranks[16:] else "")

    def _never_came(self, missing: list[int]) -> Finding:
        waited = format_duration(self._spec.limits.init_timeout)
        here = self._known()
        names = tuple(self._names[r] or f"node {r}" for r in missing)
        where = Where(node=names[0])
        if len(names) > 1:
            where = where._replace(nodes=names)
        refusals = tuple(self._listener.refusals[:3])
        remedy = (
            f"look at what {plural(len(missing), 'it', 'they')} printed, and compare --master-addr and --port. Where "
            f"port {self._spec.target.join_port} of {self._host} may be filtered, try there "
            f"`nc -vz {self._spec.rendezvous.master_addr or self._host} {self._spec.target.join_port}`"
        )
        if refusals:
            remedy = f"set the same ALLRANKS_JOIN_SECRET on all nodes, as a connection was refused. Else {remedy}"
        were_here = f"{len(here)} of {self._count} were here: {', '.join(here[r] for r in sorted(here))}"
        message = f"node {self._listed(missing)} never joined within {waited}. {were_here}"
        return Finding("rendezvous-timeout", "fail", message, remedy, where, refusals)

    def _cluster(self) -> Cluster:
        names = unique_names(self._known())
        self._ranks = {names[rank]: rank for rank in self._listener.seats}
        nodes = [Node(0, names[0], names[0], slots=self._spec.launch.nproc, is_local=True)]
        for rank, seat in sorted(self._listener.seats.items()):
            nodes.append(Node(rank, names[rank], seat.address, slots=seat.hello.nproc))
        return Cluster(tuple(nodes), JOINED)


class JoinedTransport(DialledTransport):
    """Nodes that came by themselves: each makes its orders from arguments of its own."""

    def failure(self, node: Node, stdout: bytes, stderr: str, code: int | None) -> Finding:
        """Say that a node has left, and what would bring it back."""
        if node.name not in self._dials:
            return super().failure(node, stdout, stderr, code)
        message = f"`allranks join` has ended on {node.name}, and was not started there again"
        remedy = f"look at what it printed on {node.name}. Within --node-wait of a retry, the same command joins again"
        return Finding("agent-killed", "fail", message, remedy, Where(node=node.name))

    def silence(self, node: Node, seconds: float, stderr: str = "") -> Finding:
        """Say that a node that had joined does not come back."""
        if node.name not in self._dials:
            return super().silence(node, seconds, stderr)
        text = f"{node.name} joined, but its connection was not there for {seconds:g} s"
        return Finding("node-network-down", "fail", text, f"look at what {node.name} printed", Where(node=node.name))

    def read_there(self, node: Node, order: Order) -> Order:
        """Return when, where and how many: command and variables of this machine do not leave it."""
        return terms_alone(order) if node.name in self._dials else order


def unique_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return names by rank, with the rank behind where several nodes have one name (one machine, many terminals)."""
    count = Counter(names.values())
    taken = {name for name in count if count[name] == 1}
    unique = {}
    for rank, name in names.items():
        unique[rank] = name
        while count[name] > 1 and unique[rank] in (name, *taken):
            unique[rank] += f"-{rank}"
        taken.add(unique[rank])
    return unique


def end_sentence(result: ResultDocument) -> str:
    """Say to the other nodes how the run ended, in one sentence."""
    if result.verdict is not None:
        return result.verdict.finding.message
    return "done" if result.exit == 0 else f"ended with code {result.exit}"


@dataclasses.dataclass(frozen=True)
class NodeResult(ResultDocument):
    """How a run ended, as a node that is not the first knows it: what node 0 said, or a `verdict` of its own."""

    message: str = ""


@omit_none
class NodeEnd(NamedTuple):
    """What `join --json` prints on a node that is not the first."""

    exit: int
    message: str
    verdict: Verdict | None = None


class JoinLaunch:
    """What one node does: node 0 waits for the others and controls the run, the others dial it."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._spec = resolved.spec

    def start(self, view: View) -> CoordinatedRun | JoinedNode:
        """Meet the other nodes, on node 0; raise NotStarted where they do not come. Elsewhere be ready to dial."""
        secret = self._secret()
        if self._spec.target.node_rank != 0:
            return JoinedNode(self._spec, secret, view)
        meeting = Meeting(self._spec, secret, view)
        with meeting.failure_is_sent():
            cluster = meeting.gather()
            spec = meeting.spec_on(cluster)
            reach = NodeReach(meeting.transport())
            reach.awaited_since = meeting.opened_t
            controlled = begin(dataclasses.replace(self._resolved, spec=spec), cluster, reach, view)
            return CoordinatedRun(controlled.session, view, meeting)

    def meet(self, view: View) -> Meeting:
        """Return node 0's meeting, for a check or a test of the nodes that come."""
        return Meeting(self._spec, self._secret(), view)

    def _secret(self) -> JoinSecret:
        target = self._spec.target
        host = self._spec.rendezvous.master_addr or "127.0.0.1"
        return secret_of(target.secret_file, os.environ, host, target.join_port, alone=(target.nodes or 1) == 1)


class CoordinatedRun(ControlledRun):
    """The run on the nodes that came, in the hands of this process."""

    def __init__(self, session: Session, view: View, meeting: Meeting) -> None:
        super().__init__(session, view)
        self._meeting = meeting
        meeting.hand_to(session)

    def follow(self, asks: bool) -> ResultDocument | None:
        """Control the run until it is over, and tell every node how it ended."""
        with self._meeting.failure_is_sent():
            result = super().follow(asks)
        ended = result or ResultDocument()
        self._meeting.finish(ended.exit, end_sentence(ended))
        return result


class JoinedNode(StartedRun):
    """A node that dials node 0 and does what it was started for. The run directory is on node 0."""

    leaves_page = False

    def __init__(self, spec: RunSpec, secret: JoinSecret, view: View) -> None:
        super().__init__(None, view)
        self._spec = spec
        self._secret = secret
        node_zip(tuple(all_checks()))  # made now: the relay starts the faster

    def follow(self, asks: bool) -> NodeResult:
        """Dial node 0 and stay until the run is over; return exit code and message, with a verdict of this node's."""
        spec = self._spec
        hello = hello_of(spec, spec.target.node_rank or 0, os.getcwd())
        places = [(spec.rendezvous.master_addr or "", spec.target.join_port)]
        say = partial(self.view.say, LABEL)
        host, port = places[0]
        say(f"node {spec.target.node_rank} of {spec.target.nodes} ({hello.hostname}): dialling {host}:{port}")
        outcome = follow(spec, own_of(spec), self._secret.value, hello, places, say)
        if outcome.other_secret and self._secret.made_at:
            outcome = outcome._replace(message=f"{outcome.message}\n{own_secret_differs(self._secret, host)}")
        result = NodeResult(exit=outcome.exit, message=outcome.message)
        if outcome.tried:
            facts = NodeFacts(interfaces=tuple(interfaces()))
            finding = never_reached(hello.hostname, facts, outcome.tried)
            say(outcome.message)
            verdict = Verdict(finding, finding.id, VERDICT_CONFIDENCE)
            result = NodeResult(exit=outcome.exit, message=finding.message, verdict=verdict)
        return result


def own_of(spec: RunSpec) -> OwnOrders:
    """Return what makes orders here. No other machine gives command, directory, interpreter and environment."""
    role, spec = _own_role(spec)
    places = environments(os.environ)
    context = RunContext(run="", uid="", token="", workdir=os.getcwd(), run_outputs="", environments=places)
    return OwnOrders(spec, setup_order(spec, context)._replace(target=None), tuple(all_checks()), role)


def _own_role(spec: RunSpec) -> tuple[str, RunSpec]:
    """Return the role that this node has by its rank, and its settings: there the node has a number within the role."""
    roles = spec.launch.roles
    rank = spec.target.node_rank or 0
    for role, places in zip(roles, deal(roles, spec.target.nodes or 1, "--nnodes").values(), strict=True):
        if rank in places:
            return role.name, spec_of(spec, role).changed(node_rank=places.index(rank), nodes=len(places))
    return "", spec
