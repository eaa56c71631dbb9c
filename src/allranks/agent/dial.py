"""The node's side of a channel that the node itself opens: dial the controller, start the relay, carry frames.

Where no login is possible (Kubernetes pods, tasks of a scheduler, a second terminal), every node dials the node
that coordinates. Records carry control messages (`C` and JSON) or bytes of a channel (`D`, 4 bytes its number).
A connection that breaks is dialled again for as long as the lease lasts; the agent and its ranks do not notice. A call
asks for one more connection, for a command or a fetch of the person at node 0: it has a process of its own here, so
that nothing of it holds up the run.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Optional, Tuple, Union

from allranks.protocol.codec import DecodeError
from allranks.protocol.controls import (
    TO_COORDINATOR,
    TO_NODE,
    CallControl,
    CloseControl,
    DeclinedControl,
    HelloControl,
    OpenControl,
    RefusedControl,
    SignalControl,
    StopControl,
    ToCoordinator,
    ToNode,
    WaitControl,
)
from allranks.protocol.frames import Decoder, FrameError, OutputFrame
from allranks.protocol.header import AgentHeader, FetchHeader
from allranks.protocol.messages import AddressProbe
from allranks.protocol.orders import EndOrder, HelloOrder, ReleaseOrder, pack_order
from allranks.protocol.records import NamedTuple
from allranks.protocol.secure import ForeignError, Handshake, Records, SecureError, pack_control, read_control

from .link import want
from .netfacts import host_name
from .processes import USER_SIGNALS, clear_wake, wake_by_signals
from .rendezvous_check import failure_word

if TYPE_CHECKING:
    from .tls import Encryption

CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
LEAST_SECONDS = 0.1  # for a try at an address, however little time is left
SILENT = 20.0  # seconds without a word after which a connection is taken for dead; beats come every 5
PAUSES = (0.2, 0.5, 1.0, 2.0)
HIGH_WATER = 4 << 20
OVER_SECONDS = 5.0
USER_SIGNALS_KEPT = 16  # of those that come without a connection
STOP_WORDS: Dict[int, str] = {signal.SIGINT: "ctrl-c"}  # of other signals it is sigterm
MOST_TEXT = 2000  # characters of a sentence that the coordinator sends
MOST_TOKEN = 64  # characters of a call's token
USAGE = 2
NODE_FAILED = 4
CTRL_C = 130
SIGTERM_CODE = 143


class DialOutcome(NamedTuple):
    """How it ended: the exit code, and a sentence for the person at this node.

    `tried`: where no coordinator ever answered, the last try at each address, as `rendezvous.probe` words it."""

    exit: int
    message: str
    tried: Tuple[AddressProbe, ...] = ()
    other_secret: bool = False


class DialRefused(Exception):
    """This node does not do what it was asked to; the text says why."""


class CallDeclined(Exception):
    """This node does not answer a call; the text says why. The run is none the worse for it."""


class OtherSecret(Exception):
    """A coordinator answers and does not know this node's secret; the text says where."""


RelayHeader = Union[AgentHeader, FetchHeader]
Spawn = Callable[[RelayHeader], "subprocess.Popen[bytes]"]


class Rules:
    """What a node does with an order before it goes to the agent. This one lets everything pass but calls."""

    leaves_at_once = False  # a signal ends what runs here without a word to the coordinator

    def header(self, header: RelayHeader) -> RelayHeader:
        """Return the header that a relay of this node gets; raise DialRefused."""
        return header

    def reached(self) -> None:
        """See that the coordinator has taken this node."""

    def call(self, token: str) -> None:
        """Dial once more in another process and say the token there; raise CallDeclined."""
        raise CallDeclined("it takes no commands over this connection")

    def down(self, data: bytes) -> bytes:
        """Return the bytes that the agent gets; raise DialRefused."""
        return data

    def up(self, data: bytes) -> None:
        """See bytes from the agent, as they pass."""


