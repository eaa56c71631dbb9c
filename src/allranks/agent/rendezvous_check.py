"""The rendezvous check, from the node's side: every node connects to the master's port. And whether a server answers.

The master listens as torch will (wildcard, IPv6 dual stack where there is IPv6, SO_REUSEADDR) and
answers with the run's token; every node connects to every offered address and reads the token, so a
foreign listener is not taken for ours. Afterwards a bound socket that does not listen keeps other programs
off the port, and torch still binds over it.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from contextlib import suppress
from typing import List, Optional, Tuple

from allranks.protocol.messages import (
    MOST_ANSWER,
    AddressProbe,
    PeerResult,
    PortFailure,
    ProbedMessage,
    ReadyMessage,
)
from allranks.protocol.orders import ProbeOrder, ReadyOrder

from .files import open_left, read_text, remove_file, text_of_errno
from .netfacts import host_name
from .portowner import who_holds

LOWEST_PORT = 10240
TRIES = 64
EXTRA = 0.5  # seconds given to the other addresses once one has answered
LEAST_SECONDS = 0.1  # for an address that had to wait for others
MOST_CLIENTS = 1024  # connections to the port at a time: as many as wait in its queue
# What a failed connection is called: see plan.network, which reads it.
FAILURES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ECONNRESET: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EACCES: "refused",
}


def failure_word(error: Exception) -> str:
    """Why a connection failed: resolution, refused, timeout, unreachable or failed."""
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "resolution"
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "timeout"
    return FAILURES.get(getattr(error, "errno", None) or 0, "failed")


def wildcard(port: int, reuse: bool, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Bind a socket as torch's TCPStore does, for IPv6 and IPv4 where there is IPv6; raise OSError."""
    try:
        sock = socket.socket(socket.AF_INET6, kind)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bound(sock, ("::", port), reuse)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        # IPv6 is absent (EAFNOSUPPORT), or built in and switched off (EADDRNOTAVAIL)
    return _bound(socket.socket(socket.AF_INET, kind), ("0.0.0.0", port), reuse)


def _bound(sock: socket.socket, place: Tuple[str, int], reuse: bool) -> socket.socket:
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
    except OSError:
        sock.close()
        raise
    return sock


def _free_port() -> int:
    """Return a port that nothing uses, below the kernel's own range."""
    import random  # late: 2 ms, and the master's node alone needs it

    limits = read_text("/proc/sys/net/ipv4/ip_local_port_range").split() or ["32768", "60999"]
    low, high = (int(limit) for limit in limits)
    ranges = ((LOWEST_PORT, low - 1), (high + 1, 65535), (LOWEST_PORT, 65535))
    first, last = next(ports for ports in ranges if ports[1] - ports[0] > 100)
    for _ in range(TRIES):
        port = random.randint(first, last)
        try:
            wildcard(port, reuse=False).close()
            return port
        except OSError:
            continue
    raise OSError(errno.EADDRINUSE, "no free port found between %d and %d" % (first, last))


def free_ports(count: int, taken: int) -> Tuple[int, ...]:
    """Return so many ports that nothing uses, and not `taken`; fewer where none is found."""
    ports: List[int] = []
    for _ in range(TRIES * count):
        if len(ports) == count:
            break
        port = _free_port()
        if port != taken and port not in ports:
            ports.append(port)
    return tuple(ports)


