"""The controller: carries out what the gang decides, over one channel a node (IO, no decisions).

It renews channels that break, for as long as the lease lasts; it writes events, logs and status into the
run directory; and it ends when the last attempt is over everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from allranks.cluster import Cluster
from allranks.diagnose.incident import CHANNEL, beat_of
from allranks.diagnose.recorded import AttemptFacts
from allranks.errors import ConfigError
from allranks.findings import Finding
from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.frames import METRICS, RANK_LOG, Frame, OutputFrame, Stream
from allranks.protocol.header import AgentHeader
from allranks.protocol.messages import (
    CountersMessage,
    DrainedMessage,
    DroppedMessage,
    EndedMessage,
    ExitMessage,
    GotMessage,
    HelloMessage,
    Message,
    PongMessage,
    RefusedMessage,
    ReplacedMessage,
    TemplateMessage,
    read_message,
)
from allranks.protocol.orders import AckOrder, CountersOrder, EndOrder, HelloOrder, Order, PingOrder, ReleaseOrder
from allranks.protocol.run_facts import (
    Fact,
    FirstStep,
    HangNoted,
    NodeBack,
    NodeConnecting,
    NodeLost,
    NodesChecked,
    NodeSilent,
    OutputDropped,
    PlainNote,
    Stamped,
    StepsResumed,
    StepsSeen,
    StepsWentOn,
    StopAsked,
)
from allranks.protocol.usage import NodeUsage
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, Master, NodeEntry, ResultDocument, StatusDocument
from allranks.runs.errorfiles import save_error
from allranks.runs.logs import LogWriter
from allranks.runs.opening import change_nodes, controller_identity, write_status
from allranks.runs.preflight import document, save
from allranks.runs.progresshistory import ProgressHistory
from allranks.runs.replay import Shown
from allranks.runs.timeledger import Timekeeper
from allranks.runs.usage import UsageLog, UsageSample
from allranks.settings import RunSpec
from allranks.settings.document import from_document
from allranks.text import one_line

from .channel import Beats, Channel, ChannelFailed, Member, Shipper
from .clocks import Instant, pause_between
from .gang import Gang
from .gate import MOST_SOURCES, require_own, require_stream
from .node_session import shown_name
from .places import KeptLaunch, Setting, collectors_on, judge_request, node_label, restored, run_tag
from .plugins import all_checks
from .policy import Decision
from .progress import Progress
from .remarks import run_disk_full, unreadable_message
from .states import Action, AttemptOver, EachSecond, Event, NodeUnreachable, Quiet, Reach, Send, State, StepShown, Tick
from .tasks import handle_errors, start_task
from .transport import Transport

if TYPE_CHECKING:
    from .auditor import Auditor

OPENING_AT_ONCE = 64
TICK = 0.2
# The clock that goes on while the machine sleeps: macOS, which has no CLOCK_BOOTTIME, calls it CLOCK_MONOTONIC.
AWAKE_OR_ASLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
STATUS_EVERY = 1.0
ACK_EVERY = 2.0
MOST_SOURCE = 80  # characters of what cannot be read, by its name
MOST_WHY = 200  # and of why
ROOM = 64 << 10  # bytes free on the disk of the run directory that make another try worth while
RELEASE_PATIENCE = 3.0
ABANDONED = 10.0  # seconds after the grace for nodes to end their ranks where the gang itself failed
HELLO_SECONDS = 20.0  # for an agent's first word after its Python started, or any other node's: 400 KB are sent
OPENING_PATIENCE = 1.5  # at the end, for nodes that are just being reached: no agent is left to its lease


def has_room(path: str) -> bool:
    """Whether more than a page or two would fit on the disk of a directory."""
    try:
        filesystem = os.statvfs(path)
    except OSError:
        return False
    return filesystem.f_bavail * filesystem.f_frsize >= ROOM


class Undecodable:
    """Count by source what others wrote and cannot be read. `tell` is called at the first of a source; `counts` goes
    into the result."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.counts: dict[str, int] = {}
        self._told: Counter[str] = Counter()  # sources by node

    def of_node(self, node: str, source: str, why: str) -> None:
        """One more of a source that a node has named: beyond the first sources of each node only their number counts.

        `source` is of the training program, or a joined node's own word.
        """
        named = f"{one_line(source, MOST_SOURCE)} of {node}"
        if named not in self.counts:
            if self._told[node] >= MOST_SOURCES:
                named = f"other texts of {node}"
            self._told[node] += 1
        self.note(named, one_line(why, MOST_WHY))

    def note(self, source: str, why: str) -> None:
        """One more of a source, such as `metrics of rank 3`."""
        first = source not in self.counts
        self.counts[source] = self.counts.get(source, 0) + 1
        if first:
            self._tell(f"{source}: left out what cannot be read ({why}). The run goes on")

    def set_counts(self, node: str, counts: Mapping[str, int]) -> None:
        """How many a node has counted by itself, by source."""
        for source, count in islice(counts.items(), MOST_SOURCES):
            named = f"{one_line(source, MOST_SOURCE)} of {node}"
            self.counts[named] = max(count, self.counts.get(named, 0))