class LeavingRules(Rules):
    """Of a process that ssh has started: the session ends once the coordinator has taken the node, or hears why not."""

    leaves_at_once = True

    def __init__(self, session: int) -> None:
        """`session`: the pipe to it."""
        self._session = session

    def reached(self) -> None:
        """Let the session end."""
        self.tell(b"")

    def tell(self, words: bytes) -> None:
        """Let the session end with these words, where it has not yet."""
        if self._session >= 0:
            os.write(self._session, words)
            os.close(self._session)
            self._session = -1


class CallRules(Rules):
    """What a connection that answers a call lets pass: any command, under an agent of its own, and any fetch.

    The run's own agent and processes of other agents stay out of its reach, and the node directory is the node's.
    """

    leaves_at_once = True

    def __init__(self, node_dir: Optional[str]) -> None:
        self._node_dir = node_dir

    def header(self, header: RelayHeader) -> RelayHeader:
        """Return the header of an agent without a past, or that of a fetch; raise DialRefused."""
        if isinstance(header, FetchHeader):
            return header
        if header.mode != "agent":
            raise DialRefused("the relay's mode %r for a command" % header.mode[:40])
        return header._replace(node_dir=self._node_dir, ends=(), engine=False, holder=None)


class EndSignals:
    """Signals that come to this process: those that end what runs here, and those for the ranks."""

    def __init__(self) -> None:
        self.ends: List[int] = []
        self.for_ranks: List[str] = []  # names of signals that the controller does not know of
        self.wake = -1  # of `catch`

    def catch(self) -> None:
        """Take them from now on."""
        self.wake = wake_by_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self.ends.append(got))
        for number in USER_SIGNALS.values():
            signal.signal(number, self._keep)

    def _keep(self, number: int, frame: object) -> None:
        """Keep SIGUSR1 or SIGUSR2 until it is sent to the controller, which passes it on to every rank."""
        if len(self.for_ranks) < USER_SIGNALS_KEPT:
            self.for_ranks += [name for name, value in USER_SIGNALS.items() if value == number]

    def rest(self, seconds: float) -> None:
        """Sleep, but a signal ends it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.wake, selectors.EVENT_READ)
            if selector.select(seconds):
                clear_wake(self.wake)

    def wait_for(self, sock: socket.socket, events: int, end: float) -> None:
        """Wait until a socket is ready; raise OSError at the end, and once a signal has come that ends this."""
        with selectors.DefaultSelector() as selector:
            selector.register(sock, events)
            if self.wake >= 0:
                selector.register(self.wake, selectors.EVENT_READ)
            while not self.ends:
                left = end - time.monotonic()
                if left <= 0:
                    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                ready = [key.fd for key, _ in selector.select(left)]
                if sock.fileno() in ready:
                    return
                if ready:
                    clear_wake(self.wake)
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))


class Connection:
    """A connection after the handshake: records in, and what is to be sent."""

    def __init__(self, sock: socket.socket, records: Records) -> None:
        self.socket = sock
        self.out = bytearray()
        self.received = time.monotonic()  # when anything last came
        self._records = records

    @property
    def is_encrypted(self) -> bool:
        """Whether it is hidden from others on the way."""
        return self._records.is_encrypted

    def tell(self, control: ToCoordinator) -> None:
        """Queue a control message."""
        self.out += self._records.pack(pack_control(TO_COORDINATOR.write(control)))

    def pass_on(self, number: int, data: bytes) -> None:
        """Queue bytes of a channel."""
        self.out += self._records.pack(b"D" + struct.pack(">I", number) + data)

    def receive(self) -> List[bytes]:
        """Give the records that have come; raise EOFError, OSError, SecureError."""
        try:
            data = self.socket.recv(256 << 10)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        self.received = time.monotonic()
        return self._records.feed(data)

    def send(self) -> None:
        """Send what the socket takes now; raise OSError."""
        del self.out[: self.socket.send(memoryview(self.out)[: 256 << 10])]


class Tries:
    """Tries at the addresses of the coordinator. `of_last` are those of the last round, as `rendezvous.probe` words
    them."""

    def __init__(self, places: List[Tuple[str, int]], secret: bytes) -> None:
        self.places = places
        self.signals = EndSignals()
        self.of_last: List[AddressProbe] = []
        self._secret = secret
        self._failures: Dict[Tuple[str, int], OSError] = {}  # of the last try at each place

    @property
    def why(self) -> str:
        """Say why none of the last round came through."""
        return reasons(self.of_last) or "no address"

    def dial(self, begun: bool, give_up: float) -> Optional[Connection]:
        """One try at every address until then (CLOCK_MONOTONIC seconds); raise OtherSecret.

        Once ranks run here, nothing that answers is a reason to leave them.
        """
        self.of_last = []
        for host, port in self.places:
            if self.signals.ends:
                return None
            began = time.monotonic()
            addresses: List[str] = []
            try:
                return self._greet(self._connect(host, port, addresses, give_up), give_up)
            except SecureError as error:
                if not begun and not isinstance(error, ForeignError):
                    raise OtherSecret("%s:%d: %s" % (host, port, error)) from None
                word = "foreign"
                text = str(error)
            except EOFError:
                word = "foreign"
                text = "it hung up during the handshake"
            except OSError as error:
                if self.signals.ends:
                    return None
                word = failure_word(error)
                text = error.strerror or str(error)
            seconds = round(time.monotonic() - began, 4)
            ip = addresses[-1] if addresses else None
            self.of_last.append(AddressProbe(host, False, port, seconds, error=word, text=text, ip=ip))
        return None

    def _connect(self, host: str, port: int, tried: List[str], give_up: float) -> socket.socket:
        failure = OSError("no address")
        for family, kind, proto, _, where in socket.getaddrinfo(host_name(host), port, 0, socket.SOCK_STREAM):
            tried.append(str(where[0]))
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                code = sock.connect_ex(where)
                if code == errno.EINPROGRESS:
                    self.signals.wait_for(sock, selectors.EVENT_WRITE, _end_of(CONNECT_SECONDS, give_up))
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                return sock
            except OSError as error:
                sock.close()
                failure = error
        if failure.errno == errno.ETIMEDOUT:  # the last try may have had less time than an answer takes
            failure = self._failures.get((host, port), failure)
        self._failures[host, port] = failure
        raise failure

    def _greet(self, sock: socket.socket, give_up: float) -> Connection:
        """Shake hands; raise OSError, EOFError, SecureError and then close the connection.

        One limit holds for all of it: who answers there may send a byte now and then.
        """
        end = _end_of(HANDSHAKE_SECONDS, give_up)
        shake = Handshake(self._secret, listens=False, encryption=encryption())
        try:
            sock.sendall(shake.begin())  # some hundred bytes, which the kernel takes
            while not shake.done:
                self.signals.wait_for(sock, selectors.EVENT_READ, end)
                data = sock.recv(4096)
                if not data:
                    raise EOFError
                sock.sendall(shake.feed(data))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, EOFError, SecureError):
            sock.close()
            raise
        return Connection(sock, shake.channel())


def reasons(probes: Iterable[AddressProbe]) -> str:
    """Say of each place why it was not reached."""
    return "; ".join("%s:%d: %s" % (probe.address, probe.port, probe.text) for probe in probes)


def _end_of(seconds: float, give_up: float) -> float:
    """Give the end of a part of dialling, by monotonic time: what is left for all of it may be less."""
    now = time.monotonic()
    return now + min(seconds, max(LEAST_SECONDS, give_up - now))


class Relay:
    """The relay of a channel, which this node starts: the process between the connection and the agent.

    `ends_agent`: the agent ends with what dials. Else its own lease ends it: another controller may have it."""

    def __init__(self, spawn: Spawn, ends_agent: bool = True) -> None:
        self.number = -1  # of the channel
        self.header: Optional[AgentHeader] = None  # of the last that had an agent
        self.to_agent = bytearray()
        self.agent_lives = False  # and has not ended by itself, as far as this showed
        self._spawn = spawn
        self._ends_agent = ends_agent
        self._child: Optional["subprocess.Popen[bytes]"] = None

    @property
    def runs(self) -> bool:
        """True while there is a process."""
        return self._child is not None

    def open(self, number: int, header: RelayHeader) -> None:
        """Start it for a new channel; raise OSError."""
        self.number = number
        self.agent_lives = False
        if isinstance(header, AgentHeader):
            self.header = header
        child = self._child = self._spawn(header)
        self.agent_lives = isinstance(header, AgentHeader)
        for pipe in _pipes_of(child):
            os.set_blocking(pipe, False)

    @property
    def pipes(self) -> Tuple[int, int]:
        """Give its input and output; -1 where there is none."""
        return (-1, -1) if self._child is None else _pipes_of(self._child)

    def read(self) -> Optional[bytes]:
        """Read what the agent says; None at its end."""
        try:
            return os.read(self.pipes[1], 256 << 10) or None
        except BlockingIOError:
            return b""

    def write(self) -> None:
        """Pass on what the pipe takes now."""
        try:
            del self.to_agent[: os.write(self.pipes[0], memoryview(self.to_agent)[: 256 << 10])]
        except BlockingIOError:
            return
        except OSError:
            self.to_agent.clear()  # its end of output will tell

    def end(self) -> None:
        """End the relay, never the agent."""
        child = self._child
        self._child = None
        self.to_agent.clear()
        if child is not None:
            with child:  # which closes its pipes, and waits for it
                child.kill()

    def end_agent(self, reason: str, release: bool = True) -> None:
        """Have this node's agent end its ranks and itself, and wait for it (as a controller would)."""
        if self.header is None or not self._ends_agent:
            return
        try:
            child = self._child = self._spawn(self.header._replace(mode="attach"))
        except OSError:
            return  # its own lease ends it
        assert child.stdin is not None
        try:
            child.stdin.write(pack_order(HelloOrder(lease=10.0)) + pack_order(EndOrder(0.0, reason)))
            child.stdin.flush()
            _await_end(child, release)
        except (OSError, ValueError):
            pass
        finally:
            self.end()


