"""The ways to all nodes of a run: opened, renewed as long as the lease lasts, given up, let go (IO).

`Member` is what the controller keeps of a node beside its channel. `Links` keeps the channels, and tells what becomes
of a node: not reached, silent, back, lost. `Beats` renews the leases of all nodes from a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from allranks.cluster import Cluster, Node
from allranks.diagnose.incident import CHANNEL
from allranks.findings import Finding
from allranks.protocol.frames import Frame, Stream
from allranks.protocol.header import AgentHeader
from allranks.protocol.orders import EndOrder, HelloOrder, Order, PingOrder, ReleaseOrder, pack_order
from allranks.protocol.run_facts import NodeBack, NodeConnecting, NodeLost, NodeSilent
from allranks.settings.runspec import Limits, beat_of

from .channel import Channel, NodeFailed, pipe_of
from .gate import LogRoom
from .node_session import OPENING_AT_ONCE, shown_name
from .states import NodeUnreachable
from .tasks import start_task
from .transport import NodeHungUp, Transport

STOPS = {signal.SIGINT: "ctrl-c", signal.SIGTERM: "sigterm", signal.SIGHUP: "sigterm"}
LOOK_EVERY = 0.5  # seconds between two looks whether the loop is held, and a signal waits for it
LATE = 1.0  # seconds beyond its time, from which a beat is late, or a turn of the loop
MOST_HELD = 3600.0  # seconds that a loop may be held: behind a defect ranks would live for ever
RELEASE_PATIENCE = 3.0
HELLO_SECONDS = 20.0  # for an agent's first word after its Python started, or any other node's: 400 KB are sent
OPENING_PATIENCE = 1.5  # at the end, for nodes that are just being reached: no agent is left to its lease
BEATS_MISSED = 3  # after which a channel is renewed


class Member:
    """The controller's side of a node: channel, when it was last heard."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.channel: Channel | None = None
        self.budget = LogRoom()
        self.heard = time.monotonic()
        self.silent = False
        self.lost = False
        self.hung_up = False  # its connection was closed from there, and it was not heard since
        self.is_adopted = False  # its agent was started by another controller
        self.has_greeted = False  # its agent has said hello once
        self.greeted = asyncio.Event()  # with `has_greeted`
        self.opening: asyncio.Task[None] | None = None
        self.has_ended = False  # its word, after a crash of the controller's own
        self.behind = False  # its output has found no room in the run directory since its last hello
        self.ends: Mapping[str, int] = {}  # where its streams end, once its ranks have
        self.shown: dict[Stream, int] = {}  # how far each stream has been displayed
        self.dropped: dict[Stream, int] = {}  # bytes that the node has dropped

    @property
    def open(self) -> bool:
        """Its agent can be spoken to."""
        return self.channel is not None and self.channel.is_open

    def close(self) -> None:
        """Close its channel, where it has one."""
        if self.channel is not None:
            self.channel.close()

    @property
    def is_coming(self) -> bool:
        """Its first channel is on its way."""
        return not self.has_greeted and self.opening is not None and not self.opening.done()


