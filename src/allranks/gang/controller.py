"""The controller: carries out what the gang decides, and hands it what the nodes say (IO, no decisions).

Its parts: `Links` are the ways to the nodes, renewed for as long as the lease lasts. `Recording` is what the run leaves
in its directory, and what a view shows of it. `Observing` looks at what ranks show. It ends when the last attempt is
over everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from allranks.cluster import Cluster, Node
from allranks.diagnose.incident import CHANNEL
from allranks.errors import ConfigError
from allranks.findings import Finding, Where
from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.frames import METRICS, Frame, OutputFrame, Stream
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import Json, JsonObject
from allranks.protocol.messages import (
    CountersMessage,
    DrainedMessage,
    DroppedMessage,
    EndedMessage,
    FactsMessage,
    GotMessage,
    HelloMessage,
    Message,
    PongMessage,
    ProfiledMessage,
    RefusedMessage,
    ReplacedMessage,
    StacksMessage,
    TemplateMessage,
    read_message,
)
from allranks.protocol.orders import AckOrder, EndOrder, HelloOrder, PingOrder
from allranks.protocol.run_facts import Fact, HangNoted, NodesChecked, PlainNote, PlanMade, Stamped, StopAsked
from allranks.protocol.samples import NodeUsage
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Master, NodeEntry, StatusDocument
from allranks.runs.opening import add_node, change_nodes, controller_identity, node_entry
from allranks.runs.preflight import document, save
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.document import from_document

from .channel import Shipper
from .clocks import Instant, pause_between
from .gang import Gang
from .gate import require_own, require_stream
from .links import Links, Member
from .observing import Observing
from .places import KeptLaunch, RunContext, collectors_on, judge_request, node_label, restored, run_tag
from .plugins import all_checks
from .policy import Decision
from .recording import Recording
from .states import (
    Action,
    Admit,
    AttemptOver,
    EachSecond,
    Event,
    NodeListed,
    Reach,
    Send,
    State,
    StepShown,
    Tick,
)
from .tasks import handle_errors
from .transport import Transport

TICK = 0.2
# The clock that goes on while the machine sleeps: macOS, which has no CLOCK_BOOTTIME, calls it CLOCK_MONOTONIC.
AWAKE_OR_ASLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
LOOK_EVERY = 1.0
RANKS_A_SECOND = 8192  # of which status.json says the state: those of a larger run it has less often
ACK_EVERY = 2.0
SMALL = 64  # nodes, for which nothing is done more seldom
LARGE_GARBAGE = (10_000, 10, 20)  # thresholds of the garbage collector; Python's are 700, 10 and 10
MOST_ALIKE = 4  # values of a part of the facts with which another node's are compared
ABANDONED = 10.0  # seconds after the grace for nodes to end their ranks where the gang itself failed


def status_pause(ranks: int, beat: float) -> float:
    """Give the seconds between two states of a run: as `beat` says that this process lives, no more than that.

    >>> [status_pause(ranks, 5.0) for ranks in (8, 8192, 32768, 1 << 20)]
    [1.0, 1.0, 4.0, 5.0]
    """
    return min(max(LOOK_EVERY, ranks / RANKS_A_SECOND), max(LOOK_EVERY, beat))


@contextlib.contextmanager
def _rare_collections(nodes: int) -> Iterator[None]:
    """Look seldom for circles of garbage among the millions of objects of a large run: nearly all of them stay."""
    usual = gc.get_threshold()
    if nodes > SMALL:
        gc.set_threshold(*LARGE_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class SharedParts:
    """Parts of the facts of nodes. What nodes have alike is kept, and written, as one object."""

    def __init__(self) -> None:
        self._known: dict[str, list[Json]] = {}

    def share(self, facts: Mapping[str, Json]) -> JsonObject:
        """Give the facts of a node with the parts of those before it in the place of equal ones."""
        return {name: self._share_part(name, part) for name, part in facts.items()}

    def _share_part(self, name: str, part: Json) -> Json:
        if not isinstance(part, (dict, list)):
            return part
        known = self._known.setdefault(name, [])
        for one in known:
            if one == part:
                return one
        if len(known) < MOST_ALIKE:
            known.append(part)
        return part


class Controller:
    """One run. `judge` decides after each attempt."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        context: RunContext,
        transport: Transport,
        run: RunDirectory,
        view: View,
        judge: Callable[[Gang], Decision],
        attach: bool = False,
        shipper: Shipper | None = None,
    ) -> None:
        self.spec = spec
        self.context = context
        self.run_dir = run
        self.view = view
        self.gang = Gang(spec, cluster, context, time.monotonic(), time.time())
        self.roster = self.gang.roster
        self.links = Links(cluster, spec.limits, transport, self, is_adopted=attach)
        self.recording = Recording(run, self.roster, view, self.links.beat)
        self.observing = Observing(spec, self.roster, self.recording)
        self._judge = judge
        self._attach = attach
        self.has_launch = not attach  # knows all that ranks are started with
        self._shipper = shipper
        self._over = asyncio.Event()
        self._next: dict[str, float] = {}  # when each of what is done now and then is due
        self._renamed: dict[str, str] = {}  # names that run.json does not have yet, by the addresses that it has
        self._instant = Instant(time.monotonic(), time.clock_gettime(AWAKE_OR_ASLEEP))
        self.failure: Exception | None = None  # of allranks itself
        self._abandoned = False
        self.listed_again: Callable[[], Sequence[Node]] = tuple  # the nodes of a host list that has changed
        self.replaced = False  # another controller has taken the run over
        self._shared = SharedParts()
        # Takes what answers a question of another terminal.
        self.answered: Callable[[StacksMessage | ProfiledMessage], None] | None = None

    def take_view(self, view: View) -> None:
        """Show the run in another view from now on."""
        self.view = self.recording.view = view

    @property
    def is_over(self) -> bool:
        """Whether the last attempt has ended, or another controller has the run."""
        return self._over.is_set()

    # -- driving -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the last attempt has ended everywhere."""
        handle_errors(asyncio.get_running_loop(), self._crashed)
        self.links.beats.start(self._crashed, self.stop)
        with _rare_collections(len(self.links.members)):
            await self._run_to_the_end()

    async def _run_to_the_end(self) -> None:
        try:
            if not self._attach:
                self._act(self.gang.begin())
            for member in self.links.members.values():
                self.links.open(member)
        except Exception as error:
            self._crashed(error)
        while not self.is_over:
            try:
                await asyncio.wait_for(self._over.wait(), self._tick_length())
            except asyncio.TimeoutError:
                try:
                    self._tick()
                except Exception as error:
                    self._crashed(error)
        if self.replaced:
            self._close()
            return
        try:
            if self._abandoned:
                await self._await_ends()
            await self.links.release(self._may_go)
        finally:
            self._close()
        if self.failure is not None:
            raise self.failure
        self._write_status()
        self.recording.watch_disk()

    def _crashed(self, error: Exception) -> None:
        again = self.failure is not None
        self.failure = self.failure or error
        if self.roster.state is State.OVER:
            self._over.set()
            return
        try:
            if not again:
                self.stop("crash", self.spec.limits.grace)
                return
        except Exception:
            again = True  # the gang cannot even end: its nodes hear of the end without it
        self._abandon()

    def _abandon(self) -> None:
        if not self._abandoned:
            self._abandoned = True
            for member in self.links.members.values():
                self.links.send(member, EndOrder(self.spec.limits.grace, "crash"))
        self._over.set()

    async def _await_ends(self) -> None:
        deadline = time.monotonic() + self.spec.limits.grace + ABANDONED
        members = self.links.members
        while time.monotonic() < deadline and any(m.open and not m.has_ended for m in members.values()):
            await asyncio.sleep(0.02)

    def _close(self) -> None:
        self.links.close()
        self.recording.close()

    # -- what the gang hears, and what it decides --------------------------------------------------

    def feed(self, fact: Event, node: str = "", t: float | None = None) -> None:
        """Give a fact to the gang, of now where no time says else, and carry out what it decides."""
        self.recording.is_changed = True
        self.feed_quietly(fact, node, t)

    def feed_quietly(self, fact: Event, node: str = "", t: float | None = None) -> None:
        """Give the gang a fact that mostly changes nothing."""
        self._handle(Stamped(node, time.time() if t is None else t, self.roster.attempt, fact))

    def _handle(self, stamped: Stamped[Event]) -> None:
        before = self.roster.state
        self._act(self.gang.handle(stamped, time.monotonic(), time.time()))
        if self.roster.state is not before:
            self.recording.is_changed = True
            self._next.pop("status", None)
            if self.roster.world_size <= RANKS_A_SECOND:
                self._write_status()

    def stop(self, reason: str, grace: float) -> None:
        """End the run with `grace` seconds for the ranks."""
        self.feed(StopAsked(reason, grace))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.run_dir.write_events()  # a node does nothing before the log says why
                self.links.send(self.links.members[action.node], action.order)
            elif isinstance(action, Reach):
                member = self.links.members[action.node]
                self.links.reach_anew(member, self._may_go(member), action.pause)
                self._write_places()
            elif isinstance(action, Admit):
                self.links.admit(action.node)
                add_node(self.run_dir, node_entry(action.node, None))
            elif isinstance(action, AttemptOver):
                self._attempt_over()
            else:
                self._take(action)

    def _take(self, stamped: Stamped[Fact]) -> None:
        stamped = self.recording.keep_stamped(stamped)
        if isinstance(stamped.fact, HangNoted):
            self.observing.progress.span.stands_still = True
        if isinstance(stamped.fact, PlanMade):
            self.recording.deal(stamped.fact, self.links.members)
        if isinstance(stamped.fact, NodesChecked):
            request = judge_request(self.spec, self.context, self.roster.cluster)
            facts = {n.name: n.facts for n in self.roster.nodes.values()}
            save(self.run_dir, document(request, facts, [c.name for c in self.context.checks], time.time()))
        self.view.event(stamped)

    def _attempt_over(self) -> None:
        self.observing.note_steps(is_over=True)
        self.run_dir.write_events()  # the verdict is made of them
        decision = self._judge(self.gang)
        if decision.kind == "finish":
            self._over.set()
            return
        self.observing.begin_attempt()
        anew = [name for name in decision.leave_out if self.roster.nodes[name].gone]
        anew += [old for old, new in decision.replace.items() if new == old]
        for name in (*decision.leave_out, *decision.replace):
            member = self.links.members[name]
            if name in anew:
                self.recording.logs.begin_anew(member.node.index, name)
            else:
                self.links.let_go(member, self._may_go(member))
        self._act(self.gang.retry(time.monotonic(), decision))
        if decision.replace or decision.leave_out or decision.take_in:
            self._write_places()

    def _may_go(self, member: Member) -> bool:
        """Its ranks have ended and their output is here, or it never had any: it was late when another failed."""
        if self._abandoned:
            return member.has_ended
        node = self.roster.state_of(member.node.name)
        return not node.ranks or (node.ended and not self.recording.is_unfetched(member))

    # -- run.json ----------------------------------------------------------------------------------

    def _write_names(self) -> None:
        """Write the names that nodes have said since it was last done: each time reads and writes all of run.json."""
        names = self._renamed
        if not names:
            return
        self._renamed = {}

        def renamed(entry: NodeEntry) -> NodeEntry:
            if entry.name not in names:
                return entry
            return dataclasses.replace(entry, name=names[entry.name], address=entry.name)

        change_nodes(self.run_dir, renamed)

    def _write_places(self) -> None:
        self._write_names()
        ranks = {name: rank for rank, name in enumerate(self.roster.nodes)}
        everyone = self.roster.everyone

        def placed(entry: NodeEntry) -> NodeEntry:
            if entry.name not in everyone:
                return entry
            life = everyone[entry.name].incarnation
            place = ranks.get(entry.name) if self.roster.role.is_plain else entry.node_rank
            return dataclasses.replace(entry, node_rank=place, life=life)

        change_nodes(self.run_dir, placed)

    # -- the nodes ---------------------------------------------------------------------------------

    def header(self, member: Member, renewing: bool) -> AgentHeader:
        """Give what the boot code of a node has to know."""
        incarnation = self.roster.state_of(member.node.name).incarnation
        return AgentHeader(
            mode="attach" if renewing else "agent",
            uid=self.context.uid,
            node=node_label(member.node.index, incarnation),
            run_tag=run_tag(self.context, member.node.index, incarnation),
            lease=self.spec.limits.lease,
            grace=self.spec.limits.grace,
            node_dir=self.spec.places.node_dir,
            ends=tuple(run_tag(self.context, member.node.index, before) for before in range(incarnation)),
            checks=collectors_on(self.spec, self.context, member.node.index),
            tests=bool(self.spec.tests.test),
            audit=bool(self.spec.recovery.audit_data),
        )

    def hello(self, member: Member) -> HelloOrder:
        """Give the first order to an agent over a new channel: how much of its output is here."""
        have = self.recording.logs.sizes(member.node.index, member.node.name)
        return HelloOrder(lease=self.spec.limits.lease, have=have, asks_launch=not self.has_launch)

    def note(self, fact: Fact, node: str = "") -> None:
        """Write a fact of the present attempt, and show it."""
        self.recording.note(fact, node)

    def note_channel(self, finding: Finding) -> None:
        """Keep, once, why a channel was not renewed."""
        if all(f.check != CHANNEL for f in self.roster.findings):
            self.recording.add_finding(finding)

    def lacks_tree(self) -> bool:
        """Tell whether a node needs the synced tree, and the archive was in another controller's hands."""
        if self.context.tree is None or self._shipper is not None:
            return False
        return len(self.roster.unusable_nodes) > len(self.gang.spares.ready)

    # -- what nodes say ----------------------------------------------------------------------------

    def take_frames(self, member: Member, frames: list[Frame]) -> None:
        """Act upon what an agent sent; what an agent with a successor sends is ignored."""
        if self.links.members.get(member.node.name) is not member:
            return
        self._notice_pause()  # before what came meanwhile is acted upon
        self.links.heard(member)
        with self.run_dir.events_together():
            for frame in frames:
                is_first = not member.has_greeted
                try:
                    self._take_frame(member, frame)
                except DecodeError as error:
                    kind = "output" if isinstance(frame, OutputFrame) else str(frame["type"])
                    self._unread(member, kind, error, is_first)

    def _take_frame(self, member: Member, frame: Frame) -> None:
        state = self.roster.state_of(member.node.name)
        if isinstance(frame, OutputFrame):
            require_stream(frame.stream, state.owned, self.roster.attempt)
            self._output(member, frame)
            return
        message = read_message(frame)
        require_own(message, state.owned)
        if not member.budget.has_room(message, self.roster.attempt, time.monotonic()):
            if member.budget.over == 1:
                self.note(PlainNote(f"{member.node.name} says too much: {frame['type']} messages are dropped"))
            return
        before = self.run_dir.events_written
        try:
            self._message(member, message)
        finally:
            member.budget.spend(self.run_dir.events_written - before)

    def _unread(self, member: Member, kind: str, error: DecodeError, is_first: bool) -> None:
        """Count a message that does not fit. Without a node's first hello, or its facts, no rank can start."""
        name = member.node.name
        self.recording.undecodable.note(f"messages of {name}", str(error))
        is_needed = kind == "facts" or (kind == "hello" and is_first)
        if is_needed and self.roster.state is State.GATHERING:
            message = (
                f"{name}: its agent's {kind} message cannot be read ({error}). Another program may have changed it"
            )
            remedy = f"look at {name} with `allranks check`, or take it out of the list"
            why = Finding("unknown", "fail", f"{message} on its way", remedy, Where(node=name))
            self.links.turn_away(member, why)

    def _message(self, member: Member, message: Message) -> None:
        """Take a message before the gang does, or instead of it; raise DecodeError where it cannot be read."""
        if self._abandoned:
            member.has_ended = member.has_ended or isinstance(message, EndedMessage)
            return
        name = member.node.name
        undecodable = self.recording.undecodable
        match message:
            case PongMessage():
                self.roster.state_of(name).clock.sample(message.sent, message.t, time.time())
                return
            case GotMessage():
                self._ship(member, message)
                return
            case RefusedMessage():
                undecodable.of_node(name, message.source, message.why)
                return
            case ReplacedMessage():
                self._look_who_controls()
                return
            case DroppedMessage():
                self.recording.note_dropped(member, message)
                return
            case StacksMessage(asked=0):
                pass  # the gang has asked
            case StacksMessage() | ProfiledMessage():
                if self.answered is not None:
                    self.answered(message)
                return
            case TemplateMessage():
                self.recording.keep(message, name)
            case CountersMessage():
                self.observing.progress.counted(message.ranks, time.monotonic())
            case NodeUsage():
                self.recording.add_usage(name, message)
            case HelloMessage():
                self._greet(member, message)
            case FactsMessage():
                message = message._replace(facts=self._shared.share(message.facts))
            case DrainedMessage():
                member.ends = message.sizes
                undecodable.set_counts(name, message.refused)
        self.recording.is_changed = True
        name = member.node.name  # its own, since its first hello
        self._handle(self.roster.state_of(name).clock.stamp(message, name, self.roster.attempt, time.time()))

    def _ship(self, member: Member, message: GotMessage) -> None:
        """Send more of the synced tree, where it is still wanted: before the start, or for a place it may take."""
        is_wanted = self.roster.state is State.GATHERING or member.node.name in self.roster.spares
        if self._shipper is not None and member.channel is not None and is_wanted:
            self._shipper.go_on(member.node.index, message.bytes, message.begin, member.channel)

    def _look_who_controls(self) -> None:
        """Leave where another controller has the run: run.json names it, a node's word alone says nothing.

        Looked at once a tick: a node could say it without end.
        """
        now = time.monotonic()
        if not self._is_due("control", now, TICK):
            return
        controller = self.run_dir.read_run().controller
        if controller is not None and controller != controller_identity():
            self.replaced = True
            self._over.set()

    def _greet(self, member: Member, message: HelloMessage) -> None:
        if not member.has_greeted:
            self._rename(member, message.hostname)
        if message.launch is not None and not self.has_launch:
            self._take_launch(decode(KeptLaunch, message.launch, "$.launch"))
        self.links.greeted(member)
        self.links.send(member, PingOrder(time.time()))

    def _rename(self, member: Member, hostname: str) -> None:
        old = self.links.rename(member, hostname)
        name = member.node.name
        if name == old:
            return
        self.roster.rename(old, name)
        self._renamed[old] = name

    def _take_launch(self, launch: KeptLaunch) -> None:
        """Know what the controller before this one started ranks with: from here on a retry is possible."""
        try:
            self.spec = from_document(launch.spec, "what an agent has kept")
        except ConfigError as error:  # kept by another version
            self.note(PlainNote(f"The run cannot be tried again: {error}"))
            return
        self.context = restored(self.context, launch, all_checks())
        self.roster.take_launch(self.spec, self.context)
        self.has_launch = True

    def _output(self, member: Member, frame: OutputFrame) -> None:
        node = member.node
        made_t = self._made(node.name, frame.stream)
        in_place = frame.stream.kind == METRICS and node.index in self.context.local_nodes
        data = self.recording.write_output(member, frame, in_place)
        if data:
            now = time.monotonic()
            self.observing.output(node.name, frame.stream, data, now, made_t)

    def _made(self, node: str, stream: Stream) -> float:
        """When output that comes now was made at the latest (unix seconds): that of a rank that has ended, before."""
        state = self.roster.nodes.get(node)
        rank = state.ranks.get(stream.rank) if state is not None else None
        if rank is None or rank.exit is None or rank.exit.fact.attempt != stream.attempt:
            return time.time()
        return min(time.time(), rank.exit.t)

    # -- time --------------------------------------------------------------------------------------

    def _tick_length(self) -> float:
        if len(self.links.members) <= SMALL or self.roster.state is not State.RUNNING:
            return TICK
        return 4 * TICK

    def _tick(self) -> None:
        now = time.monotonic()
        self._notice_pause()
        self.feed_quietly(Tick(self.observing.has_ready_line))
        if self.roster.state is State.RUNNING:
            self.feed_quietly(self.observing.quiet())
        self.links.watch_silence(now)
        self.recording.watch_disk()
        if self._is_due("ack", now, ACK_EVERY):
            self._acknowledge()
        if self._is_due("look", now, LOOK_EVERY):
            self._look_at_ranks(now)
            self._look_who_is_listed()
        if self._is_due("status", now, status_pause(self.roster.world_size, self.links.beat)):
            self._write_status()
        self.view.tick(time.time())

    def _look_who_is_listed(self) -> None:
        listed = self.listed_again()
        if not listed:
            return
        hosts = {member.node.host for member in self.links.members.values()}
        for node in listed:
            if node.host not in hosts:
                hosts.add(node.host)
                self.feed(NodeListed(node))

    def _is_due(self, what: str, now: float, pause: float) -> bool:
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + pause
        return True

    def _look_at_ranks(self, now: float) -> None:
        """Once a second: steps and data go to the log, and what became slower is judged by the gang."""
        self.observing.note_first_step()
        self.observing.note_steps()
        self._act([*self.observing.ask_for_counts(now)])
        if self.roster.state is State.RUNNING:
            self._act(self.gang.pace.ask(now))
            steps = self.observing.progress.span.seen
            if steps is not None:
                self.feed_quietly(StepShown(steps.furthest), t=steps.last_t)
        self.observing.audit(self.feed)
        if self.roster.state is State.RUNNING:
            self.feed_quietly(EachSecond(self.observing.progress.slowest_step()))

    def _notice_pause(self) -> None:
        """Where this process did not run, nodes that were not heard meanwhile get that time on top."""
        before = self._instant
        self._instant = Instant(time.monotonic(), time.clock_gettime(AWAKE_OR_ASLEEP))
        pause = pause_between(before, self._instant, self._tick_length(), self.spec.limits.lease)
        waited = self.links.beats.turn()
        if pause is None:
            return
        now = self._instant.monotonic
        self.links.wait_longer(pause.seconds, now)
        self.observing.wait_longer(pause.seconds, now, time.time())
        self.feed(pause if pause.slept else pause._replace(waited=waited))

    def _acknowledge(self) -> None:
        for member in self.links.members.values():
            if member.behind and self.recording.has_room:
                self.links.send(member, self.hello(member))  # sends again from what has found room
            fresh = self.recording.logs.fresh_sizes(member.node.index)
            if fresh:
                self.links.send(member, AckOrder(fresh))

    def status(self) -> StatusDocument:
        """Describe the run as it is now."""
        progress = self.observing.progress
        live = progress.by_rank()
        roster = self.roster
        warnings = roster.warnings
        nodes = [node.status(live, warnings) for node in roster.nodes.values()]
        nodes += [node.status({}, warnings) for node in (*roster.spares.values(), *roster.retired.values())]
        return StatusDocument(
            self.context.run,
            roster.state.value,
            round(time.time(), 3),
            roster.attempt,
            Master(roster.master_addr, roster.master_port),
            roster.world_size or None,
            tuple(nodes),
            self.recording.timekeeper.ledger(time.time(), progress.span.seen).goodput,
        )

    def _write_status(self) -> None:
        self._write_names()
        if self.observing.progress.changed():
            self.recording.is_changed = True
        self.recording.write_status(self.status(), time.monotonic())