def _pipes_of(child: "subprocess.Popen[bytes]") -> Tuple[int, int]:
    assert child.stdin is not None and child.stdout is not None
    return child.stdin.fileno(), child.stdout.fileno()


def _await_end(child: "subprocess.Popen[bytes]", release: bool) -> None:
    assert child.stdin is not None and child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    decoder = Decoder()
    deadline = time.monotonic() + 15.0
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if not selector.select(0.5):
                continue
            data = os.read(child.stdout.fileno(), 1 << 18)
            if not data:
                return
            kinds = [frame["type"] for frame in decoder.feed(data) if not isinstance(frame, OutputFrame)]
            if "fault" not in kinds and "ended" not in kinds:
                continue
            if not release:
                return
            child.stdin.write(pack_order(ReleaseOrder()))
            child.stdin.flush()
            deadline = min(deadline, time.monotonic() + 2.0)


class Dialler:
    """Dials, and serves the connection until the run is over. `say` shows a line to the person at this node.

    Without a word from the coordinator it goes on for `patience`, and once an agent runs here for `lease` (seconds).
    With `one_signal` a second one ends no more than the first: an engine repeats it, and ends us by SIGKILL when its
    time is up.
    """

    def __init__(
        self,
        tries: Tries,
        hello: HelloControl,
        relay: Relay,
        rules: Rules,
        say: Callable[[str], None],
        *,
        patience: float,
        lease: float,
        one_signal: bool = False,
    ) -> None:
        self._tries = tries
        self._hello = hello
        self._relay = relay
        self._rules = rules
        self._say = say
        self._patience = patience
        self._lease = lease
        self._one_signal = one_signal
        self._signals = tries.signals
        self._connection: Optional[Connection] = None
        self._heard = 0.0  # when the coordinator of this run last said something
        self._over: Optional[DialOutcome] = None
        self._over_at = 0.0
        self._passed_on = False
        self._last_text = ""
        self._cover_told = False

    @property
    def _begun(self) -> bool:
        """An agent has been started here."""
        return self._relay.header is not None

    @property
    def _limit(self) -> float:
        """How long nothing may be heard, in seconds."""
        return self._lease if self._begun else self._patience

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> DialOutcome:
        """Until the controller says that it is over, refuses this node, or stays away for too long."""
        self._signals.catch()
        self._heard = time.monotonic()
        tries = 0
        while True:
            heard = self._heard
            outcome = self._turn()
            if outcome is not None:
                return outcome
            if self._heard > heard:
                tries = 0
            if self._signals.ends:
                return self._leave(self._signals.ends[0])
            limit = self._limit
            if time.monotonic() - self._heard > limit:
                return self._alone(limit)
            self._signals.rest(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _once(self, text: str) -> None:
        if text != self._last_text:
            self._last_text = text
            self._say(text)

    def _turn(self) -> Optional[DialOutcome]:
        """Try every address, and serve what answers; give an outcome where another turn is of no use."""
        try:
            connection = self._tries.dial(self._begun, self._heard + self._limit)
        except OtherSecret as error:
            return DialOutcome(USAGE, "%s. Set the same ALLRANKS_JOIN_SECRET everywhere" % error, other_secret=True)
        if connection is not None:
            outcome = self._serve(connection)
            self._hang_up()
            return outcome
        if not self._signals.ends:
            word = "dialling the coordinator again: " if self._begun else "waiting for the coordinator: "
            self._once(word + self._tries.why)
        return None

    def _tell_cover(self, connection: Connection) -> None:
        """Say once whether others can read what goes over the connections."""
        if self._cover_told or self._hello.call:
            return
        self._cover_told = True
        word = "is encrypted (TLS)"
        if not connection.is_encrypted:
            why = "node 0 cannot encrypt" if encryption() is not None else "this Python has no ssl module"
            word = "is authenticated, not encrypted: " + why
        self._say("the connection to node 0 " + word)

    # -- serving -----------------------------------------------------------------------------------

    def _serve(self, connection: Connection) -> Optional[DialOutcome]:
        self._connection = connection
        self._tell_cover(connection)
        connection.tell(self._hello._replace(begun=self._begun))
        with selectors.PollSelector() as selector:  # relays come and go, and their descriptors' numbers with them
            while True:
                if self._signals.ends:
                    self._pass_signal(connection)
                while self._signals.for_ranks:
                    connection.tell(SignalControl(self._signals.for_ranks.pop(0)))
                if self._over is not None and (not self._relay.runs or time.monotonic() > self._over_at):
                    self._relay.end()
                    if self._relay.agent_lives:  # it was not released: its output may be wanted, its ranks are not
                        self._relay.end_agent("over", release=False)
                    return self._over
                try:
                    self._round(selector, connection)
                except (EOFError, OSError):
                    return self._over
                except (SecureError, FrameError, DecodeError, ValueError, struct.error) as error:
                    self._once("the connection to the coordinator is given up: %s" % error)
                    return self._over
                except DialRefused as error:
                    return self._refuse(str(error))
                if time.monotonic() - connection.received > SILENT:
                    self._once("the coordinator is silent: dialling again")
                    return self._over

    def _round(self, selector: selectors.BaseSelector, connection: Connection) -> None:
        relay = self._relay
        to_child, from_child = relay.pipes
        may_ask = len(relay.to_agent) < HIGH_WATER and len(connection.out) < 2 * HIGH_WATER  # it may never read
        wanted = {
            connection.socket.fileno(): selectors.EVENT_READ * may_ask | selectors.EVENT_WRITE * bool(connection.out),
            from_child: selectors.EVENT_READ * (len(connection.out) < HIGH_WATER),
            to_child: selectors.EVENT_WRITE * bool(relay.to_agent),
            self._signals.wake: selectors.EVENT_READ,
        }
        for fd in [key.fd for key in selector.get_map().values() if key.fd not in wanted]:
            selector.unregister(fd)
        for fd, wished in wanted.items():
            if fd >= 0:
                want(selector, fd, wished)
        for key, events in selector.select(1.0):
            if key.fd == self._signals.wake:
                clear_wake(self._signals.wake)
            elif key.fd == from_child:
                self._from_child(connection)
            elif key.fd == to_child:
                relay.write()
            else:
                if events & selectors.EVENT_READ:
                    self._from_controller(connection)
                if events & selectors.EVENT_WRITE:
                    connection.send()

    def _from_controller(self, connection: Connection) -> None:
        for record in connection.receive():
            if record[:1] == b"C":
                self._obey(TO_NODE.read(read_control(record)), connection)
            elif record[:1] == b"D" and struct.unpack_from(">I", record, 1)[0] == self._relay.number:
                self._heard = time.monotonic()
                self._relay.to_agent += self._rules.down(record[5:])

    def _from_child(self, connection: Connection) -> None:
        data = self._relay.read()
        if data is None:
            self._relay.end()
            self._relay.agent_lives = False
            connection.tell(CloseControl(self._relay.number))
        elif data:
            self._rules.up(data)
            connection.pass_on(self._relay.number, data)

    def _obey(self, control: ToNode, connection: Connection) -> None:
        if isinstance(control, RefusedControl) and self._begun:
            raise SecureError("another run's coordinator answers there (%s)" % one_sentence(control.message))
        self._heard = time.monotonic()
        if isinstance(control, WaitControl):
            self._rules.reached()
            if control.say:
                self._once(one_sentence(control.say))
        elif isinstance(control, OpenControl):
            self._relay.end()
            try:
                self._relay.open(control.number, self._rules.header(control.header))
            except OSError as error:
                text = "the agent could not be started here: %s" % (error.strerror or error)
                self._over = DialOutcome(NODE_FAILED, text)
        elif isinstance(control, CallControl):
            try:
                self._rules.call(control.token)
            except CallDeclined as declined:
                connection.tell(DeclinedControl(control.token[:MOST_TOKEN], str(declined)))
        elif isinstance(control, CloseControl):
            if control.number == self._relay.number:
                self._relay.end()
        else:
            self._over = DialOutcome(control.exit, one_sentence(control.message))
            self._over_at = time.monotonic() + OVER_SECONDS

    # -- ends --------------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.socket.close()
            self._connection = None
        self._relay.end()
        self._relay.number = -1

    def _pass_signal(self, connection: Connection) -> None:
        """Ask the coordinator to end the run in order; a second signal does not wait for that."""
        ends = self._signals.ends
        if self._rules.leaves_at_once or (len(ends) > 1 and not self._one_signal):
            self._over = self._leave(ends[0])
        elif not self._passed_on:
            self._passed_on = True
            connection.tell(StopControl(STOP_WORDS.get(ends[0], "sigterm")))

    def _refuse(self, why: str) -> DialOutcome:
        self._hang_up()
        self._relay.end_agent("refused")
        return DialOutcome(NODE_FAILED, "this node refused an order of the coordinator: " + why)

    def _leave(self, number: int) -> DialOutcome:
        self._hang_up()
        self._relay.end_agent("stop")
        if number == signal.SIGINT:
            return DialOutcome(CTRL_C, "ended by Ctrl-C")
        return DialOutcome(SIGTERM_CODE, "ended by %s" % signal.Signals(number).name)

    def _alone(self, limit: float) -> DialOutcome:
        text = "no coordinator answered at %s within %g s"
        if self._begun:
            self._relay.end_agent("lease")
            text = "nothing was heard from the coordinator (%s) for the lease of %g s: the ranks here are ended"
        text %= ", ".join("%s:%d" % place for place in self._tries.places), limit
        tried = tuple(self._tries.of_last)
        if tried:
            text += " (%s)" % "; ".join("%s: %s" % (probe.address, probe.text) for probe in tried)
        return DialOutcome(NODE_FAILED, text, () if self._begun else tried)


def encryption() -> Optional[Encryption]:
    """Give what hides a connection; None where this interpreter was built without ssl."""
    try:
        from .tls import Encryption  # late: see there
    except ImportError:
        return None
    return Encryption()


def one_sentence(text: str) -> str:
    """Words of the coordinator's, on one line and of bounded length."""
    return "".join(char if char.isprintable() else " " for char in text[:MOST_TEXT])
