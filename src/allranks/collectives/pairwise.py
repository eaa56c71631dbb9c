"""Two nodes measure the link between them: round trips started by each side, and a stream each way.

Over Gloo's network this is a plain TCP connection, not a process group, for its figures: 10 repeats of 4 pairs at
once on 2 cores gave 8.4 Gbit/s (standard deviation 23 %, worst 0.54 of the median) and 44 µs by TCP, but 3.3 Gbit/s
(36 %, worst 0.33) and 244 µs by Gloo groups, whose threads take turns with the caller. A stream can also be cut short
on a slow link, which a payload given to Gloo can't. On GPUs it is an NCCL communicator of the pair.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

MESSAGE = 32  # bytes of a small message
PING, STOP = b"p" * MESSAGE, b"s" * MESSAGE
HEAD = struct.Struct("!Q")  # the length of a piece of the stream; 0 ends it
SMALLEST, LARGEST = 64 << 10, 4 << 20  # bytes of a piece: they grow while one takes less than
BRISK = 0.002  # seconds
UNSENT = 128 << 10  # bytes that may wait in the sender's buffer: a slow link must not be left to drain megabytes
TCP_NOTSENT_LOWAT = 25  # Linux; Python names it since 3.12
SMALL_LOST = "small messages did not get through"
LARGE_LOST = "large messages did not get through, small ones did (look at the MTU)"
WORD = 128  # bytes of a greeting
WELCOME = b"w"
SIOCGIFADDR = 0x8915
TIMED_OUT = socket.timeout  # noqa: UP041  (a class of its own before Python 3.10)


class Plan(NamedTuple):
    """How long a pair is measured: `cycles` of four steps each, fewer once `budget` seconds are over. `pings` round
    trips or `ping_seconds`, whichever ends first; a stream of `warm` and then `stream` seconds."""

    cycles: int = 5
    pings: int = 60
    ping_seconds: float = 0.15
    warm: float = 0.02
    stream: float = 0.06
    budget: float = 1.2

    @property
    def seconds(self) -> float:
        """About how long it takes on a good link."""
        return self.cycles * (2 * self.pings * 2e-4 + 2 * (self.warm + self.stream))


FULL, QUICK = Plan(), Plan(cycles=2, pings=100)


class Dead(Exception):
    """Nothing goes through, or not to the end; the text is the reason, for people."""


class Figures(NamedTuple):
    """What one side found: round trips that it started (seconds), rates at which it received (bytes/s)."""

    trips: list[float]
    rates: list[float]


class Wire(Protocol):
    """A pair's connection. Of two methods below each other one side calls the first, the other the second."""

    def ping(self, count: int, seconds: float) -> list[float]: ...

    def answer(self) -> None: ...

    def push(self, seconds: float) -> None: ...

    def pull(self, warm: float) -> list[float]: ...

    def tell(self, more: bool) -> None: ...

    def hear(self) -> bool: ...


def measure(wire: Wire, first: bool, plan: Plan) -> Figures:
    """One side's part: `first` on the side that leads. Short steps in turn, so that a moment's load on a machine
    meets every figure a little rather than one of them fully."""
    trips: list[float] = []
    rates: list[float] = []
    began, turn, more = time.monotonic(), 0, True
    while more:
        for mine in (first, not first):
            if mine:
                trips += wire.ping(plan.pings, plan.ping_seconds)
            else:
                wire.answer()
        for mine in (first, not first):
            if mine:
                wire.push(plan.warm + plan.stream)
            else:
                rates += wire.pull(plan.warm)
        turn += 1
        if first:
            more = turn < plan.cycles and time.monotonic() - began < plan.budget
            wire.tell(more)
        else:
            more = wire.hear()
    return Figures(trips, rates)


