"""Two nodes measure the link between them: round trips started by each side, and a stream each way.

Over Gloo's network this is a plain TCP connection, not a process group, for its figures: 10 repeats of 4 pairs at
once on 2 cores gave 8.4 Gbit/s (standard deviation 23 %, worst 0.54 of the median) and 44 µs by TCP, but 3.3 Gbit/s
(36 %, worst 0.33) and 244 µs by Gloo groups, whose threads take turns with the caller. A stream can also be cut short
on a slow link, which a payload given to Gloo can't. On GPUs it is an NCCL communicator of the pair (nccl.py).
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import ContextManager, Optional, Protocol

from ..analysis.rates import quantile

MESSAGE = 32  # bytes of a small message
PING = b"p" * MESSAGE
STOP = b"s" * MESSAGE
SIZE = struct.Struct("!Q")  # of a piece of the stream; 0 ends it
SMALLEST = 64 << 10  # bytes of a piece: they grow while one takes less than BRISK
LARGEST = 4 << 20
BRISK = 0.002  # seconds
UNSENT = 128 << 10  # bytes that may wait in the sender's buffer: a slow link must not be left to drain megabytes
TCP_NOTSENT_LOWAT = 25  # Linux; Python names it since 3.12
SMALL_LOST = "small messages did not get through"
LARGE_LOST = "large messages did not get through, small ones did (look at the MTU)"
GREETING = 128  # bytes
WELCOME = b"w"
BACKLOG = 64
GREETING_LIMIT = 2.0  # seconds: a lost packet needs one
POLL = 0.5  # seconds between two questions whether the peer has given up
TIMED_OUT = socket.timeout


@dataclass(frozen=True)
class MeasurePlan:
    """How long a pair is measured: `cycles` of four steps each, fewer once `budget` seconds are over.

    `pings` round trips or `ping_seconds`, whichever ends first; a stream of `warm` and then `stream` seconds.
    """

    cycles: int = 5
    pings: int = 60
    ping_seconds: float = 0.15
    warm: float = 0.02
    stream: float = 0.06
    budget: float = 1.2

    @property
    def seconds(self) -> float:
        """Estimate how long it takes on a good link."""
        return self.cycles * (2 * self.pings * 2e-4 + 2 * (self.warm + self.stream))


FULL = MeasurePlan()
QUICK = MeasurePlan(cycles=2, pings=100)


class DeadLink(Exception):
    """Nothing goes through, or not to the end; the text is the reason, for people."""


@dataclass(frozen=True)
class SideFigures:
    """What one side measured: medians of its round trips (seconds) and of what it received (bytes/s), or why not."""

    latency: Optional[float] = None
    tail: Optional[float] = None
    rate: Optional[float] = None
    dead: str = ""


class Wire(Protocol):
    """A pair's connection: what one side sends, the other receives by the next method."""

    largest: int  # bytes of a piece

    def step(self, lost: str) -> ContextManager[object]:
        """Bound what follows in time; `lost` says what an error means."""

    def trip(self) -> None:
        """Go there and back once."""

    def send_flag(self, more: bool) -> None:
        """Tell the other side whether there is more."""

    def receive_flag(self) -> bool:
        """Return whether there is more."""

    def send_piece(self, size: int) -> None:
        """Send so many bytes."""

    def receive_piece(self, arrivals: ByteArrivals) -> bool:
        """Receive one piece and note its arrival; False for the one that ends the stream."""


def measure(wire: Wire, leads: bool, plan: MeasurePlan) -> SideFigures:
    """Do one side's part.

    Short steps in turn, so that a moment's load on a machine meets every figure a little rather than one of them alone.
    A step ends with a flag, or a piece, that says so.
    """
    trips: list[float] = []
    rates: list[float] = []
    began = time.monotonic()
    cycle = 0
    more = True
    while more:
        for starts in (leads, not leads):
            with wire.step(SMALL_LOST):
                if starts:
                    trips.extend(time_pings(wire.trip, plan.pings, plan.ping_seconds))
                    wire.send_flag(False)
                else:
                    while wire.receive_flag():
                        wire.send_flag(True)
        for starts in (leads, not leads):
            with wire.step(LARGE_LOST):
                if starts:
                    stream_pieces(wire.send_piece, plan.warm + plan.stream, wire.largest)
                    wire.send_piece(0)
                else:
                    arrivals = ByteArrivals()
                    while wire.receive_piece(arrivals):
                        continue
                    rates.extend(arrivals.rate(plan.warm))
        cycle += 1
        with wire.step(SMALL_LOST):
            if leads:
                more = cycle < plan.cycles and time.monotonic() - began < plan.budget
                wire.send_flag(more)
            else:
                more = wire.receive_flag()
    return SideFigures(median(trips), quantile(trips, 0.99), median(rates) if rates else None)


def time_pings(trip: Callable[[], None], count: int, seconds: float) -> list[float]:
    """Time so many round trips, fewer once the seconds are over."""
    trips: list[float] = []
    until = time.monotonic() + seconds
    while len(trips) < count and (not trips or time.monotonic() <= until):
        began = time.perf_counter()
        trip()
        trips.append(time.perf_counter() - began)
    return trips


def stream_pieces(send: Callable[[int], None], seconds: float, largest: int) -> None:
    """Send pieces for so long: twice as large each time while one takes less than BRISK."""
    until = time.monotonic() + seconds
    size = SMALLEST
    began = time.monotonic()
    while began < until:
        send(size)
        ended = time.monotonic()
        if ended - began < BRISK:
            size = min(size * 2, largest)
        began = ended


