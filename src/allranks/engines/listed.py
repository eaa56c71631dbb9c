"""The nodes of a host list as a run has them: over ssh, or dialling back where ssh has started what dials (IO).

With `--reach dial` no ssh client stays: each node's connection is its channel, encrypted and with a secret of this
controller, as on nodes that join. A node that cannot dial keeps its ssh connection, and one line says so for all such
nodes. A connection that breaks is dialled again. Where it is not, ssh starts another one. A controller that has no ssh
to the nodes has that of the machine which started the run: see `lent_ssh`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from allranks.cluster import Cluster, Node
from allranks.errors import UsageError
from allranks.findings import Finding, Where
from allranks.gang.channel import NodeFailed
from allranks.gang.transport import BegunSession, Client, NodeHungUp, NodeReach
from allranks.protocol.controls import HelloControl
from allranks.protocol.header import AgentHeader, DialHeader, Header
from allranks.protocol.messages import DialledMessage
from allranks.protocol.node_names import DIALS
from allranks.settings import RunSpec
from allranks.settings.parsers import dial_ports
from allranks.text import join_words, plural

from .dialled import ANY, Listener, Refuse, Seat, own_addresses
from .lent_ssh import DOOR, StartRequest, ask_door, start_what_dials
from .reachable_nodes import listed_cluster
from .ssh import ListedReach, SshTransport, ssh_reach

AS_SSHD_SEES_IT = "$SSH_CONNECTION"  # sshd(8): begins with the address from which the client came
REDIAL_SECONDS = 2.0  # in which a node dials again: it looks after 0.2, 0.5 and 1 s
AT_ONCE = 0.05
LET_GO_SECONDS = 1.0  # for nodes to hear of the end; without it they dial for a lease
GATHERED_SECONDS = 1.0  # in which nodes that cannot dial are named together
MOST_NAMED = 8


@dataclass
class DialledPlace:
    """Where a node dials in, by its index. `instances` are what ssh has started there: one that has come ends those
    before it. `had_channel`: over its connection there was one. `failed`: why the last start has given none."""

    node: Node
    instances: list[str] = field(default_factory=list)
    had_channel: bool = False
    keeps_ssh: bool = False
    failed: DialledMessage = field(default_factory=DialledMessage)


class DialBackTransport(SshTransport):
    """Channels over connections that nodes make, and over ssh to those that cannot.

    `say` gets what a person should know. The listener begins with the first node: before it, `--detach` forks.
    """

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec.launch)
        self.say: Callable[[str], None] = lambda text: None
        self._door = os.environ.pop(DOOR, "")
        self._ports = dial_ports(spec.launch.reach)
        self._lease = spec.limits.lease
        self._secret = secrets.token_bytes(32)
        self._places: dict[int, DialledPlace] = {}
        self._listener: Listener | None = None
        self._port = 0
        self._addresses: list[str] = []
        self._kept: dict[DialledMessage, list[str]] = {}  # nodes that keep ssh, by what they said, until it is shown

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Return the node's connection, after ssh has started what makes it; where it cannot be had, ssh."""
        if node.is_local or not isinstance(header, AgentHeader):
            return await super().connect(node, header, seconds)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        place = self._places.setdefault(node.index, DialledPlace(node))
        listener = self._listening(place)
        if not place.keeps_ssh and listener is not None:
            client = await self._dialled(listener, place, header, deadline)
            if client is not None:
                return client
        if self._door:
            raise NodeFailed(cannot_dial(node.name, place.failed, self._port))
        return await super().connect(node, header, deadline - loop.time())

    async def _dialled(
        self, listener: Listener, place: DialledPlace, header: AgentHeader, deadline: float
    ) -> Client | None:
        loop = asyncio.get_running_loop()
        listener.add_seat(place.node.index)
        if place.instances:
            client = await self._dialled_again(listener, place, header, (deadline - loop.time()) / 3)
            if client is not None:
                return client
        failed = await self._start(place, header, deadline - loop.time())
        client = None
        if not failed.tried and not failed.why:
            client = await _seated(listener, place, header, max(REDIAL_SECONDS, deadline - loop.time()))
            failed = DialledMessage(why="it dialled, and its connection broke")
        place.failed = failed
        if client is None and not self._door:
            self._keep_ssh(place)
        place.had_channel = client is not None
        return client

    async def _dialled_again(
        self, listener: Listener, place: DialledPlace, header: AgentHeader, seconds: float
    ) -> Client | None:
        """Return a new connection of what ssh has started before, which is waited for once."""
        if not place.had_channel:
            return await _seated(listener, place, header, AT_ONCE)
        await listener.leave(place.node.index)  # the former one is silent, or has lost its other end
        client = await _seated(listener, place, header, min(REDIAL_SECONDS, seconds))
        place.had_channel = client is not None
        return client

    async def _start(self, place: DialledPlace, header: AgentHeader, seconds: float) -> DialledMessage:
        """Have ssh start what dials, and return its answer; raise NodeFailed where ssh cannot."""
        node = place.node
        place.instances.append(secrets.token_hex(8))
        order = DialHeader(
            places=tuple((address, self._port) for address in self._addresses),
            rank_from="",
            secret=self._secret.hex(),
            patience=seconds / 2,
            lease=self._lease,
            checks=header.checks,
            tests=header.tests,
            audit=header.audit,
            rank=node.index,
            apart=True,
            instance=place.instances[-1],
            run_tag=f"{header.uid}/{DIALS}{node.index:02d}",
        )
        request = StartRequest(node.name, order, seconds)
        if self._door:
            answer = await ask_door(self._door, request)
        else:
            answer = await start_what_dials(node, self, request)
        if answer.finding is not None:
            raise NodeFailed(answer.finding)
        return answer.said

    # -- the listener ------------------------------------------------------------------------------

    def _listening(self, first: DialledPlace) -> Listener | None:
        """Return the listener, which begins with the first node; None where there can be none."""
        if self._listener is None and self._ports:
            loop = asyncio.get_running_loop()

            def say(text: str) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self.say, text)

            listener = Listener(0, self._secret, self._admit, say)
            listener.add_seat(first.node.index)
            try:
                self._port = listener.start(ANY, *self._ports)
            except UsageError as error:
                self._stay_with_ssh(str(error).partition(". Set")[0])
                return None
            if listener.clear_because:
                listener.finish(0, "", 0.0)
                self._stay_with_ssh(f"connections would not be encrypted, as {listener.clear_because}")
                return None
            reached_by = os.environ.get("SSH_CONNECTION", "").split()[2:3] if self._door else [AS_SSHD_SEES_IT]
            self._addresses = list(dict.fromkeys([*reached_by, *own_addresses()]))
            self._listener = listener
        return self._listener

    def _stay_with_ssh(self, why: str) -> None:
        if self._door:
            raise NodeFailed(cannot_dial("no node", DialledMessage(why=why), 0)._replace(where=Where()))
        self._ports = ()
        self.say(f"all nodes keep their ssh connections, and none dials: {why}")

    def _admit(self, seats: dict[int, Seat], hello: HelloControl, address: str) -> int:
        """Admit what ssh has started last on a node, and what was there before until that comes."""
        place = self._places.get(hello.rank)
        if place is None or hello.rank not in seats or hello.instance not in place.instances:
            raise Refuse(f"{hello.hostname or address} dials for a connection that another one has replaced")
        del place.instances[: place.instances.index(hello.instance)]
        return hello.rank

    def finish(self) -> None:
        """Let all nodes go."""
        if self._listener is not None:
            self._listener.finish(0, "", LET_GO_SECONDS)

    # -- nodes that keep ssh -----------------------------------------------------------------------

    def _keep_ssh(self, place: DialledPlace) -> None:
        place.keeps_ssh = True
        if not self._kept:
            asyncio.get_running_loop().call_later(GATHERED_SECONDS, self._tell_kept)
        self._kept.setdefault(place.failed, []).append(place.node.name)

    def _tell_kept(self) -> None:
        kept = self._kept
        self._kept = {}
        for failed, names in kept.items():
            self.say(kept_sentence(names, failed, self._port))