class Marks:
    """How a stream came in: (seconds, bytes so far) after each read."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []
        self.total = 0

    def add(self, count: int) -> None:
        self.total += count
        self.marks.append((time.monotonic(), self.total))

    def rate(self, warm: float) -> list[float]:
        """Bytes/s without the first `warm` seconds; of all where there is little more. One value, or none."""
        if not self.marks:
            return []
        last = self.marks[-1]
        kept = [mark for mark in self.marks if mark[0] - self.marks[0][0] >= warm]
        for start in (*kept[:1], self.marks[0]):
            if last[0] - start[0] > warm / 2 and last[1] > start[1]:
                return [(last[1] - start[1]) / (last[0] - start[0])]
        return []


class Tcp:
    """A connection with a point in time at which it is given up."""

    def __init__(self, sock: socket.socket, peer: str, deadline: float, limit: float) -> None:
        self.sock, self.peer, self.deadline, self.limit = sock, peer, deadline, limit
        self.buffer = bytearray(LARGEST)
        self.view = memoryview(self.buffer)
        self.doing = SMALL_LOST
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # other kernels: there a slow link takes longer
            sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT)

    def _step(self, doing: str) -> None:
        """Before each step rather than each message: setting a timeout is a system call."""
        left = self.deadline - time.monotonic()
        self.doing = doing
        if left <= 0:
            raise Dead(self._late())
        self.sock.settimeout(left)

    def _late(self) -> str:
        return f"timed out after {self.limit:g} s: {self.doing}"

    def _send(self, data: memoryview | bytes) -> None:
        try:
            self.sock.sendall(data)
        except TIMED_OUT:
            raise Dead(self._late()) from None
        except OSError as error:
            raise Dead(f"the connection broke: {error.strerror or error}") from None

    def _some(self, view: memoryview) -> int:
        try:
            count = self.sock.recv_into(view)
        except TIMED_OUT:
            raise Dead(self._late()) from None
        except OSError as error:
            raise Dead(f"the connection broke: {error.strerror or error}") from None
        if not count:
            raise Dead(f"{self.peer} closed the connection")
        return count

    def _receive(self, count: int) -> memoryview:
        have = 0
        while have < count:
            have += self._some(self.view[have:count])
        return self.view[:count]

    def ping(self, count: int, seconds: float) -> list[float]:
        self._step(SMALL_LOST)
        trips: list[float] = []
        until = time.monotonic() + seconds
        for _ in range(count):
            began = time.perf_counter()
            self._send(PING)
            self._receive(MESSAGE)
            trips.append(time.perf_counter() - began)
            if time.monotonic() > until:
                break
        self._send(STOP)
        return trips

    def answer(self) -> None:
        self._step(SMALL_LOST)
        while bytes(self._receive(MESSAGE)) != STOP:
            self._send(PING)

    def push(self, seconds: float) -> None:
        self._step(LARGE_LOST)
        until, size = time.monotonic() + seconds, SMALLEST
        while (began := time.monotonic()) < until:
            self._send(HEAD.pack(size))
            self._send(self.view[:size])
            if time.monotonic() - began < BRISK:
                size = min(size * 2, LARGEST)
        self._send(HEAD.pack(0))

    def pull(self, warm: float) -> list[float]:
        self._step(LARGE_LOST)
        marks = Marks()
        while left := HEAD.unpack(self._receive(HEAD.size))[0]:
            while left:
                count = self._some(self.view[: min(left, LARGEST)])
                left -= count
                marks.add(count)
        return marks.rate(warm)

    def tell(self, more: bool) -> None:
        self._step(SMALL_LOST)
        self._send(PING if more else STOP)

    def hear(self) -> bool:
        self._step(SMALL_LOST)
        return bytes(self._receive(MESSAGE)) != STOP

    def greet(self, word: bytes) -> None:
        """The connecting side: say who this is, and wait until the other side has come to this round."""
        self._step(f"connected, but {self.peer} did not answer")
        self._send(word)
        self._receive(len(WELCOME))

    def welcome(self, word: bytes) -> bool:
        """The listening side: whether it is the one that is due."""
        self._step(SMALL_LOST)
        due = hmac.compare_digest(bytes(self._receive(len(word))), word)
        if due:
            self._send(WELCOME)
        return due

    def close(self) -> None:
        self.sock.close()


class Door:
    """Where others connect to this node, for all rounds: at the address that Gloo would use."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.address = address
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.bind((address, 0))
        self.sock.listen(64)
        self.port: int = self.sock.getsockname()[1]

    def take(self, peer: str, word: bytes, deadline: float, limit: float, gave_up: Callable[[], bool]) -> Tcp:
        """The connection of the peer that is due. Others' (a scanner's, a late one's) are closed. `gave_up` says
        whether the peer has reported that it can't connect."""
        while (left := deadline - time.monotonic()) > 0:
            self.sock.settimeout(min(left, 0.5))
            try:
                sock, _ = self.sock.accept()
            except TIMED_OUT:
                if gave_up():
                    raise Dead(f"{peer} could not connect") from None
                continue
            if (line := self._look(sock, peer, word, deadline, limit)) is not None:
                return line
        raise Dead(f"timed out after {limit:g} s: no connection from {peer}")

    def _look(self, sock: socket.socket, peer: str, word: bytes, deadline: float, limit: float) -> Tcp | None:
        """One that says nothing must not hold up the one that is due: it has a second, as a lost packet needs."""
        with contextlib.suppress(Dead):
            line = Tcp(sock, peer, min(deadline, time.monotonic() + 2.0), limit)
            if line.welcome(word):
                line.deadline = deadline
                return line
        sock.close()
        return None


def connect(own: str, there: tuple[str, int], peer: str, word: bytes, deadline: float, limit: float) -> Tcp:
    """A connection to the peer's door, from this node's own address."""
    family = socket.AF_INET6 if ":" in there[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.bind((own, 0))
        sock.connect(there)
        line = Tcp(sock, peer, deadline, limit)
        line.greet(word)
        return line
    except TIMED_OUT:
        sock.close()
        raise Dead(f"timed out after {limit:g} s: no connection to {peer} at {there[0]}:{there[1]}") from None
    except OSError as error:
        sock.close()
        raise Dead(f"no connection to {peer} at {there[0]}:{there[1]}: {error.strerror or error}") from None
    except Dead:
        sock.close()
        raise


def word_of(token: str, number: int, a: int, b: int) -> bytes:
    """What the connecting side says: nobody else knows the token, and no other round has the number."""
    return f"allranks pairs {token} {number} {a} {b}".encode("ascii").ljust(WORD)


# -- addresses -------------------------------------------------------------------------------------


def own_address(env: Mapping[str, str], towards: str) -> str:
    """The address of the interface that Gloo is told to use, else the one from which packets leave `towards` a host.

    OSError where there is no way to it.
    """
    name = env.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return (address_of(name) if name else "") or route_to(towards)


def address_of(interface: str) -> str:
    """An interface's IPv4 address; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        request = struct.pack("256s", os.fsencode(interface)[:15])
        return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), SIOCGIFADDR, request)[20:24])
    return ""


def route_to(host: str) -> str:
    """The own address on the way to a host; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(target)
        found: str = sock.getsockname()[0]
        return found


def interface_of(address: str) -> str:
    """The interface that has an IPv4 address; empty where none is found."""
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), "")
