"""Nodes that dial in: a listener that admits them, and a transport whose channels are their connections (IO).

The listener lives in a thread with a loop of its own, from before the first node is there until the last one
has heard how the run ended. Nothing of a connection is looked at before its handshake is over, and each
peer that fails it is reported once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from allranks.agent.dial import HANDSHAKE_SECONDS, one_sentence
from allranks.agent.files import text_of_errno
from allranks.agent.netfacts import interfaces
from allranks.agent.processes import USER_SIGNALS
from allranks.cluster import Node
from allranks.errors import UsageError
from allranks.gang.transport import Client, NodeHungUp
from allranks.protocol.controls import (
    TO_COORDINATOR,
    TO_NODE,
    CallControl,
    CloseControl,
    DeclinedControl,
    HelloControl,
    OpenControl,
    OverControl,
    RefusedControl,
    SignalControl,
    StopControl,
    ToCoordinator,
    ToNode,
    WaitControl,
)
from allranks.protocol.foreign import clean_name
from allranks.protocol.header import AgentHeader, FetchHeader, Header
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.secure import Handshake, Records, SecureError, pack_control, read_control
from allranks.settings.runspec import Launch

from .ssh import SshTransport

if TYPE_CHECKING:
    from allranks.agent.tls import Encryption

HELLO_LIMIT = 1 << 20
STRANGERS_AT_ONCE = 256  # connections that have not proved themselves yet; the oldest goes for a new one
STRANGERS_OF_ONE = 64  # of them from one address
# Connections taken in one round of the loop. It is a small part of those of one address, so that each is there for some
# rounds, in which it can prove itself: more wait in the kernel, in their order.
ACCEPTED_AT_ONCE = 8
WAITING = 512
REPORTED = 1000  # refusals that are shown, each once
MOST_LETTERS = 64  # of the name of a process
STOPS = {"ctrl-c": "SIGINT", "sigterm": "SIGTERM"}  # the signal of each word by which a node asks for the end
BEAT_SECONDS = 5.0
REDIAL_SECONDS = 5.0  # a node that hung up is back by then, where its process lives and its host can be reached
LOOK_EVERY = 1.0
ANSWER_SECONDS = 1.0  # in which a host answers
# A listener for each family: at port 0 asyncio gives a listener of both two ports, in an order that chance decides.
ANY = ("0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "::1")
# A machine without IPv6. From 3.12 on asyncio's error of no address at all has no errno.
NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, None)
READ = 256 << 10
MAKE_CERTIFICATE = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
    "-days", "36500", "-subj", "/CN=allranks",
)  # fmt: skip
Result = TypeVar("Result")


def own_encryption() -> tuple[Encryption | None, str]:
    """Make a certificate for one listener, which no file keeps; else None, and why there is none."""
    try:
        from allranks.agent.tls import Encryption  # late: an interpreter may be built without ssl
    except ImportError:
        return None, "this Python has no ssl module"
    with tempfile.TemporaryDirectory(prefix="allranks-") as place:
        certificate, key = f"{place}/certificate", f"{place}/key"
        try:
            subprocess.run([*MAKE_CERTIFICATE, "-keyout", key, "-out", certificate], capture_output=True, timeout=10.0,
                           stdin=subprocess.DEVNULL, check=True)  # fmt: skip
            return Encryption(certificate, key), ""
        except FileNotFoundError:
            return None, "openssl is not installed here"
        except (OSError, subprocess.SubprocessError) as error:
            return None, f"openssl made no certificate here ({type(error).__name__})"


def own_addresses() -> list[str]:
    """List this machine's addresses, of interfaces that are up; the loopback only where it is the only one."""
    reachable = []
    loopback = []
    for item in interfaces():
        for address in item.addresses or ():
            if item.loopback:
                loopback.append(address.address)
            elif item.up and item.running and address.scope == "global":
                reachable.append(address.address)
    return reachable or loopback


class Refuse(Exception):
    """A node is not admitted; the text is sent to it and shown to the person at the coordinator."""


class NotYet(Exception):
    """A node has to come again a moment later; the text is shown there."""


class Declined(Exception):
    """A node does not answer a call; the text has its words."""


def read_hello(record: bytes) -> HelloControl:
    """Decode a node's first record; raise SecureError. A name that is none of a host's is left out."""
    try:
        hello = TO_COORDINATOR.read(read_control(record))
    except DecodeError as error:
        raise SecureError(f"its first message is not a hello with a node rank ({error})") from None
    if not isinstance(hello, HelloControl):
        raise SecureError("its first message is not a hello with a node rank")
    return hello._replace(hostname=clean_name(hello.hostname), instance=hello.instance[:MOST_LETTERS])