class MasterPort:
    """The master's listening socket, then the socket that holds the port."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port or _free_port()
        self._token = token.encode() + b"\n"
        self.listener: Optional[socket.socket] = wildcard(self.port, reuse=True)
        self._holder: Optional[socket.socket] = None
        assert self.listener is not None
        self.listener.listen(1024)
        self.listener.setblocking(False)
        self._clients: List[Tuple[float, socket.socket]] = []

    def accept(self) -> None:
        """Answer every waiting prober with the token; the prober closes first, so TIME_WAIT is its own."""
        assert self.listener is not None
        for _ in range(MOST_CLIENTS):  # strangers may come faster than they are answered
            try:
                client, _ = self.listener.accept()
            except OSError:
                break
            client.setblocking(False)
            with suppress(OSError):
                client.send(self._token)
            self._clients.append((time.monotonic(), client))
            if len(self._clients) > MOST_CLIENTS:
                self._clients.pop(0)[1].close()  # whoever asks for the token reads it at once
        self._clients = [c for c in self._clients if not self._done(*c)]

    @staticmethod
    def _done(since: float, client: socket.socket) -> bool:
        try:
            gone = client.recv(64) == b""
        except BlockingIOError:
            gone = time.monotonic() - since > 10
        except OSError:
            gone = True
        if gone:
            client.close()
        return gone

    def hold(self) -> None:
        """Stop listening and keep the port bound, so that only a socket with SO_REUSEADDR gets it."""
        self._close_listener()
        try:
            self._holder = wildcard(self.port, reuse=True)
        except OSError:
            self._holder = None  # another program was faster: rank 0 will say EADDRINUSE, the check is repeated

    def _close_listener(self) -> None:
        for _, client in self._clients:
            client.close()
        self._clients = []
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def release(self) -> None:
        """Let the port go."""
        self._close_listener()
        if self._holder is not None:
            self._holder.close()
            self._holder = None


class Nonce:
    """A file in the shared output directory, by which the other nodes prove that it is shared."""

    def __init__(self) -> None:
        self._path: Optional[str] = None

    def leave(self, directory: Optional[str], token: str) -> Optional[str]:
        """Make the file where there is such a directory; return why it could not, or None."""
        if directory is None:
            return None
        self._path = os.path.join(directory, nonce_name(token))
        try:
            os.makedirs(directory, exist_ok=True)
            os.close(open_left(self._path, os.O_WRONLY | os.O_CREAT))
        except OSError as error:
            return "could not write to %s: %s" % (directory, error.strerror)
        return None

    def remove(self) -> None:
        """Remove the file."""
        if self._path is not None:
            remove_file(self._path)
            self._path = None


def nonce_name(token: str) -> str:
    """Name the file by which nodes prove that a directory is shared."""
    return ".allranks-" + "".join(c for c in token if c.isalnum())


def port_failure(port: int, error: OSError) -> PortFailure:
    """Say why the port could not be had, with its owner where one can be seen."""
    owner = who_holds(port) if error.errno == errno.EADDRINUSE else None
    return PortFailure(port, errno.errorcode.get(error.errno or 0, "?"), text_of_errno(error), owner)


def knock(
    address: str, port: int, token: bytes, connect: float, answer: float, greeting: bytes = b""
) -> Tuple[PeerResult, Optional[socket.socket]]:
    """Connect within so many seconds, say the greeting, and read the token within so many more.

    Gives the connection too, where the right program answers.
    """
    begun = time.monotonic()
    pair = PeerResult()
    way = AddressProbe(address, port=port)
    sock: Optional[socket.socket] = None
    try:
        sock = socket.create_connection((host_name(address), port), connect)  # type: ignore[arg-type]  # bytes may be
        pair = PeerResult(connect_s=round(time.monotonic() - begun, 4))
        way = way._replace(local_address=str(sock.getsockname()[0]))
        sock.settimeout(answer)
        sock.sendall(greeting)
        data = part = sock.recv(256)
        while part and data != token and token.startswith(data):
            part = sock.recv(256)
            data += part
        if data == token:
            way = way._replace(ok=True)
        else:
            way = way._replace(error="foreign", text="another program answers there")
    except (OSError, UnicodeError) as error:
        word = failure_word(error)
        text = getattr(error, "strerror", None) or str(error)
        if sock is not None and isinstance(error, ConnectionResetError):
            word = "reset"
        elif word == "timeout":
            text = "no answer"
        way = way._replace(error=word, text=text)
    if sock is not None and not way.ok:
        sock.close()
        sock = None
    return pair._replace(way=way._replace(seconds=round(time.monotonic() - begun, 4))), sock


def probe(order: ProbeOrder) -> ProbedMessage:
    """Try all addresses at once, and see whether the nonce is here. Blocks for the order's seconds at most."""
    began = time.monotonic()
    deadline = began + order.seconds
    late = AddressProbe("", False, order.port, order.seconds, error="timeout", text="no answer")
    results = [late._replace(address=address) for address in order.addresses]
    waiting = set(range(len(results)))
    news = threading.Condition()

    def ask(index: int) -> None:
        token = order.token.encode() + b"\n"
        left = max(LEAST_SECONDS, began + order.seconds - time.monotonic())
        pair, sock = knock(order.addresses[index], order.port, token, left, left)
        if sock is not None:
            sock.close()
        with news:
            results[index] = pair.way
            waiting.discard(index)
            news.notify()

    for index in range(len(results)):
        try:
            threading.Thread(target=ask, args=(index,), daemon=True).start()
        except RuntimeError:  # no more threads are allowed: one after the other
            ask(index)
    with news:
        has_answer = False
        while waiting and time.monotonic() < deadline:
            news.wait(deadline - time.monotonic())
            if not has_answer and any(result.ok for result in results):
                has_answer = True
                # on a busy machine the others need longer, too: as long again as the first one took
                now = time.monotonic()
                deadline = min(deadline, now + max(EXTRA, 2 * (now - began)))
        directory = order.nonce_dir
        shared = directory is None or os.path.exists(os.path.join(directory, nonce_name(order.token)))
        return ProbedMessage(tuple(results), shared=shared)


def ask_server(order: ReadyOrder) -> ReadyMessage:
    """Connect to a server's port, and where there is a path, ask for it: a status from 200 to 299 is ready.

    Blocks for about the order's seconds.
    """
    place = (order.address, order.port)
    try:
        if order.path:
            return _get(order, place)
        socket.create_connection(place, order.seconds).close()
    except (socket.timeout, TimeoutError):
        return ReadyMessage(answer="no answer within %g s" % order.seconds)
    except OSError as error:
        return ReadyMessage(answer=str(error.strerror or error)[:MOST_ANSWER])
    return ReadyMessage(True, "the port is open", is_there=True)


def _get(order: ReadyOrder, place: Tuple[str, int]) -> ReadyMessage:
    import http.client  # late, in a process of its own: 20 ms, and few runs have servers
    import ssl

    kind = http.client.HTTPSConnection if order.secure else http.client.HTTPConnection
    connection = kind(*place, timeout=order.seconds)
    try:
        connection.request("GET", order.path)
        answer = connection.getresponse()
        words = "%d %s" % (answer.status, answer.reason)
        return ReadyMessage(200 <= answer.status < 300, words.strip()[:MOST_ANSWER], is_there=True)
    except (http.client.HTTPException, ssl.SSLError, ValueError) as error:
        words = "no HTTP answer: %s %s" % (type(error).__name__, error)
        return ReadyMessage(answer=words[:MOST_ANSWER], is_there=True)
    finally:
        connection.close()