class Beats:
    """Renews the leases of all nodes from a thread of its own, which touches no disk.

    The loop may have to wait for one: no rank ends for it within MOST_HELD. A signal that comes meanwhile ends the
    ranks all the same: with `stop_grace` seconds from the next one.
    """

    def __init__(self, every: float, members: Callable[[], Iterable[Member]], stop_grace: float) -> None:
        self._every = every
        self.stop_grace = stop_grace
        self._stops = 0  # signals that the loop has not handled yet
        self._members = members
        self._has_ended = threading.Event()
        self._beat_at = self._late_at = 0.0
        self._turned_at = 0.0

    def start(self, on_error: Callable[[Exception], None], stop: Callable[[str, float], None]) -> None:
        """Begin, for the loop of this thread, which hears of an error, and first of a stop when it has been held."""
        self._beat_at = self._turned_at = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._ask_to_stop = stop
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def end(self) -> None:
        """Beat no more."""
        self._has_ended.set()

    def turn(self) -> bool:
        """Take note that the loop turns; tell whether no beat was late since it last did."""
        now = time.monotonic()
        beat_at = self._beat_at
        is_late = self._late_at >= self._turned_at or now - beat_at > self._every + LATE
        self._turned_at = now
        self._stops = 0
        return not is_late

    def _run(self) -> None:
        try:
            while not self._has_ended.wait(min(LOOK_EVERY, max(0.0, self._beat_at + self._every - time.monotonic()))):
                now = time.monotonic()
                if now - self._turned_at > LATE:
                    self._obey_signals()
                if now >= self._beat_at + self._every:
                    self._beat()
        except Exception as error:
            if not self._has_ended.is_set():
                self._loop.call_soon_threadsafe(self._on_error, error)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at > self._every + LATE:
            self._late_at = now
        self._beat_at = now
        if now - self._turned_at > MOST_HELD:
            return
        self._send(PingOrder(time.time()))

    def _send(self, order: Order) -> None:
        for member in tuple(self._members()):
            if member.channel is not None:
                member.channel.send_past(self._loop, order)

    def _obey_signals(self) -> None:
        """Have the ranks end at a signal that the thread of the loop cannot handle: it waits for a file.

        What is pending for the process is taken and sent to this thread. So its number comes into the pipe from which
        the loop reads signals, and the loop counts it when it goes on. But first the gang hears of the stop, and then
        what nodes have said of it.
        """
        pending = signal.sigtimedwait(STOPS, 0)
        if pending is not None:
            signal.pthread_kill(threading.get_ident(), pending.si_signo)
        try:
            numbers = self._loop._ssock.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # type: ignore[attr-defined] # noqa: SLF001
        except OSError:
            return
        stops = [STOPS[number] for number in numbers if number in STOPS]
        if len(stops) <= self._stops:
            return
        self._stops = len(stops)
        grace = self.stop_grace if self._stops == 1 else 0.0
        self._loop.call_soon_threadsafe(self._ask_to_stop, stops[-1], grace)
        self._send(EndOrder(grace, stops[-1]))
        line = "note: ranks are asked to end. This command waits for a disk, and ends once that answers\n"
        # Standard error may be a file on that disk.
        threading.Thread(target=os.write, args=(2, line.encode()), name="held", daemon=True).start()


class NodesOwner(Protocol):
    """Whose nodes they are: the controller."""

    @property
    def is_over(self) -> bool:
        """Whether the run is over: no channel is opened any more."""

    def header(self, member: Member, renewing: bool) -> AgentHeader:
        """Give what the boot code of a node has to know."""

    def hello(self, member: Member) -> HelloOrder:
        """Give the first order to an agent over a new channel."""

    def take_frames(self, member: Member, frames: list[Frame]) -> None:
        """Take what an agent has sent."""

    def feed(self, fact: NodeUnreachable | NodeSilent | NodeBack | NodeLost, node: str) -> None:
        """Take what has become of a node."""

    def note(self, fact: NodeConnecting, node: str) -> None:
        """Take what is worth a line in the log."""

    def note_channel(self, finding: Finding) -> None:
        """Take why a channel was not renewed, where this machine itself is the reason."""