_BEFORE_HELLO = HelloControl(-1)


@dataclass
class Seat:
    """A node rank: who sits there, and its present connection. `is_vacant`: it is lost, and awaited for an attempt."""

    rank: int
    hello: HelloControl = _BEFORE_HELLO
    address: str = ""
    line: Line | None = None
    taken: bool = False
    is_vacant: bool = False
    left_from: tuple[str, int] | None = None  # the peer's end of a connection that was closed from there,
    left_at: float = 0.0  # by the time of the listener's loop


class Line:
    """An authenticated connection of a node, in the listener's loop. `is_call`: it ends with its one channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, records: Records) -> None:
        self.is_call = False
        self.peer: tuple[str, int] = (writer.get_extra_info("peername") or ("?", 0))[:2]
        self._reader = reader
        self._writer = writer
        self._records = records
        self._inner: asyncio.StreamWriter | None = None
        self._number = 0
        self._pump: asyncio.Task[None] | None = None
        self.closed = False

    def tell(self, control: ToNode) -> None:
        """Send a control message; do nothing on a broken connection."""
        if not self.closed:
            self._writer.write(self._records.pack(pack_control(TO_NODE.write(control))))

    async def part(self, control: ToNode) -> None:
        """Send a last control message, which the node reads before the connection ends."""
        self.tell(control)
        await self.flush()

    async def flush(self) -> None:
        """Wait until what was sent has been handed to the kernel, for 2 seconds at most."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 2.0)

    async def next(self) -> list[bytes]:
        """Return the records that have come; raise EOFError, OSError, SecureError."""
        records = self._records.feed(b"")
        while not records:
            data = await self._reader.read(READ)
            if not data:
                raise EOFError
            records = self._records.feed(data)
        return records

    async def open(self, header: AgentHeader) -> socket.socket:
        """Open a new channel, for which the node starts a relay; return this side's end."""
        await self.shut()
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self.carry(header, reader, writer)
        return theirs

    def carry(
        self, header: AgentHeader | FetchHeader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Open a channel, for which the node starts a relay, between that and this side's end."""
        self._inner = writer
        self._number += 1
        self.tell(OpenControl(self._number, header))
        self._pump = asyncio.get_running_loop().create_task(self._carry(reader, self._number))

    async def _carry(self, reader: asyncio.StreamReader, number: int) -> None:
        """Carry bytes of the controller to the node, until it closes the channel."""
        with contextlib.suppress(OSError):
            while data := await reader.read(READ):
                self._writer.write(self._records.pack(b"D" + struct.pack(">I", number) + data))
                await self._writer.drain()
        if number == self._number:
            self.tell(OverControl(0) if self.is_call else CloseControl(number))

    async def deliver(self, record: bytes) -> None:
        """Carry bytes of the node to the controller; drop those of an older channel."""
        if self._inner is not None and struct.unpack_from(">I", record, 1)[0] == self._number:
            with contextlib.suppress(OSError):
                self._inner.write(record[5:])
                await self._inner.drain()

    async def shut(self, number: int | None = None) -> None:
        """End the channel, where it has this number, and not the connection."""
        if number is not None and number != self._number:
            return
        if number is not None and self.is_call:
            self.tell(OverControl(0))
        inner = self._inner
        self._inner = None
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        if inner is not None:
            inner.close()

    async def end(self) -> None:
        """End the channel and the connection."""
        self.closed = True
        await self.shut()
        self._writer.close()


@dataclass
class Stranger:
    """A connection that has not proved itself yet; `has_greeted`: it has begun to."""

    peer: str
    writer: asyncio.StreamWriter
    has_greeted: bool = False


class Listener:
    """Admits `count - 1` nodes (rank 0 is this one). `admit(seats, hello, address)` gives the rank or raises Refuse.

    `report` is called, from the listener's thread, with what a person should know; `stopped` with the reason when a
    node asks for the run to end; `signalled` with the node's rank and USR1 or USR2 when it got a signal for the ranks.
    """

    def __init__(
        self,
        count: int,
        secret: bytes,
        admit: Callable[[dict[int, Seat], HelloControl, str], int],
        report: Callable[[str], None],
        first: int = 1,
    ) -> None:
        self.seats = {rank: Seat(rank) for rank in range(first, count)}
        self.stopped: Callable[[str], None] = lambda reason: None
        self.signalled: Callable[[int, str], None] = lambda rank, name: None
        self._secret = secret
        self._admit = admit
        self._say = report
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="listener", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._strangers: list[Stranger] = []  # the oldest first
        self._calls: dict[tuple[int, str], asyncio.Future[Line]] = {}  # by node and token: those not answered yet
        self._answers: set[Line] = set()  # connections that answer calls
        self._reported: set[str] = set()
        self.refusals: list[str] = []  # of connections that did not prove themselves, a sentence for each address
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over: OverControl | None = None
        self._encryption: Encryption | None = None
        self.clear_because = ""

    # -- from the caller's thread ------------------------------------------------------------------

    def start(self, hosts: Sequence[str], *ports: int) -> int:
        """Listen at the addresses ANY or LOOPBACK, at the first port that can be had (0: any), and return it.

        Raise UsageError where the port cannot be had. Afterwards `clear_because` is empty where nodes can encrypt.
        """
        if self.seats:
            self._encryption, self.clear_because = own_encryption()
        self._thread.start()
        for port in ports:
            try:
                return self._run(self._listen(hosts, port))
            except OSError as error:
                why = f"port {port} cannot be listened on: {text_of_errno(error)}"
        raise UsageError(f"{why}. Set --port")

    def wait(
        self, deadline: float, report: Callable[[list[int]], None], given_up: Callable[[], bool] = lambda: False
    ) -> list[int]:
        """Wait until every seat is taken, `deadline` (monotonic) has come or it is given up; list the missing ranks."""
        missing = self.missing()
        report(missing)
        while missing and not given_up() and time.monotonic() < deadline:
            self._run(self._wait_change(min(1.0, max(0.0, deadline - time.monotonic()))))
            now = self.missing()
            if now != missing:
                report(now)
            missing = now
        return missing

    def missing(self) -> list[int]:
        """List the ranks whose seats have no connection."""
        return [s.rank for s in self.seats.values() if s.line is None]

    def add_seat(self, rank: int) -> None:
        """Wait for one more node."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.seats.setdefault, rank, Seat(rank))
        else:
            self.seats[rank] = Seat(rank)

    async def leave(self, rank: int) -> None:
        """End a node's connection, where it has one: it dials again if it can. For any loop."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._leave(rank), self._loop))

    def say(self, text: str) -> None:
        """Send a line to every node that is there."""
        self._run(self._broadcast(WaitControl(text)))

    def finish(self, exit_code: int, message: str, patience: float = 5.0) -> None:
        """Tell every node how it ended, wait some seconds for them to go, and stop listening."""
        if self._thread.is_alive():
            self._run(self._finish(OverControl(exit_code, message), patience))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)

    async def connect(self, rank: int, header: AgentHeader, seconds: float) -> socket.socket | None:
        """Open a channel to a node once it is there; None where it does not come in time, NodeHungUp where it has left.

        For any loop.
        """
        future = asyncio.run_coroutine_threadsafe(self._connect(rank, header, seconds), self._loop)
        return await asyncio.wrap_future(future)

    def serve(self, start: Coroutine[Any, Any, asyncio.Server]) -> None:
        """Have another server in this loop, until `finish`. Raise OSError where it cannot be started."""
        self._servers.append(self._run(start))

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # -- in the listener's loop --------------------------------------------------------------------

    async def _listen(self, hosts: Sequence[str], port: int) -> int:
        for host in hosts:
            try:
                server = await asyncio.start_server(self._accept, host, port, backlog=ACCEPTED_AT_ONCE, limit=1 << 20)
            except OSError as error:
                if self._servers and error.errno in NO_SUCH_ADDRESS:
                    continue
                while self._servers:
                    self._servers.pop().close()
                raise
            for listening in server.sockets:
                with listening.dup() as same:
                    same.listen(WAITING)
            self._servers.append(server)
            port = port or int(server.sockets[0].getsockname()[1])
        self.keep(self._loop.create_task(self._beat()))
        return port

    def keep(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel a task of this loop, if it is still there, once the run is over."""
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._broadcast(WaitControl())
            for answer in self._answers:
                answer.tell(WaitControl())

    async def _broadcast(self, control: ToNode) -> None:
        for seat in self.seats.values():
            if seat.line is not None:
                seat.line.tell(control)

    async def _wait_change(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection until it ends, or the run is over: asyncio would print a traceback of a cancelled task."""
        self.keep(asyncio.current_task())
        try:
            await self._take_connection(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()

    async def _take_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = (writer.get_extra_info("peername") or ("?",))[0]
        stranger = self._admit_stranger(peer, writer)
        try:
            records = await asyncio.wait_for(self._shake(stranger, reader), HANDSHAKE_SECONDS)
            line = Line(reader, writer, records)
            first, *rest = await asyncio.wait_for(line.next(), HANDSHAKE_SECONDS)
            if len(first) > HELLO_LIMIT:
                raise SecureError("its first word is too long")
            hello = read_hello(first)
            if self._encryption is not None and not records.is_encrypted:
                self._say_once(f"the connection of node {hello.rank} is not encrypted: its Python has no ssl module")
        except (SecureError, EOFError, OSError, asyncio.TimeoutError) as error:
            self._report(peer, error)
            writer.close()
            return
        finally:
            if stranger in self._strangers:
                self._strangers.remove(stranger)
        if hello.call:
            await self._answered(line, hello, rest)
        else:
            await self._serve(line, hello, peer, rest)

    def _admit_stranger(self, peer: str, writer: asyncio.StreamWriter) -> Stranger:
        """Add a stranger. Where there are too many one goes, of this address, else of that with most.

        It is the oldest of those that have not begun to prove themselves, else the oldest of all.
        """
        count = Counter(stranger.peer for stranger in self._strangers)
        crowded = None
        if count[peer] >= STRANGERS_OF_ONE:
            crowded = peer
        elif len(self._strangers) >= STRANGERS_AT_ONCE:
            crowded = count.most_common(1)[0][0]
        theirs = [stranger for stranger in self._strangers if stranger.peer == crowded]
        oldest = next((stranger for stranger in theirs if not stranger.has_greeted), next(iter(theirs), None))
        if oldest is not None:
            self._strangers.remove(oldest)
            oldest.writer.transport.abort()
        stranger = Stranger(peer, writer)
        self._strangers.append(stranger)
        return stranger

    async def _shake(self, stranger: Stranger, reader: asyncio.StreamReader) -> Records:
        shake = Handshake(self._secret, listens=True, encryption=self._encryption)
        while not shake.done:
            data = await reader.read(512)
            if not data:
                raise EOFError
            answer = shake.feed(data)
            stranger.has_greeted = stranger.has_greeted or bool(answer)
            stranger.writer.write(answer)
        return shake.channel()

    def _report(self, peer: str, error: BaseException) -> None:
        why = "it did not prove itself in time"
        if isinstance(error, SecureError):
            why = str(error)
        elif isinstance(error, EOFError):
            why = "it ended the handshake, as one does that has another secret"
        sentence = f"a connection from {peer} was refused: {why}"
        if self._say_once(sentence, peer):
            self.refusals.append(sentence)

    def _say_once(self, text: str, about: str = "") -> bool:
        """Say a sentence, unless it was said, or another one `about` the same; tell whether it was."""
        if {text, about} & self._reported or len(self._reported) >= REPORTED:
            return False
        self._reported.add(about or text)
        self._say(text)
        return True

    async def _serve(self, line: Line, hello: HelloControl, peer: str, rest: list[bytes]) -> None:
        """Give a node its seat, and carry what it sends until the connection ends."""
        seat = None
        try:
            seat = await self._seat(line, hello, peer)
            while seat is not None and seat.line is line:
                for record in rest:
                    await self._take(seat, line, record)
                rest = await line.next()
        except (EOFError, ConnectionResetError):
            if seat is not None:
                seat.left_from = line.peer
                seat.left_at = self._loop.time()
        except (SecureError, OSError, struct.error):
            pass
        finally:
            await line.end()
            if seat is not None and seat.line is line:
                seat.line = None
                self._changed.set()

    async def _seat(self, line: Line, hello: HelloControl, peer: str) -> Seat | None:
        parting: ToNode | None = self._over
        try:
            seat = self.seats[self._admit(self.seats, hello, peer)]
        except NotYet as error:
            parting = WaitControl(str(error))
        except Refuse as error:
            parting = RefusedControl(2, str(error))
            self._say_once(str(error))  # it may come again and again
        if parting is not None:
            await line.part(parting)
            return None
        if seat.line is not None:
            await seat.line.end()
        seat.hello = hello
        seat.address = peer
        seat.line = line
        seat.left_from = None
        seat.is_vacant = False
        seat.taken = True
        line.tell(WaitControl())  # so that it knows whom it has reached
        self._changed.set()
        return seat

    async def _take(self, seat: Seat, line: Line, record: bytes) -> None:
        control = await self._control(line, record)
        if isinstance(control, StopControl) and control.reason in STOPS:
            self.stopped(control.reason)
        elif isinstance(control, SignalControl) and control.name in USER_SIGNALS:
            self.signalled(seat.rank, control.name)
        elif isinstance(control, DeclinedControl):
            call = self._calls.get((seat.rank, control.token))
            if call is not None and not call.done():
                call.set_exception(Declined(one_sentence(control.message)))

    @staticmethod
    async def _control(line: Line, record: bytes) -> ToCoordinator | None:
        """Carry what belongs to the channel of a connection; return the control message of another record."""
        if record[:1] == b"D":
            await line.deliver(record)
            return None
        try:
            control = TO_COORDINATOR.read(read_control(record))
        except DecodeError:
            return None
        if isinstance(control, CloseControl):
            await line.shut(control.number)
        return control

    # -- calls -------------------------------------------------------------------------------------

    async def call(self, rank: int, seconds: float) -> Line:
        """Have a node dial once more, for a channel beside the run's, and return that connection.

        Raise Declined, asyncio.TimeoutError. In the listener's loop.
        """
        token = secrets.token_hex(16)
        call = self._calls[rank, token] = self._loop.create_future()
        try:
            deadline = self._loop.time() + seconds
            line = await self._line_of(rank, deadline)
            if line is None:
                raise asyncio.TimeoutError
            line.tell(CallControl(token))
            return await asyncio.wait_for(call, deadline - self._loop.time())
        finally:
            del self._calls[rank, token]

    async def _answered(self, line: Line, hello: HelloControl, rest: list[bytes]) -> None:
        call = self._calls.get((hello.rank, hello.call))
        if call is None or call.done():
            await line.part(RefusedControl(2, "the call is over"))
            await line.end()
            return
        line.is_call = True
        self._answers.add(line)
        call.set_result(line)
        try:
            while not line.closed:
                for record in rest:
                    await self._control(line, record)
                rest = await line.next()
        except (SecureError, EOFError, OSError, struct.error):
            pass
        finally:
            self._answers.discard(line)
            await line.end()

    # -- the end -----------------------------------------------------------------------------------

    async def _connect(self, rank: int, header: AgentHeader, seconds: float) -> socket.socket | None:
        deadline = self._loop.time() + seconds
        seat = self.seats[rank]
        seat.is_vacant = header.mode == "agent" and seat.line is None
        while (left := deadline - self._loop.time()) > 0:
            line = await self._line_of(rank, self._loop.time() + min(left, LOOK_EVERY))
            if line is not None:
                return await line.open(header)
            if await self._has_left(seat):
                raise NodeHungUp
        return None

    async def _has_left(self, seat: Seat) -> bool:
        """Tell whether a node hung up, and its host answers meanwhile: then the process that dials has ended."""
        if seat.left_from is None or self._loop.time() < seat.left_at + REDIAL_SECONDS:
            return False
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*seat.left_from), ANSWER_SECONDS)
            writer.close()
        except ConnectionRefusedError:
            pass
        except (OSError, asyncio.TimeoutError):
            return False
        return seat.line is None

    async def _leave(self, rank: int) -> None:
        seat = self.seats[rank]
        line = seat.line
        seat.line = None
        if line is not None:
            await line.end()

    async def _line_of(self, rank: int, deadline: float) -> Line | None:
        """Return a node's connection as soon as there is one; None where it does not come in time."""
        while self._loop.time() < deadline:
            line = self.seats[rank].line
            if line is not None and not line.closed:
                return line
            await asyncio.sleep(0.05)
        return None

    async def _finish(self, over: OverControl, patience: float) -> None:
        self._over = over
        await self._broadcast(over)
        for answer in self._answers:
            answer.tell(OverControl(0))
        for seat in self.seats.values():
            if seat.line is not None:
                await seat.line.flush()
        deadline = self._loop.time() + patience
        while self._loop.time() < deadline and any(s.line is not None for s in self.seats.values()):
            await asyncio.sleep(0.05)
        for server in self._servers:
            server.close()
        other_tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in other_tasks:
            task.cancel()
        await asyncio.gather(*other_tasks, return_exceptions=True)


# Gives a channel to one node: see `Listener.connect`.
Dial = Callable[[AgentHeader, float], Coroutine[Any, Any, socket.socket | None]]


class DialledTransport(SshTransport):
    """Nodes that have dialled in, by name; all others are this machine, and start as ever."""

    def __init__(self, dials: Mapping[str, Dial], launch: Launch) -> None:
        super().__init__(launch)
        self._dials = dials

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Return the node's present connection, or the next one that it makes within `seconds`; raise NodeHungUp."""
        dial = self._dials.get(node.name)
        if dial is None:
            return await super().connect(node, header, seconds)
        assert isinstance(header, AgentHeader), "nodes that have dialled in are not swept"
        sock = await dial(header, seconds)
        return Client.of_socket(sock) if sock is not None else None