def kept_sentence(names: list[str], failed: DialledMessage, port: int) -> str:
    """Say which nodes keep ssh, why, and what would have them dial.

    >>> print(kept_sentence(["h2"], DialledMessage("10.0.0.1:4000: Connection timed out"), 4000).partition(" of ")[0])
    h2 cannot dial back (10.0.0.1:4000: Connection timed out), and keeps its ssh connection
    hint: let a firewall pass port 4000
    """
    who = join_words(names, limit=MOST_NAMED)
    keep = plural(len(names), "keeps its ssh connection", "keep their ssh connections")
    if not failed.tried:
        return f"{who} {keep}: {failed.why}"
    return f"{who} cannot dial back ({failed.tried}), and {keep}\nhint: {_let_pass(port)}, or leave it out"


def cannot_dial(node: str, failed: DialledMessage, port: int) -> Finding:
    """Say of a node which has no other way to its controller why it cannot dial it, and what would let it."""
    host = socket.gethostname()
    way = f"let {host} log in to {node} with ssh"
    where = Where(node=node, port=port)
    if not failed.tried:
        return Finding("unknown", "fail", f"{node} cannot dial the controller on {host}: {failed.why}", way, where)
    message = f"{node} cannot dial the controller on {host} ({failed.tried})"
    return Finding("port-blocked", "fail", message, f"{_let_pass(port)}, or {way}", where)


def _let_pass(port: int) -> str:
    return f"let a firewall pass port {port} of {socket.gethostname()} and set --reach dial:{port}"


async def _seated(listener: Listener, place: DialledPlace, header: AgentHeader, seconds: float) -> Client | None:
    try:
        sock = await listener.connect(place.node.index, header, seconds)
    except NodeHungUp:
        return None
    return Client.of_socket(sock) if sock is not None else None


class DialBackReach(ListedReach):
    """How a session reaches nodes that dial back."""

    def __init__(self, spec: RunSpec) -> None:
        self._dial_back = DialBackTransport(spec)
        super().__init__(spec, self._dial_back)

    def begin(self, session: BegunSession) -> None:
        """Let the session hear which nodes cannot dial."""
        self._dial_back.say = session.say_note

    def end(self) -> None:
        """Let all nodes go."""
        self._dial_back.finish()


def find_nodes(spec: RunSpec, spares: int) -> Cluster:
    """Return the nodes of a list: see `engines.find_nodes`."""
    return listed_cluster(spec, None if spares else spec.target.nodes)


def reach(spec: RunSpec, cluster: Cluster) -> NodeReach:
    """Return how this process reaches the nodes of a target: see `engines.reach_nodes`."""
    return DialBackReach(spec) if dial_ports(spec.launch.reach) else ssh_reach(spec)