class Links:
    """The members of a run by their names, and the channels to them."""

    def __init__(
        self, cluster: Cluster, limits: Limits, transport: Transport, owner: NodesOwner, is_adopted: bool = False
    ) -> None:
        """`is_adopted`: the agents were started by another controller."""
        self.members = {n.name: Member(n) for n in cluster.everyone}
        self.released: set[str] = set()  # nothing waits for these
        self._limits = limits
        self._transport = transport
        self._owner = owner
        self._is_adopted = is_adopted
        for member in self.members.values():
            member.is_adopted = is_adopted
        self._semaphore = asyncio.Semaphore(OPENING_AT_ONCE)
        self._last_greeting = 0.0  # monotonic: when an agent said its first word
        self.beat = beat_of(limits.lease)
        self._packed: tuple[Order, bytes] | None = None  # the last order, and its frame
        self.beats = Beats(self.beat, lambda: self.members.values(), limits.stop_grace)

    def send(self, member: Member, order: Order) -> None:
        """Send an order; nothing happens without a channel. One that goes to many nodes is packed once."""
        channel = member.channel
        if channel is None or not channel.is_open:
            return
        order = self._transport.read_there(member.node, order)
        if self._packed is None or self._packed[0] is not order:
            self._packed = (order, pack_order(order))
        channel.send_bytes(self._packed[1])

    # -- opening -----------------------------------------------------------------------------------

    def admit(self, node: Node) -> None:
        """Begin to reach a node that was not among them."""
        member = self.members[node.name] = Member(node)
        self.open(member)

    def open(self, member: Member) -> None:
        """Begin to reach a node, where that is not going on."""
        if self._owner.is_over:
            return
        if member.opening is None or member.opening.done():
            member.opening = start_task(self._connect(member))

    async def _connect(self, member: Member) -> None:
        """Open the channel; the first failure of a node that never answered is final."""
        node = member.node
        renewing = member.has_greeted or member.is_adopted
        if not renewing:
            self._owner.note(NodeConnecting(), node.name)
        pause = 0.2
        while not member.lost and not self._owner.is_over:
            channel = Channel(
                node,
                self._transport,
                lambda frames: self._owner.take_frames(member, frames),
                lambda why: self._closed(member, why),
                pipe_of(len(self.members)),
            )
            member.channel = channel
            try:
                async with self._semaphore:
                    header = self._owner.header(member, renewing)
                    seconds = self._limits.connect_timeout
                    if member.has_greeted:  # its agent was there, and is asked again before its lease is over
                        seconds = min(seconds, max(2.0, self._limits.lease / 3))
                    await channel.open(header, self._owner.hello(member), seconds)
                if not renewing:
                    await self._await_hello(member, channel)
                return
            except NodeHungUp:
                if member.lost or self._owner.is_over or node.name in self.released:
                    return
                if renewing:
                    member.hung_up = True
                    self._lose(member, time.monotonic() - member.heard)
                else:
                    self._owner.feed(NodeUnreachable(self._transport.failure(node, b"", "", None)), node.name)
                return
            except NodeFailed as error:
                if not renewing:
                    self._owner.feed(NodeUnreachable(error.finding), node.name)
                    return
                if error.finding.where.node is None:  # this machine is the reason: a node may come back
                    self._owner.note_channel(error.finding._replace(status="warn", check=CHANNEL))
            await asyncio.sleep(pause)
            pause = min(2 * pause, 4.0)

    async def _await_hello(self, member: Member, channel: Channel) -> None:
        """Wait for the agent's first word; raise NodeFailed where it does not come.

        As long as other nodes say theirs the start makes progress: 200 agents on one machine wait for each other.
        """
        began = time.monotonic()
        while not member.greeted.is_set():
            now = time.monotonic()
            left = max(began, self._last_greeting) + HELLO_SECONDS - now
            if left <= 0:
                channel.close()
                raise NodeFailed(self._transport.mute(member.node, HELLO_SECONDS))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(member.greeted.wait(), left)

    def greeted(self, member: Member) -> None:
        """Take an agent's first word over a channel."""
        if not member.has_greeted:
            self._last_greeting = time.monotonic()
        member.has_greeted = True
        member.behind = False
        member.greeted.set()

    def _closed(self, member: Member, why: str) -> None:
        if self._owner.is_over or member.lost or member.node.name in self.released:
            return
        if member.has_greeted or member.is_adopted:
            member.hung_up = True
            self.open(member)
        else:
            self.turn_away(member, self._transport.failure(member.node, b"", why, None))

    def turn_away(self, member: Member, why: Finding) -> None:
        """Try no more to reach a node: its agent cannot be spoken to."""
        if member.opening is not None:
            member.opening.cancel()
        self._owner.feed(NodeUnreachable(why), member.node.name)

    def rename(self, member: Member, hostname: str) -> str:
        """Call a node that the list has by address by its own name from now on; return the name it had."""
        old = member.node.name
        name = shown_name(member.node, hostname, self.members)
        if name != old:
            member.node = dataclasses.replace(member.node, name=name)
            members = dict(self.members)  # a loop may go over those that were there
            members[name] = members.pop(old)
            self.members = members
        return old

    # -- silence -----------------------------------------------------------------------------------

    def heard(self, member: Member) -> None:
        """Take a sign of life."""
        member.heard = time.monotonic()
        member.hung_up = False
        if member.silent:
            member.silent = False
            self._owner.feed(NodeBack(), member.node.name)

    def wait_longer(self, seconds: float, now: float) -> None:
        """Give nodes that were not heard while this process did not run that time on top."""
        for member in self.members.values():
            member.heard = min(member.heard + seconds, now)

    def watch_silence(self, now: float) -> None:
        """Three missing beats: renew the channel. The whole lease: the node is lost."""
        for member in self.members.values():
            if not (member.has_greeted or member.is_adopted) or member.lost or member.node.name in self.released:
                continue
            quiet = now - member.heard
            most = self._limits.lease
            if not member.has_greeted:
                most = max(most, self._limits.connect_timeout)
            if quiet > most:
                self._lose(member, quiet)
            elif quiet > BEATS_MISSED * self.beat and member.has_greeted and not member.silent:
                member.silent = True
                self._owner.feed(NodeSilent(), member.node.name)
                member.close()
                self.open(member)

    def lose_all(self) -> None:
        """Give up each node that was reached, without its lease's patience: no way leads to any."""
        for member in self.members.values():
            if self._owner.is_over:
                return
            if member.has_greeted and not member.lost and member.node.name not in self.released:
                self._lose(member, time.monotonic() - member.heard)

    def _lose(self, member: Member, quiet: float) -> None:
        """Give a node up; `quiet` are the seconds since its last word."""
        member.lost = True
        member.close()
        self._owner.feed(NodeLost(time.time() - quiet, member.hung_up), member.node.name)

    # -- letting go --------------------------------------------------------------------------------

    def let_go(self, member: Member, may_go: bool) -> None:
        """Another node has its place: its agent goes at once, if it lives and all its output is here."""
        if may_go:
            self.send(member, ReleaseOrder())
        self.released.add(member.node.name)

    def reach_anew(self, member: Member, may_go: bool, pause: float) -> None:
        """Start a new agent on the same node, after `pause` seconds.

        What is left of the old one is let go, or ends with its lease.
        """
        if member.open and may_go:
            self.send(member, ReleaseOrder())
        else:
            member.close()
        member.lost = True  # nothing of the old channel is renewed or heard any more
        fresh = self.members[member.node.name] = Member(member.node)
        asyncio.get_running_loop().call_later(pause, self.open, fresh)

    async def release(self, may_go: Callable[[Member], bool]) -> None:
        """Let all agents go that may, and node directories with them."""
        asked: set[str] = set()
        deadline = time.monotonic() + RELEASE_PATIENCE
        opening = time.monotonic() + (0.0 if self._is_adopted else OPENING_PATIENCE)
        self.released.update(self.members)
        while time.monotonic() < deadline:
            for member in self.members.values():
                if member.node.name not in asked and member.open and may_go(member):
                    asked.add(member.node.name)
                    self.send(member, ReleaseOrder())
            waited_for = any(m.open and m.node.name in asked for m in self.members.values())
            coming = time.monotonic() < opening and any(m.is_coming for m in self.members.values())
            if not waited_for and not coming:
                break
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Close all channels."""
        self.beats.end()
        for member in self.members.values():
            if member.opening is not None and not member.opening.done():
                member.opening.cancel()
            self.released.add(member.node.name)
            member.close()