class View(Shown, Protocol):
    """What the controller tells the person in front of it."""

    def opening(self, info: Document) -> None:
        """Begin: what the run is."""

    def tick(self, now: float) -> None:
        """Let time pass."""

    def pause(self) -> None:
        """Show nothing until `resume`."""

    def resume(self) -> None:
        """Show again."""

    def closing(self, result: ResultDocument) -> None:
        """End: how the run ended, and why."""


class Controller:
    """One run. `judge` decides after each attempt."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        setting: Setting,
        transport: Transport,
        run: RunDirectory,
        view: View,
        judge: Callable[[Gang], Decision],
        attach: bool = False,
        shipper: Shipper | None = None,
    ) -> None:
        self.spec = spec
        self.setting = setting
        self.run_dir = run
        self.view = view
        self.cluster = cluster
        self.gang = Gang(spec, cluster, setting, time.monotonic(), time.time())
        self.roster = self.gang.roster
        self.members = {n.name: Member(n) for n in (*cluster.nodes, *cluster.spares)}
        self.logs = LogWriter(run)
        self.usage_log = UsageLog(run)
        self.undecodable = Undecodable(lambda message: self.note(PlainNote(message)))
        self.progress = Progress(
            spec.output.step_pattern, spec.limits.hang_pattern, self._pattern_off, self.undecodable.note
        )
        self.timekeeper = Timekeeper()
        self.attempt_facts = AttemptFacts()  # what the verdict on the present attempt goes by
        self._noted_steps: StepsSeen | None = None
        self._history = ProgressHistory(self.run_dir)
        self._transport = transport
        self._judge = judge
        self._attach = attach
        if attach:
            for member in self.members.values():
                member.is_adopted = True
        self.has_launch = not attach  # knows all that ranks are started with
        self._shipper = shipper
        self.auditor: Auditor | None = None  # of the data, where that is asked for
        self._semaphore = asyncio.Semaphore(OPENING_AT_ONCE)
        self._last_greeting = 0.0  # monotonic: when an agent said its first word
        self._over = asyncio.Event()
        self._beat = beat_of(spec.limits.lease)
        self._beats = Beats(self._beat, lambda: self.members.values())
        self._next_status = self._next_ack = self._next_look_at_control = 0.0
        self._status_due = 0.0
        self._instant = Instant(time.monotonic(), time.clock_gettime(AWAKE_OR_ASLEEP))
        self._dirty = True
        self._resumed_attempt = 0  # the last whose first step was shown
        self._disk_was_full = False
        self.released: set[str] = set()
        self.dropped: dict[str, dict[int, int]] = {}  # bytes by node and rank
        self.failure: Exception | None = None  # of allranks itself
        self._abandoned = False
        self.replaced = False  # another controller has taken the run over

    # -- driving -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the last attempt has ended everywhere."""
        handle_errors(asyncio.get_running_loop(), self._crashed)
        self._beats.start(self._crashed)
        try:
            if not self._attach:
                self._act(self.gang.begin())
            for member in self.members.values():
                self._open(member)
        except Exception as error:
            self._crashed(error)
        while not self._over.is_set():
            try:
                await asyncio.wait_for(self._over.wait(), self._tick_length())
            except asyncio.TimeoutError:
                self._tick_safely()
        if self.replaced:
            self._close()
            return
        try:
            if self._abandoned:
                await self._await_ends()
            await self._release()
        finally:
            self._close()
        if self.failure is not None:
            raise self.failure
        self._write_status()
        self._watch_run_directory()

    def _crashed(self, error: Exception) -> None:
        """End the run after a defect of allranks: every rank is ended, and nothing waits for this run any longer."""
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
        """Tells every node to end its ranks, whatever state the gang is in."""
        if not self._abandoned:
            self._abandoned = True
            for member in self.members.values():
                self._send(member, EndOrder(self.spec.limits.grace, "crash"))
        self._over.set()

    async def _await_ends(self) -> None:
        """Until all nodes that can be reached have ended their ranks; the lease ends the others'."""
        deadline = time.monotonic() + self.spec.limits.grace + ABANDONED
        while time.monotonic() < deadline and any(m.open and not m.has_ended for m in self.members.values()):
            await asyncio.sleep(0.02)

    def _tick_safely(self) -> None:
        try:
            self._tick()
        except Exception as error:
            self._crashed(error)

    def _tick_length(self) -> float:
        if len(self.members) <= 64 or self.roster.state is not State.RUNNING:
            return TICK
        return 4 * TICK

    def feed(self, fact: Event, node: str = "", t: float | None = None) -> None:
        """Give a fact to the gang, of now where no time says else, and carry out what it decides."""
        self._dirty = True
        self.feed_quietly(fact, node, t)

    def stop(self, reason: str, grace: float) -> None:
        """End the run with `grace` seconds for the ranks."""
        self.feed(StopAsked(reason, grace))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(self.members[action.node], action.order)
            elif isinstance(action, Reach):
                self._reach_anew(self.members[action.node], action.pause)
                self._write_places()
            elif isinstance(action, AttemptOver):
                self._attempt_over()
            else:
                self._take(action)

    def _pattern_off(self, option: str, why: str) -> None:
        """Go on without a pattern of the user's that is too slow."""
        if option == "hang_pattern":
            self.roster.spec = self.roster.spec.changed(hang_pattern=None)
            why += ". Any output counts as a sign of life"
        self.note(PlainNote(why))

    def _attempt_over(self) -> None:
        self.progress.drain()
        self._say_resumed()
        self._note_steps(is_over=True)
        decision = self._judge(self.gang)
        if decision.kind == "finish":
            self._over.set()
            return
        self.progress.begin_attempt()
        for old, new in decision.replace.items():
            self.logs.continue_on(self.members[new].node.index, new, is_new_agent=new == old)
            if new != old:
                self._let_go(self.members[old])
        now = time.monotonic()
        t = time.time()
        self._act(self.gang.retry(now, t, decision.kind, decision.replace, decision.pause))
        if decision.replace:
            self._write_places()

    def _let_go(self, member: Member) -> None:
        """Another node has its place: its agent goes at once, if it lives and all its output is here."""
        if member.open and self._may_go(member):
            self._send(member, ReleaseOrder())
        self.released.add(member.node.name)

    def _reach_anew(self, member: Member, pause: float) -> None:
        """Start a new agent on the same node, after `pause` seconds.

        What is left of the old one is let go, or ends with its lease.
        """
        if member.open and self._may_go(member):
            self._send(member, ReleaseOrder())
        elif member.channel is not None:
            member.channel.close()
        member.lost = True  # nothing of the old channel is renewed or heard any more
        fresh = self.members[member.node.name] = Member(member.node)
        asyncio.get_running_loop().call_later(pause, self._open, fresh)

    def _write_places(self) -> None:
        """run.json: who has which place now, for a controller that takes over."""
        ranks = {name: rank for rank, name in enumerate(self.roster.nodes)}
        everyone = self.roster.everyone

        def placed(entry: NodeEntry) -> NodeEntry:
            if entry.name not in everyone:
                return entry
            life = everyone[entry.name].incarnation
            return dataclasses.replace(entry, node_rank=ranks.get(entry.name), life=life)

        change_nodes(self.run_dir, placed)

    def keep(self, fact: Fact, node: str = "", t: float | None = None) -> Stamped[Fact]:
        """Write a fact of the present attempt, which is of now where no time says else."""
        return self._keep(Stamped(node, round(time.time(), 6) if t is None else t, self.roster.attempt, fact))

    def note(self, fact: Fact, node: str = "", t: float | None = None) -> None:
        """Write a fact of the present attempt, and show it."""
        self.view.event(self.keep(fact, node, t))

    def _keep(self, stamped: Stamped[Fact]) -> Stamped[Fact]:
        self.run_dir.append(stamped)
        self.timekeeper.take(stamped)
        self.attempt_facts.take(stamped)
        if isinstance(stamped.fact, HangNoted):
            self.progress.span.stands_still = True
        return stamped

    def _take(self, stamped: Stamped[Fact]) -> None:
        """Write a fact that the gang has stamped, with what belongs to it, and show it."""
        fact = stamped.fact
        if isinstance(fact, ExitMessage):
            save_error(self.run_dir, self.roster.attempt, fact.rank, fact.error)
        self._keep(stamped)
        if isinstance(fact, NodesChecked):
            self._save_look()
        self.view.event(stamped)

    def _save_look(self) -> None:
        """evidence/preflight.json, as `allranks check` leaves it."""
        request = judge_request(self.spec, self.setting, self.cluster)
        facts = {n.name: n.facts for n in self.roster.nodes.values()}
        save(self.run_dir, document(request, facts, [c.name for c in self.setting.checks], time.time()))

    # -- channels ----------------------------------------------------------------------------------

    def _send(self, member: Member, order: Order) -> None:
        if member.channel is not None and member.channel.is_open:
            member.channel.send(order)

    def _open(self, member: Member) -> None:
        if self._over.is_set():
            return
        if member.opening is None or member.opening.done():
            member.opening = start_task(self._connect(member))

    async def _connect(self, member: Member) -> None:
        """Open the channel; the first failure of a node that never answered is final."""
        node = member.node
        renewing = member.has_greeted or member.is_adopted
        if not renewing:
            self.note(NodeConnecting(), node.name)
        pause = 0.2
        while not member.lost and not self._over.is_set():
            channel = Channel(
                node,
                self._transport,
                lambda frames: self.take_frames(member, frames),
                lambda why: self._closed(member, why),
            )
            member.channel = channel
            try:
                async with self._semaphore:
                    await channel.open(self._header(member, renewing), self._hello(member), self._patience(member))
                if not renewing:
                    await self._await_hello(member, channel)
                return
            except ChannelFailed as error:
                if not renewing:
                    self.feed(NodeUnreachable(error.finding), node.name)
                    return
                self._not_renewed(error.finding)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 4.0)

    def _not_renewed(self, failure: Finding) -> None:
        """Keep why a channel was not renewed, where this machine itself is the reason: a node may come back."""
        if failure.where.node is None and all(f.check != CHANNEL for f in self.roster.findings):
            finding = failure._replace(status="warn", check=CHANNEL)
            self.roster.findings.append(finding)
            self.note(finding)

    async def _await_hello(self, member: Member, channel: Channel) -> None:
        """Wait for the agent's first word; raise ChannelFailed where it does not come.

        As long as other nodes say theirs the start makes progress: 200 agents on one machine wait for each other.
        """
        began = time.monotonic()
        while not member.greeted.is_set():
            now = time.monotonic()
            left = max(began, self._last_greeting) + HELLO_SECONDS - now
            if left <= 0:
                channel.close()
                raise ChannelFailed(self._transport.mute(member.node, HELLO_SECONDS))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(member.greeted.wait(), left)

    def _patience(self, member: Member) -> float:
        """Return the seconds for a channel to open: an agent that was there is asked again before its lease is over."""
        again = min(self.spec.limits.connect_timeout, max(2.0, self.spec.limits.lease / 3))
        return again if member.has_greeted else self.spec.limits.connect_timeout

    def _header(self, member: Member, renewing: bool) -> AgentHeader:
        incarnation = self.roster.everyone[member.node.name].incarnation
        return AgentHeader(
            mode="attach" if renewing else "agent",
            uid=self.setting.uid,
            node=node_label(member.node.index, incarnation),
            run_tag=run_tag(self.setting, member.node.index, incarnation),
            lease=self.spec.limits.lease,
            grace=self.spec.limits.grace,
            node_dir=self.spec.places.node_dir,
            ends=tuple(run_tag(self.setting, member.node.index, before) for before in range(incarnation)),
            checks=collectors_on(self.spec, self.setting, member.node.index),
            tests=bool(self.spec.tests.test),
            audit=bool(self.spec.recovery.audit_data),
        )

    def _hello(self, member: Member) -> HelloOrder:
        have = self.logs.sizes(member.node.index, member.node.name)
        return HelloOrder(lease=self.spec.limits.lease, have=have, asks_launch=not self.has_launch)

    def _closed(self, member: Member, why: str) -> None:
        """Renew a channel that has ended, unless its agent is being released."""
        if self._over.is_set() or member.lost or member.node.name in self.released:
            return
        if not member.has_greeted:
            if member.opening is not None:
                member.opening.cancel()
            failure = self._transport.failure(member.node, b"", why, None)
            self.feed(NodeUnreachable(failure), member.node.name)
            return
        member.hung_up = True
        self._open(member)

    def take_frames(self, member: Member, frames: list[Frame]) -> None:
        """Act upon what an agent sent; what an agent with a successor sends is ignored."""
        if self.members.get(member.node.name) is not member:
            return
        self._notice_pause()  # before what came meanwhile is acted upon
        member.heard = time.monotonic()
        member.hung_up = False
        if member.silent:
            member.silent = False
            self.feed(NodeBack(), member.node.name)
        for frame in frames:
            is_first = not member.has_greeted
            try:
                self._take_frame(member, frame)
            except DecodeError as error:
                kind = "output" if isinstance(frame, OutputFrame) else str(frame["type"])
                self._unread(member, kind, error, is_first)

    def _take_frame(self, member: Member, frame: Frame) -> None:
        """Act upon what a node says of itself, within its bounds; raise DecodeError where it can't be read."""
        state = self.roster.state_of(member.node.name)
        if isinstance(frame, OutputFrame):
            require_stream(frame.stream, state.owned, self.roster.attempt)
            self._output(member, frame)
            return
        message = read_message(frame)
        require_own(message, state.owned)
        if not member.budget.has_room(message, time.monotonic()):
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
        self.undecodable.note(f"messages of {name}", str(error))
        is_needed = kind == "facts" or (kind == "hello" and is_first)
        if is_needed and self.roster.state is State.GATHERING:
            if member.opening is not None:
                member.opening.cancel()
            self.feed(NodeUnreachable(unreadable_message(name, kind, str(error))), name)

    def _message(self, member: Member, message: Message) -> None:
        """Raise DecodeError where the gang could not read what it needs."""
        if self._abandoned:
            member.has_ended = member.has_ended or isinstance(message, EndedMessage)
        elif isinstance(message, PongMessage):
            self.roster.state_of(member.node.name).clock.sample(message.sent, message.t, time.time())
        elif isinstance(message, GotMessage):
            self._ship_on(member, message)
        elif isinstance(message, RefusedMessage):
            self.undecodable.of_node(member.node.name, message.source, message.why)
        elif isinstance(message, TemplateMessage):
            self.keep(message, member.node.name)
            self._event(member, message)
        elif isinstance(message, ReplacedMessage):
            self._leave_to_another()
        elif isinstance(message, DroppedMessage):
            self._dropped(member, message)
        else:
            self._event(member, message)

    def _leave_to_another(self) -> None:
        """Leave where another controller has the run: run.json names it, a node's word alone says nothing.

        Looked at once a tick: a node could say it without end.
        """
        now = time.monotonic()
        if now < self._next_look_at_control:
            return
        self._next_look_at_control = now + TICK
        controller = self.run_dir.read_run().controller
        if controller is not None and controller != controller_identity():
            self.replaced = True
            self._over.set()

    def _event(self, member: Member, message: Message) -> None:
        """Feed a message to the gang; raise DecodeError."""
        if isinstance(message, CountersMessage):
            self.progress.counted(message.ranks, time.monotonic())
        if isinstance(message, NodeUsage):
            self.usage_log.add(UsageSample(member.node.name, self.roster.attempt, message))
        if isinstance(message, HelloMessage):
            self._greeted(member, message)
        if isinstance(message, DrainedMessage):
            member.ends = message.sizes
            self.undecodable.set_counts(member.node.name, message.refused)
        name = member.node.name
        self._dirty = True
        self._handle(self.roster.state_of(name).clock.stamp(message, name, self.roster.attempt, time.time()))

    def _greeted(self, member: Member, message: HelloMessage) -> None:
        if not member.has_greeted:
            self._rename(member, message.hostname)
            self._last_greeting = time.monotonic()
        if message.launch is not None and not self.has_launch:
            self._take_launch(decode(KeptLaunch, message.launch, "$.launch"))
        member.has_greeted = True
        member.behind = False
        member.greeted.set()
        self._send(member, PingOrder(time.time()))

    def _take_launch(self, launch: KeptLaunch) -> None:
        """Know what the controller before this one started ranks with: from here on a retry is possible."""
        try:
            self.spec = from_document(launch.spec, "what an agent has kept")
        except ConfigError as error:  # kept by another version
            self.note(PlainNote(f"The run cannot be tried again: {error}"))
            return
        self.setting = restored(self.setting, launch, all_checks())
        self.roster.take_launch(self.spec, self.setting)
        self.has_launch = True

    def lacks_tree(self) -> bool:
        """Tell whether a node needs the synced tree, and the archive was in another controller's hands."""
        roster = self.roster
        if self.setting.tree is None or self._shipper is not None:
            return False
        return len(roster.unusable_nodes) > len(self.gang.spares.ready)

    def _ship_on(self, member: Member, message: GotMessage) -> None:
        if self._shipper is not None and member.channel is not None and self._is_gathered(member):
            self._shipper.go_on(member.node.index, message.bytes, message.begin, member.channel)

    def _is_gathered(self, member: Member) -> bool:
        """Its tree is still wanted: before the start, or for a place it may have to take."""
        return self.roster.state is State.GATHERING or member.node.name in self.roster.spares

    def _rename(self, member: Member, hostname: str) -> None:
        """Where the list has an address, outputs show the host's own name with the address beside it."""
        old = member.node.name
        hostname = shown_name(member.node, hostname, self.members)
        if hostname == old:
            return
        member.node = dataclasses.replace(member.node, name=hostname)
        self.members = {m.node.name: m for m in self.members.values()}
        self.roster.rename(old, hostname)

        def renamed(entry: NodeEntry) -> NodeEntry:
            if entry.name != old:
                return entry
            return dataclasses.replace(entry, name=hostname, address=old)

        change_nodes(self.run_dir, renamed)

    def _output(self, member: Member, frame: OutputFrame) -> None:
        node = member.node
        stream = frame.stream
        now = time.monotonic()
        t = self._made(node.name, stream)
        in_place = stream.kind == METRICS and node.index in self.setting.local_nodes
        if not in_place and not member.behind:  # later frames would leave a hole: they are sent again
            member.behind = not self.logs.write(node.index, node.name, stream, frame.offset, frame.data)
            if member.behind:
                self._disk_is_full(self.logs.failure)
        data = frame.data[max(0, member.shown.get(stream, 0) - frame.offset) :]  # a full disk has it sent again
        if not data:
            return
        member.shown[stream] = frame.offset + len(frame.data)
        if self.auditor is not None and not member.behind:
            self.auditor.take(stream, data, now)
        if stream.attempt == self.roster.attempt or stream.kind == METRICS:
            self.progress.output(stream, data, now, t, self.roster.state_of(node.name).clock.offset)
        if stream.kind == RANK_LOG:
            self.view.output(node.name, stream.rank, data, t)
        elif stream.kind == METRICS:
            self._dirty = True

    def _made(self, node: str, stream: Stream) -> float:
        """When output that comes now was made at the latest (unix seconds): that of a rank that has ended, before."""
        state = self.roster.nodes.get(node)
        rank = state.ranks.get(stream.rank) if state is not None else None
        if rank is None or rank.exit is None or rank.exit.fact.attempt != stream.attempt:
            return time.time()
        return min(time.time(), rank.exit.t)

    def _dropped(self, member: Member, message: DroppedMessage) -> None:
        """Keep what a node has dropped of a stream: it gives the total, and again over a new channel."""
        stream = Stream(message.kind, message.rank, message.attempt)
        total = message.total
        fresh = total - member.dropped.get(stream, 0)
        if fresh > 0:
            member.dropped[stream] = total
            name = member.node.name
            why = "bound" if message.bounded else "full"
            ranks = self.dropped.setdefault(name, {})
            ranks[stream.rank] = ranks.get(stream.rank, 0) + fresh
            self.note(OutputDropped(stream.rank, fresh, ranks[stream.rank], why), name)

    def _watch_run_directory(self) -> None:
        if self.run_dir.write_failure:
            self._disk_is_full(self.run_dir.write_failure)

    def _disk_is_full(self, why: str) -> None:
        if not self._disk_was_full:
            self._disk_was_full = True
            finding = run_disk_full(str(self.run_dir.path), why)
            self.roster.findings.append(finding)
            self.note(finding)

    def unfetched(self, name: str) -> bool:
        """Tell whether a node's log in the run directory ends before the node's own does."""
        member = self.members[name]
        have = self.logs.sizes(member.node.index, member.node.name)
        in_place = f"{METRICS}/" if member.node.index in self.setting.local_nodes else "-"
        late = any(have.get(key, 0) < end for key, end in member.ends.items() if not key.startswith(in_place))
        node = self.roster.everyone[name]
        return late or bool(node.ranks and not node.drained)

    # -- time --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        self._notice_pause()
        self.feed_quietly(Tick())
        if self.roster.state is State.RUNNING:
            self.feed_quietly(Quiet(max(self.roster.last_sign_at, self.progress.last_activity)))
        self._watch_silence(now)
        self._watch_run_directory()
        if now >= self._next_ack:
            self._next_ack = now + ACK_EVERY
            self._acknowledge()
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY
            self._first_step()
            self._say_resumed()
            self._note_steps()
            self._count_collectives(now)
            self._compare_with_itself(now)
            if self.auditor is not None and self.roster.state is State.RUNNING:
                self.auditor.look(self.roster.layout(), self.feed)
            if self.roster.state is State.RUNNING:
                self.feed_quietly(EachSecond(self.progress.slowest_step()))
            self._write_status()
        self.view.tick(time.time())

    def _count_collectives(self, now: float) -> None:
        """Ask for what ranks do that show no step."""
        roster = self.roster
        if roster.state is not State.RUNNING or roster.testing or roster.initialised_t is None:
            return
        if self.progress.wants_counts(now):
            for node in roster.nodes.values():
                ranks = [rank.rank for rank in node.ranks.values() if rank.pid is not None and rank.exit is None]
                if ranks and not node.gone:
                    self._send(self.members[node.name], CountersOrder(tuple(ranks)))

    def _compare_with_itself(self, now: float) -> None:
        """Ask for samples of nodes, and say how far the run is: what became slower is judged by the gang."""
        if self.roster.state is not State.RUNNING:
            return
        self._act(self.gang.ask_for_usage(now))
        steps = self.progress.span.seen
        if steps is not None:
            self.feed_quietly(StepShown(steps.furthest), t=steps.last_t)

    def _notice_pause(self) -> None:
        """Where this process did not run, nodes that were not heard meanwhile get that time on top."""
        before = self._instant
        self._instant = Instant(time.monotonic(), time.clock_gettime(AWAKE_OR_ASLEEP))
        pause = pause_between(before, self._instant, self._tick_length(), self.spec.limits.lease)
        waited = self._beats.held_by or "elsewhere"
        if not self._beats.turn():
            waited = ""
        if pause is None:
            return
        now = self._instant.monotonic
        for member in self.members.values():
            member.heard = min(member.heard + pause.seconds, now)
        self.roster.last_sign_at = min(self.roster.last_sign_at + pause.seconds, now)
        self.progress.last_activity = min(self.progress.last_activity + pause.seconds, now)
        self.progress.paused(pause.seconds, time.time())
        self.feed(pause if pause.slept else pause._replace(waited=waited))

    def feed_quietly(self, fact: Event, node: str = "", t: float | None = None) -> None:
        """Give the gang a fact that mostly changes nothing."""
        self._handle(Stamped(node, time.time() if t is None else t, self.roster.attempt, fact))

    def _handle(self, stamped: Stamped[Event]) -> None:
        """Carry out what the gang decides about a fact; a change of state is written at once."""
        before = self.roster.state
        self._act(self.gang.handle(stamped, time.monotonic(), time.time()))
        if self.roster.state is not before:
            self._dirty = True
            self._write_status()

    def _acknowledge(self) -> None:
        for member in self.members.values():
            if member.behind and has_room(str(self.run_dir.path)):
                self._send(member, self._hello(member))  # sends again from what has found room
            fresh = self.logs.fresh_sizes(member.node.index)
            if fresh:
                self._send(member, AckOrder(fresh))

    def _watch_silence(self, now: float) -> None:
        """Three missing beats: renew the channel. The whole lease: the node is lost."""
        for member in self.members.values():
            if not (member.has_greeted or member.is_adopted) or member.lost or member.node.name in self.released:
                continue
            quiet = now - member.heard
            most = self.spec.limits.lease
            if not member.has_greeted:
                most = max(most, self.spec.limits.connect_timeout)
            if quiet > most:
                self._lose(member, quiet)
            elif quiet > 3 * self._beat and member.has_greeted and not member.silent:
                member.silent = True
                self.feed(NodeSilent(), member.node.name)
                if member.channel is not None:
                    member.channel.close()
                self._open(member)

    def lose_all_nodes(self) -> None:
        """No node can be reached any more, nor will be: each that was is lost at once, without its lease's patience."""
        for member in self.members.values():
            if self.roster.state is State.OVER:
                return
            if member.has_greeted and not member.lost and member.node.name not in self.released:
                self._lose(member, time.monotonic() - member.heard)

    def _lose(self, member: Member, quiet: float) -> None:
        """Give a node up; `quiet` are the seconds since its last word."""
        member.lost = True
        if member.channel is not None:
            member.channel.close()
        self.feed(NodeLost(time.time() - quiet, member.hung_up), member.node.name)

    def _first_step(self) -> None:
        at = self.progress.first_step_at
        if at is not None and not self.progress.first_step_told:
            self.progress.first_step_told = True
            self.note(FirstStep(round(at - self.roster.began_at, 3)))

    def _say_resumed(self) -> None:
        """Say once where a further attempt goes on."""
        resumed = self.progress.resumed()
        if resumed is not None and self._resumed_attempt != self.roster.attempt:
            self._resumed_attempt = self.roster.attempt
            self.note(StepsResumed(*resumed))

    def _note_steps(self, is_over: bool = False) -> None:
        """Write down when steps were shown: the first, the first that no attempt had reached, and the last."""
        span = self.progress.span
        if span.went_on_t is not None:
            self.note(StepsWentOn(), t=span.went_on_t)
            span.went_on_t = None
        noted = self._noted_steps
        shown = span.seen
        if shown is None or shown == noted:
            return
        is_first = noted is None or noted.first_t != shown.first_t
        if is_over or is_first or (noted is not None and noted.redone_t != shown.redone_t):
            self._noted_steps = shown
            self.note(shown)

    def resume_steps(self, seen: StepsSeen) -> None:
        """Go on with the steps of an attempt that another controller began."""
        self.progress.span.resume(seen)

    def status(self) -> StatusDocument:
        """Describe the run as it is now."""
        live = self.progress.by_rank()
        roster = self.roster
        nodes = [node.status(live) for node in roster.nodes.values()]
        nodes += [node.status({}) for node in (*roster.spares.values(), *roster.retired.values())]
        return StatusDocument(
            self.setting.run,
            roster.state.value,
            round(time.time(), 3),
            roster.attempt,
            Master(roster.master_addr, roster.master_port),
            roster.world_size or None,
            tuple(nodes),
            self.timekeeper.ledger(time.time(), self.progress.span.seen).goodput,
        )

    def _write_status(self) -> None:
        status = self.status()
        self.view.status(status, time.time())
        self._history.note(status, time.time())
        now = time.monotonic()
        if self._dirty or self.progress.changed() or now >= self._status_due:
            self._dirty = False
            self._status_due = now + self._beat  # its time says that this process lives
            write_status(self.run_dir, status)

    # -- the end -----------------------------------------------------------------------------------

    async def _release(self) -> None:
        """Agents go, and node directories with them, except where a log has not been fetched whole."""
        asked: set[str] = set()
        deadline = time.monotonic() + RELEASE_PATIENCE
        opening = time.monotonic() + (0.0 if self._attach else OPENING_PATIENCE)
        self.released.update(self.members)
        while time.monotonic() < deadline:
            for member in self.members.values():
                if member.node.name not in asked and member.open and self._may_go(member):
                    asked.add(member.node.name)
                    self._send(member, ReleaseOrder())
            waited_for = any(m.open and m.node.name in asked for m in self.members.values())
            coming = time.monotonic() < opening and any(m.is_coming for m in self.members.values())
            if not waited_for and not coming:
                break
            await asyncio.sleep(0.01)
        self._close()

    def _may_go(self, member: Member) -> bool:
        """Its ranks have ended and their output is here, or it never had any: it was late when another failed."""
        if self._abandoned:
            return member.has_ended
        node = self.roster.everyone[member.node.name]
        return not node.ranks or (node.ended and not self.unfetched(node.name))

    def _close(self) -> None:
        self._beats.end()
        for member in self.members.values():
            if member.opening is not None and not member.opening.done():
                member.opening.cancel()
            self.released.add(member.node.name)
            if member.channel is not None:
                member.channel.close()
        self.progress.close()
        self.logs.close()