class ByteArrivals:
    """How a stream came in: (seconds, bytes so far) after each read."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []
        self.total = 0

    def add(self, count: int) -> None:
        """Note that so many bytes have come."""
        self.total += count
        self.points.append((time.monotonic(), self.total))

    def rate(self, warm: float) -> list[float]:
        """Give bytes/s without the first `warm` seconds; of all where there is little more. One value, or none."""
        if not self.points:
            return []
        first = self.points[0]
        last_time, last_bytes = self.points[-1]
        after_warm = next((point for point in self.points if point[0] - first[0] >= warm), first)
        for start_time, start_bytes in (after_warm, first):
            if last_time - start_time > warm / 2 and last_bytes > start_bytes:
                return [(last_bytes - start_bytes) / (last_time - start_time)]
        return []


# -- TCP -----------------------------------------------------------------------------------------------


class TcpWire:
    """A connection with a point in time at which it is given up."""

    largest = LARGEST

    def __init__(self, sock: socket.socket, peer: str, deadline: float, limit: float) -> None:
        self.sock = sock
        self.peer = peer
        self.deadline = deadline
        self.limit = limit
        self.view = memoryview(bytearray(LARGEST))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # other kernels: there a slow link takes longer
            sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT)

    @contextlib.contextmanager
    def step(self, lost: str) -> Iterator[None]:
        """Limit a step, rather than each message: setting a timeout is a system call. Name what did not get through."""
        late = DeadLink(f"timed out after {self.limit:g} s: {lost}")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise late
        self.sock.settimeout(left)
        try:
            yield
        except TIMED_OUT:
            raise late from None
        except OSError as error:
            raise DeadLink(f"the connection broke: {error.strerror or error}") from None

    def _receive_some(self, view: memoryview) -> int:
        count = self.sock.recv_into(view)
        if not count:
            raise DeadLink(f"{self.peer} closed the connection")
        return count

    def _receive(self, count: int) -> memoryview:
        received = 0
        while received < count:
            received += self._receive_some(self.view[received:count])
        return self.view[:count]

    def trip(self) -> None:
        """Send a small message and receive the answer."""
        self.sock.sendall(PING)
        self._receive(MESSAGE)

    def send_flag(self, more: bool) -> None:
        """Send a small message that says whether more follows."""
        self.sock.sendall(PING if more else STOP)

    def receive_flag(self) -> bool:
        """Receive one; tell what it says."""
        return self._receive(MESSAGE) != STOP

    def send_piece(self, size: int) -> None:
        """Send a piece of a stream; 0 bytes end it."""
        self.sock.sendall(SIZE.pack(size))
        self.sock.sendall(self.view[:size])

    def receive_piece(self, arrivals: ByteArrivals) -> bool:
        """Receive one; tell whether the stream goes on."""
        (size,) = SIZE.unpack(self._receive(SIZE.size))
        left = size
        while left:
            count = self._receive_some(self.view[: min(left, LARGEST)])
            left -= count
            arrivals.add(count)
        return bool(size)

    def greet(self, greeting: bytes) -> None:
        """Say who this is, on the side that connects, and wait until the other side has come to this round."""
        with self.step(f"connected, but {self.peer} did not answer"):
            self.sock.sendall(greeting)
            self._receive(len(WELCOME))

    def welcome(self, greeting: bytes) -> bool:
        """Tell, on the side that listens, whether this is the expected peer."""
        with self.step(SMALL_LOST):
            expected = hmac.compare_digest(bytes(self._receive(len(greeting))), greeting)
            if expected:
                self.sock.sendall(WELCOME)
            return expected

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


class WireListener:
    """Where others connect to this node, for all rounds: at the address that Gloo would use."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sock = socket.socket(_family(address), socket.SOCK_STREAM)
        self.sock.bind((address, 0))
        self.sock.listen(BACKLOG)
        self.port: int = self.sock.getsockname()[1]

    def accept(
        self, peer: str, greeting: bytes, deadline: float, limit: float, peer_failed: Callable[[], bool]
    ) -> TcpWire:
        """Give the expected peer's connection, close others' (a scanner's, a late one's).

        `peer_failed` tells whether the peer has reported that it can't connect.
        """
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadLink(f"timed out after {limit:g} s: no connection from {peer}")
            self.sock.settimeout(min(left, POLL))
            try:
                sock, _ = self.sock.accept()
            except TIMED_OUT:
                if peer_failed():
                    raise DeadLink(f"{peer} could not connect") from None
                continue
            # One that says nothing must not hold up the expected one.
            wire = TcpWire(sock, peer, min(deadline, time.monotonic() + GREETING_LIMIT), limit)
            with contextlib.suppress(DeadLink):
                if wire.welcome(greeting):
                    wire.deadline = deadline
                    return wire
            wire.close()


def connect(
    source_address: str, address: str, port: int, peer: str, greeting: bytes, deadline: float, limit: float
) -> TcpWire:
    """Connect from this node's address to the peer's listener; raise DeadLink where that fails."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.bind((source_address, 0))
        sock.connect((address, port))
        wire = TcpWire(sock, peer, deadline, limit)
        wire.greet(greeting)
        return wire
    except (OSError, DeadLink) as error:
        sock.close()
        if isinstance(error, DeadLink):
            raise
        where = f"no connection to {peer} at {address}:{port}"
        if isinstance(error, TIMED_OUT):
            raise DeadLink(f"timed out after {limit:g} s: {where}") from None
        raise DeadLink(f"{where}: {error.strerror or error}") from None


def _family(address: str) -> socket.AddressFamily:
    if ":" in address:
        return socket.AF_INET6
    return socket.AF_INET


def make_greeting(token: str, number: int, a: int, b: int) -> bytes:
    """Make what the connecting side says: strangers do not know the token, and no other round has the number."""
    return f"allranks pairs {token} {number} {a} {b}".encode("ascii").ljust(GREETING)
