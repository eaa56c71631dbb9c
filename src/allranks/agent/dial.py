"""The node's side of a channel that the node itself opens: dial the controller, start the relay, carry frames.

Where no login is possible (Kubernetes pods, tasks of a scheduler, a second terminal), every node dials the node
that coordinates. Records carry control messages (`C` and JSON) or bytes of a channel (`D`, 4 bytes its number).

    node → controller: hello, closed, declined, stop, signal
    controller → node: wait, refused, open, fetch, close, call, over

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
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple, Union

from allranks.protocol.codec import DecodeError
from allranks.protocol.controls import (
    TO_COORDINATOR,
    TO_NODE,
    CallControl,
    CloseControl,
    ClosedControl,
    DeclinedControl,
    FetchControl,
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


class AgentNotStarted(Exception):
    """The agent's process could not be started here; the text is the system's."""


RelayHeader = Union[AgentHeader, FetchHeader]
Spawn = Callable[[RelayHeader], "subprocess.Popen[bytes]"]


class Rules:
    """What a node does with an order before it goes to the agent. This one lets everything pass but calls."""

    def header(self, header: RelayHeader) -> RelayHeader:
        """Return the header that a relay of this node gets; raise DialRefused."""
        return header

    def call(self, token: str) -> None:
        """Dial once more in another process and say the token there; raise CallDeclined."""
        raise CallDeclined("it takes no commands over this connection")

    def down(self, data: bytes) -> bytes:
        """Return the bytes that the agent gets; raise DialRefused."""
        return data

    def up(self, data: bytes) -> None:
        """See bytes from the agent, as they pass."""


class CallRules(Rules):
    """What a connection that answers a call lets pass: any command, under an agent of its own, and any fetch.

    The run's own agent and processes of other agents stay out of its reach, and the node directory is the node's.
    """

    def __init__(self, node_dir: Optional[str]) -> None:
        self._node_dir = node_dir

    def header(self, header: RelayHeader) -> RelayHeader:
        """Return the header of an agent without a past, or that of a fetch; raise DialRefused."""
        if isinstance(header, FetchHeader):
            return header
        if header.mode != "agent":
            raise DialRefused("the relay's mode %r for a command" % header.mode[:40])
        return header._replace(node_dir=self._node_dir, ends=(), engine=False, holder=None)


class Dialler:
    """Dials, and serves the connection until the run is over. `say` shows a line to the person at this node."""

    def __init__(
        self,
        places: List[Tuple[str, int]],
        secret: bytes,
        hello: HelloControl,
        spawn: Spawn,
        rules: Rules,
        patience: float,
        lease: float,
        say: Callable[[str], None],
    ) -> None:
        self._places = places
        self._secret = secret
        self._hello = hello
        self._spawn = spawn
        self._rules = rules
        self._say = say
        self._patience = patience
        self._lease = lease
        self._socket: Optional[socket.socket] = None
        self._records: Optional[Records] = None
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._number = -1
        self._header: Optional[AgentHeader] = None  # of the relay that was started last
        self._out = bytearray()  # to the controller
        self._in = bytearray()  # to the child
        self._heard = 0.0  # when the coordinator of this run last said something
        self._received = 0.0  # when anything last came over this connection
        self._agent_lives = False  # and has not ended by itself, as far as its relay showed
        self._tried: List[AddressProbe] = []
        self._over: Optional[DialOutcome] = None
        self._over_at = 0.0
        self._signals: List[int] = []
        self._failures: Dict[Tuple[str, int], OSError] = {}  # of the last try at each place
        self._for_the_ranks: List[str] = []  # names of signals that the controller does not know of
        self._passed_on = False
        self.one_signal = False  # an engine repeats it, and ends us by SIGKILL when its time is up
        self.leaves_at_once = False  # a signal ends what runs here without a word to the coordinator
        self._last_text = ""
        self._cover_told = False
        self._wake = -1  # of `run`

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> DialOutcome:
        """Until the controller says that it is over, refuses this node, or stays away for too long."""
        self._catch_signals()
        self._heard = time.monotonic()
        tries = 0
        while True:
            outcome = self._dial()
            if outcome is not None:
                return outcome
            if self._socket is not None:
                heard = self._heard
                outcome = self._serve()
                self._hang_up()
                if self._heard > heard:
                    tries = 0
                if outcome is not None:
                    return outcome
            if self._signals:
                return self._leave(self._signals[0])
            limit = self._lease if self._begun else self._patience
            if time.monotonic() - self._heard > limit:
                return self._alone(limit)
            self._rest(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _catch_signals(self) -> None:
        self._wake = wake_by_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._signals.append(got))
        for number in USER_SIGNALS.values():
            signal.signal(number, self._keep_for_ranks)

    def _keep_for_ranks(self, number: int, frame: object) -> None:
        """Keep SIGUSR1 or SIGUSR2 until it is sent to the controller, which passes it on to every rank."""
        if len(self._for_the_ranks) < USER_SIGNALS_KEPT:
            self._for_the_ranks += [name for name, value in USER_SIGNALS.items() if value == number]

    def _rest(self, seconds: float) -> None:
        """Sleeps, but a signal ends it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            if selector.select(seconds):
                clear_wake(self._wake)

    def _once(self, text: str) -> None:
        if text != self._last_text:
            self._last_text = text
            self._say(text)

    # -- dialling ----------------------------------------------------------------------------------

    def _dial(self) -> Optional[DialOutcome]:
        """One try at every address; an outcome only where another try is of no use.

        Once ranks run here, nothing that answers is a reason to leave them: it is dialled on until the lease ends."""
        self._tried = []
        for host, port in self._places:
            if self._signals:
                return None
            began = time.monotonic()
            addresses: List[str] = []
            try:
                self._greet(self._connect(host, port, addresses))
                return None
            except SecureError as error:
                if not self._begun and not isinstance(error, ForeignError):
                    text = "%s:%d: %s. Set the same ALLRANKS_JOIN_SECRET everywhere" % (host, port, error)
                    return DialOutcome(USAGE, text, other_secret=True)
                word = "foreign"
                text = str(error)
            except EOFError:
                word = "foreign"
                text = "it hung up during the handshake"
            except OSError as error:
                if self._signals:
                    return None
                word = failure_word(error)
                text = error.strerror or str(error)
            seconds = round(time.monotonic() - began, 4)
            ip = addresses[-1] if addresses else None
            self._tried.append(AddressProbe(host, False, port, seconds, error=word, text=text, ip=ip))
        why = "; ".join("%s:%d: %s" % (probe.address, probe.port, probe.text) for probe in self._tried) or "no address"
        self._once(("dialling the coordinator again: " if self._begun else "waiting for the coordinator: ") + why)
        return None

    def _connect(self, host: str, port: int, tried: List[str]) -> socket.socket:
        """Connect to the first address of a name that answers, and add those tried; raise OSError."""
        failure = OSError("no address")
        for family, kind, proto, _, where in socket.getaddrinfo(host_name(host), port, 0, socket.SOCK_STREAM):
            tried.append(str(where[0]))
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                code = sock.connect_ex(where)
                if code == errno.EINPROGRESS:
                    self._await(sock, selectors.EVENT_WRITE, self._until(CONNECT_SECONDS))
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

    def _until(self, seconds: float) -> float:
        """Give the end of a part of dialling, by monotonic time: what is left for all of it may be less."""
        left = self._heard + (self._lease if self._begun else self._patience) - time.monotonic()
        return time.monotonic() + min(seconds, max(LEAST_SECONDS, left))

    def _await(self, sock: socket.socket, events: int, end: float) -> None:
        """Wait until a socket is ready; raise OSError at the end, and once a signal has come."""
        with selectors.DefaultSelector() as selector:
            selector.register(sock, events)
            if self._wake >= 0:
                selector.register(self._wake, selectors.EVENT_READ)
            while not self._signals:
                left = end - time.monotonic()
                if left <= 0:
                    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                ready = [key.fd for key, _ in selector.select(left)]
                if sock.fileno() in ready:
                    return
                if ready:
                    clear_wake(self._wake)
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    def _greet(self, sock: socket.socket) -> None:
        """Handshake and hello; raises OSError, EOFError, SecureError and then closes the connection.

        One limit holds for all of it: who answers there may send a byte now and then.
        """
        end = self._until(HANDSHAKE_SECONDS)
        encryption = _encryption()
        shake = Handshake(self._secret, listens=False, encryption=encryption)
        try:
            sock.sendall(shake.begin())  # some hundred bytes, which the kernel takes
            while not shake.done:
                self._await(sock, selectors.EVENT_READ, end)
                data = sock.recv(4096)
                if not data:
                    raise EOFError
                sock.sendall(shake.feed(data))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, EOFError, SecureError):
            sock.close()
            raise
        self._socket, self._records = sock, shake.channel()
        self._tell_cover(self._records.is_encrypted, encryption is not None)
        self._received = time.monotonic()
        self._out.clear()
        self._tell(self._hello._replace(begun=self._begun))

    def _tell_cover(self, is_encrypted: bool, can_encrypt: bool) -> None:
        """Say once whether others can read what goes over the connections."""
        if self._cover_told or self._hello.call:
            return
        self._cover_told = True
        word = "is encrypted (TLS)"
        if not is_encrypted:
            why = "node 0 cannot encrypt" if can_encrypt else "this Python has no ssl module"
            word = "is authenticated, not encrypted: " + why
        self._say("the connection to node 0 " + word)

    # -- serving -----------------------------------------------------------------------------------

    def _serve(self) -> Optional[DialOutcome]:
        """Carries bytes until the connection breaks (None) or it is over."""
        with selectors.PollSelector() as selector:  # relays come and go, and their descriptors' numbers with them
            while True:
                if self._signals:
                    self._pass_signal()
                while self._for_the_ranks:
                    self._tell(SignalControl(self._for_the_ranks.pop(0)))
                if self._over is not None and (self._child is None or time.monotonic() > self._over_at):
                    self._end_child()
                    if self._agent_lives:  # it was not released: its output may be wanted, its ranks are not
                        self._end_agent(0.0, "over", release=False)
                    return self._over
                try:
                    self._round(selector)
                except (EOFError, OSError):
                    return self._over
                except (SecureError, FrameError, DecodeError, ValueError, struct.error) as error:
                    self._once("the connection to the coordinator is given up: %s" % error)
                    return self._over
                except DialRefused as error:
                    return self._refuse(str(error))
                except AgentNotStarted as error:
                    self._hang_up()
                    return DialOutcome(NODE_FAILED, "the agent could not be started here: %s" % error)
                if time.monotonic() - self._received > SILENT:
                    self._once("the coordinator is silent: dialling again")
                    return self._over

    def _round(self, selector: selectors.BaseSelector) -> None:
        assert self._socket is not None
        child_in = child_out = -1
        if self._child is not None:
            assert self._child.stdin is not None and self._child.stdout is not None
            child_in = self._child.stdin.fileno()
            child_out = self._child.stdout.fileno()
        wanted = {
            self._socket.fileno(): (
                len(self._in) < HIGH_WATER and len(self._out) < 2 * HIGH_WATER,  # it may ask and never read
                bool(self._out),
            ),
            child_out: (len(self._out) < HIGH_WATER, False),
            child_in: (False, bool(self._in)),
            self._wake: (True, False),
        }
        _want(selector, wanted)
        for key, events in selector.select(1.0):
            if key.fd == self._wake:
                clear_wake(self._wake)
            elif key.fd == child_out:
                self._from_child(child_out)
            elif key.fd == child_in:
                self._to_child()
            else:
                if events & selectors.EVENT_READ:
                    self._from_controller()
                if events & selectors.EVENT_WRITE and self._socket is not None:
                    del self._out[: self._socket.send(memoryview(self._out)[: 256 << 10])]

    def _from_controller(self) -> None:
        assert self._socket is not None and self._records is not None
        try:
            data = self._socket.recv(256 << 10)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        self._received = time.monotonic()
        for record in self._records.feed(data):
            if record[:1] == b"C":
                self._obey(TO_NODE.read(read_control(record)))
            elif record[:1] == b"D" and struct.unpack_from(">I", record, 1)[0] == self._number:
                self._heard = time.monotonic()
                self._in += self._rules.down(record[5:])

    def _obey(self, control: ToNode) -> None:
        """Do as the coordinator says; raise SecureError, DialRefused, AgentNotStarted."""
        if isinstance(control, RefusedControl) and self._begun:
            raise SecureError("another run's coordinator answers there (%s)" % one_sentence(control.message))
        self._heard = time.monotonic()
        if isinstance(control, WaitControl):
            if control.say:
                self._once(one_sentence(control.say))
        elif isinstance(control, (OpenControl, FetchControl)):
            self._open(control)
        elif isinstance(control, CallControl):
            self._call(control.token)
        elif isinstance(control, CloseControl):
            if control.number == self._number:
                self._end_child()
        else:
            self._over = DialOutcome(control.exit, one_sentence(control.message))
            self._over_at = time.monotonic() + OVER_SECONDS

    def _call(self, token: str) -> None:
        try:
            self._rules.call(token)
        except CallDeclined as declined:
            self._tell(DeclinedControl(token[:MOST_TOKEN], str(declined)))

    def _open(self, control: Union[OpenControl, FetchControl]) -> None:
        """Open a new channel with a relay of this node's own. Raise DialRefused, AgentNotStarted."""
        self._end_child()
        header = self._rules.header(control.header)
        self._number = control.number
        has_agent = isinstance(header, AgentHeader)
        if isinstance(header, AgentHeader):
            self._header = header
        try:
            child = self._child = self._spawn(header)
        except OSError as error:
            raise AgentNotStarted(error.strerror or str(error)) from None
        self._agent_lives = has_agent
        assert child.stdin is not None and child.stdout is not None
        for pipe in (child.stdin, child.stdout):
            os.set_blocking(pipe.fileno(), False)

    def _from_child(self, fd: int) -> None:
        try:
            data = os.read(fd, 256 << 10)
        except BlockingIOError:
            return
        if not data:
            number = self._number
            self._end_child()
            self._agent_lives = False
            self._tell(ClosedControl(number))
            return
        self._rules.up(data)
        assert self._records is not None
        self._out += self._records.pack(b"D" + struct.pack(">I", self._number) + data)

    def _to_child(self) -> None:
        assert self._child is not None and self._child.stdin is not None
        try:
            del self._in[: os.write(self._child.stdin.fileno(), memoryview(self._in)[: 256 << 10])]
        except BlockingIOError:
            return
        except OSError:
            self._in.clear()  # its end of output will tell

    @property
    def _begun(self) -> bool:
        """An agent has been started here."""
        return self._header is not None

    def _tell(self, control: ToCoordinator) -> None:
        assert self._records is not None
        self._out += self._records.pack(pack_control(TO_COORDINATOR.write(control)))

    # -- ends --------------------------------------------------------------------------------------

    def _end_child(self) -> None:
        """End the relay, never the agent."""
        child = self._child
        self._child = None
        self._in.clear()
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        if child.poll() is None:
            child.kill()
        child.wait()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._records = None
        self._end_child()
        self._number = -1

    def _pass_signal(self) -> None:
        """Ask the coordinator to end the run in order; a second signal does not wait for that."""
        if self.leaves_at_once or (len(self._signals) > 1 and not self.one_signal):
            self._over = self._leave(self._signals[0])
        elif not self._passed_on:
            self._passed_on = True
            self._tell(StopControl(STOP_WORDS.get(self._signals[0], "sigterm")))

    def _refuse(self, why: str) -> DialOutcome:
        """End what runs here, because of an order that this node does not carry out."""
        self._hang_up()
        self._end_agent(0.0, "refused")
        return DialOutcome(NODE_FAILED, "this node refused an order of the coordinator: " + why)

    def _leave(self, number: int) -> DialOutcome:
        self._hang_up()
        self._end_agent(0.0, "stop")
        if number == signal.SIGINT:
            return DialOutcome(CTRL_C, "ended by Ctrl-C")
        return DialOutcome(SIGTERM_CODE, "ended by %s" % signal.Signals(number).name)

    def _alone(self, limit: float) -> DialOutcome:
        where = ", ".join("%s:%d" % place for place in self._places)
        if not self._begun:
            tried = tuple(self._tried)
            reasons = ["%s: %s" % (probe.address, probe.text) for probe in tried]
            text = "no coordinator answered at %s within %g s" % (where, limit)
            return DialOutcome(NODE_FAILED, _with_reasons(text, reasons), tried)
        self._end_agent(0.0, "lease")
        text = "nothing was heard from the coordinator (%s) for the lease of %g s: the ranks here are ended"
        reasons = [str(probe.text) for probe in self._tried]
        return DialOutcome(NODE_FAILED, _with_reasons(text % (where, limit), reasons))

    def _end_agent(self, grace: float, reason: str, release: bool = True) -> None:
        """Has this node's agent end its ranks and itself, and waits for it (as a controller would)."""
        if self._header is None:
            return
        try:
            child = self._spawn(self._header._replace(mode="attach"))
        except OSError:
            return  # its own lease ends it
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(pack_order(HelloOrder(lease=10.0)) + pack_order(EndOrder(grace, reason)))
            child.stdin.flush()
            self._await_end(child, release)
        except (OSError, ValueError):
            pass
        finally:
            self._child = child
            self._end_child()

    def _await_end(self, child: "subprocess.Popen[bytes]", release: bool) -> None:
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


def _encryption() -> Optional[Encryption]:
    """None where this interpreter was built without ssl."""
    try:
        from .tls import Encryption  # late: see there
    except ImportError:
        return None
    return Encryption()


def _with_reasons(text: str, reasons: List[str]) -> str:
    if not reasons:
        return text
    return "%s (%s)" % (text, "; ".join(reasons))


def one_sentence(text: str) -> str:
    """Words of the coordinator's, on one line and of bounded length."""
    return "".join(char if char.isprintable() else " " for char in text[:MOST_TEXT])


def _want(selector: selectors.BaseSelector, wanted: Dict[int, Tuple[bool, bool]]) -> None:
    """Make the selector watch exactly what is wanted: descriptor → (read, write)."""
    for fd in [key.fd for key in selector.get_map().values() if key.fd not in wanted]:
        selector.unregister(fd)
    for fd, (read, write) in wanted.items():
        if fd >= 0:
            want(selector, fd, selectors.EVENT_READ * read | selectors.EVENT_WRITE * write)
