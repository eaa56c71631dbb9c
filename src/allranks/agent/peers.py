"""Whether nodes reach each other: every node serves on two ports that the kernel picks, and tries its peers.

Over TCP: connect, a token (so that a foreign program is not taken for ours), 256 KB that must arrive (large
packets vanish in an MTU black hole while small ones pass). Over UDP: a burst whose arrivals are counted
(loss), and packets of several sizes that must not be fragmented (path MTU; ip(7), IP_PMTUDISC_PROBE).
NCCL and Gloo take ports that the kernel picks, so that is where they are tried.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, List, Optional, Set, Tuple

from allranks.protocol.messages import AddressProbe, PeerResult, ReachedMessage
from allranks.protocol.orders import PeerAddress, ReachOrder

from .netfacts import host_name, resolve
from .rendezvous_check import knock, wildcard

AT_ONCE = 8  # peers tried at a time
MOST_CLIENTS = 1024  # connections answered at a time: who asks may be any program
CLIENT_SECONDS = 30.0
CONNECT_SECONDS = 8.0  # four SYNs (0, 1, 3, 7 s): one of them arrives over a link that loses a third
WAY_SECONDS = 3.5
WORD_SECONDS = 20.0  # for the first word over an open connection: the peer may be busy with many
WORD_SHARE = 0.6  # of all the time that there is
BULK = 256 << 10
BULK_SECONDS = 6.0
BURST = 100
BURST_PAUSE = 0.002
ROUNDS = 3  # bursts where the first one lost something
SIZES = (65535, 9216, 9000, 8192, 4096, 2044, 1500, 1492, 1476, 1450, 1420, 1400, 1376, 1300, 1280, 1000, 576)
IP_PMTUDISC_PROBE = 3
# Bytes of the heads of IP and UDP; the level of options, IP(V6)_MTU_DISCOVER and IP(V6)_MTU.
OF_IP = {
    socket.AF_INET: (28, socket.IPPROTO_IP, 10, 14),
    socket.AF_INET6: (48, socket.IPPROTO_IPV6, 23, 24),
}
HEAD = struct.Struct(">16sHBI")  # token, sender, kind, number
COUNTS = struct.Struct(">II")  # packets of a burst that have arrived, bytes of the largest packet
BURST_KIND = 1
SIZE_KIND = 2
ASK_KIND = 3
ANSWER_KIND = 4
LINE = 4096


def open_doors() -> Tuple[socket.socket, socket.socket]:
    """Open the two sockets that a node serves on, bound to any address and ports that the kernel picks."""
    tcp = wildcard(0, reuse=False)
    udp = wildcard(0, reuse=False, kind=socket.SOCK_DGRAM)
    tcp.listen(1024)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return tcp, udp


# -- serving ---------------------------------------------------------------------------------------


class BurstCounts:
    """What has arrived over UDP, by sender."""

    def __init__(self) -> None:
        self.numbers: Dict[int, Set[int]] = {}
        self.largest: Dict[int, int] = {}

    def answer(self, sender: int) -> bytes:
        """Pack how many packets of a sender's burst have arrived, and the bytes of its largest packet."""
        return COUNTS.pack(len(self.numbers.get(sender, ())), self.largest.get(sender, 0))


def serve(tcp: socket.socket, udp: socket.socket, token: str, seconds: float) -> None:
    """Answer peers until the time is over or the parent has ended."""
    counts = BurstCounts()
    parent = os.getppid()
    deadline = time.monotonic() + seconds
    room = threading.Semaphore(MOST_CLIENTS)
    while time.monotonic() < deadline and os.getppid() == parent:
        for ready in select.select([tcp, udp], [], [], 0.5)[0]:
            if ready is udp:
                _count(udp, token.encode(), counts)
            else:
                client, _ = tcp.accept()
                if room.acquire(blocking=False):
                    threading.Thread(target=_answer, args=(client, token, counts, room), daemon=True).start()
                else:
                    client.close()


def _count(udp: socket.socket, token: bytes, counts: BurstCounts) -> None:
    for _ in range(1000):
        try:
            data, sender = udp.recvfrom(65535, socket.MSG_DONTWAIT)
        except OSError:
            return
        if len(data) < HEAD.size:
            continue
        sent_token, number, kind, sequence = HEAD.unpack_from(data)
        if sent_token != token[:16].ljust(16, b"\0"):
            continue
        if kind == BURST_KIND:
            counts.numbers.setdefault(number, set()).add(sequence)
        elif kind == SIZE_KIND:
            counts.largest[number] = max(counts.largest.get(number, 0), sequence)
        elif kind == ASK_KIND:
            with suppress(OSError):
                udp.sendto(HEAD.pack(sent_token, number, ANSWER_KIND, sequence) + counts.answer(number), sender)


def _answer(client: socket.socket, token: str, counts: BurstCounts, room: threading.Semaphore) -> None:
    """One TCP peer: its token, then lines: `bulk N` and N bytes, or `count SENDER`."""
    try:
        client.settimeout(CLIENT_SECONDS)
        with client, client.makefile("rb") as stream:
            if stream.readline(LINE).decode().strip() != token:
                return
            client.sendall(token.encode() + b"\n")
            for raw in iter(lambda: stream.readline(LINE), b""):
                word, _, value = raw.decode().strip().partition(" ")
                if word == "bulk":
                    left = min(int(value), BULK)
                    while left > 0:
                        left -= len(stream.read(min(left, 65536))) or left
                    client.sendall(b"got\n")
                elif word == "count":
                    client.sendall(counts.answer(int(value)))
    except (OSError, ValueError):
        pass
    finally:
        room.release()


# -- trying ----------------------------------------------------------------------------------------


def reach(order: ReachOrder) -> ReachedMessage:
    """Try all peers, and say what their names resolve to here."""
    pairs: Dict[str, PeerResult] = {}
    names: Dict[str, Tuple[str, ...]] = {}
    slots = threading.Semaphore(AT_ONCE)
    threads = []
    for name in order.names:
        threads.append(threading.Thread(target=_resolve, args=(name, names), daemon=True))
    for name, peer in order.peers.items():
        threads.append(threading.Thread(target=_try_peer, args=(name, peer, order, slots, pairs), daemon=True))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + order.seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # copies: a thread that is late goes on writing
    return ReachedMessage(pairs.copy(), names.copy())


def _resolve(name: str, names: Dict[str, Tuple[str, ...]]) -> None:
    names[name] = tuple(sorted(resolve(name).addresses))


def _try_peer(
    name: str, peer: PeerAddress, order: ReachOrder, slots: threading.Semaphore, pairs: Dict[str, PeerResult]
) -> None:
    with slots:
        ways = [AddressProbe(address, port=peer.port) for address in peer.ways]
        others = [threading.Thread(target=_try_way, args=(ways, n, order.token), daemon=True) for n in range(len(ways))]
        for thread in others:
            thread.start()
        patience = min(WORD_SECONDS, WORD_SHARE * order.seconds)
        pair, sock = _knock(peer.address, peer.port, order.token, CONNECT_SECONDS, patience)
        if sock is not None:
            pair, sock = _send_bulk(pair, sock)
        if peer.udp:
            pair = _try_udp(pair, peer.udp, order, sock)
        if sock is not None:
            sock.close()
        for thread in others:
            thread.join(WAY_SECONDS + 1)
        pairs[name] = pair._replace(ways=tuple(ways))


def _try_way(ways: List[AddressProbe], index: int, token: str) -> None:
    """Connect to another address of a peer's: no more than whether it is there."""
    pair, sock = _knock(ways[index].address, ways[index].port, token, WAY_SECONDS, WAY_SECONDS)
    ways[index] = pair.way
    if sock is not None:
        sock.close()


def _send_bulk(pair: PeerResult, sock: socket.socket) -> Tuple[PeerResult, Optional[socket.socket]]:
    """Send what an MTU black hole swallows; the connection where it is of use afterwards."""
    begun = time.monotonic()
    arrived = False
    with suppress(OSError):
        sock.settimeout(BULK_SECONDS)
        sock.sendall(b"bulk %d\n" % BULK + bytes(BULK))
        arrived = sock.recv(16).startswith(b"got")
    pair = pair._replace(bulk=arrived, bulk_s=round(time.monotonic() - begun, 4))
    if arrived:
        return pair, sock
    sock.close()
    return pair, None


def _knock(
    address: str, port: int, token: str, seconds: float, word_seconds: float
) -> Tuple[PeerResult, Optional[socket.socket]]:
    line = token.encode() + b"\n"
    return knock(address, port, line, seconds, word_seconds, greeting=line)


# -- UDP -------------------------------------------------------------------------------------------


def _try_udp(pair: PeerResult, port: int, order: ReachOrder, control: Optional[socket.socket]) -> PeerResult:
    """Send a burst and packets of several sizes; a part that failed is left out."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host_name(pair.way.address), port, 0, socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(where)
            return _measure(pair, sock, order, control)
    except OSError:
        return pair


def _measure(pair: PeerResult, sock: socket.socket, order: ReachOrder, control: Optional[socket.socket]) -> PeerResult:
    head = partial(HEAD.pack, order.token.encode(), order.sender)
    pair = pair._replace(mtu_local=_send_sizes(sock, head))
    for _ in range(ROUNDS):
        for number in range(pair.sent, pair.sent + BURST):
            _send(sock, head(BURST_KIND, number) + bytes(40))
            time.sleep(BURST_PAUSE)
        pair = pair._replace(sent=pair.sent + BURST, arrived=0, mtu_arrived=0)
        counts = _ask(sock, head) or _ask_over(control, order.sender)
        if len(counts) != COUNTS.size:
            return pair
        arrived, largest = COUNTS.unpack(counts)
        pair = pair._replace(arrived=arrived, mtu_arrived=largest)
        if arrived == pair.sent:
            return pair
    return pair


def _send_sizes(sock: socket.socket, head: Callable[[int, int], bytes]) -> int:
    """Send packets of the sizes that the way to the peer takes as the kernel knows it, twice; give the largest."""
    headers, level, discover, option = OF_IP[sock.family]
    mtu = 1500
    with suppress(OSError):
        sock.setsockopt(level, discover, IP_PMTUDISC_PROBE)  # nothing is fragmented from here on
        mtu = sock.getsockopt(level, option)
    for _ in range(2):
        for size in [mtu, *(size for size in SIZES if size < mtu)]:
            size = min(size, 65535)
            _send(sock, head(SIZE_KIND, size).ljust(size - headers, b"\0"))
    return mtu


def _send(sock: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # a rejected packet before, or one that is too large: the other end counts what arrives
        sock.send(data)


def _ask(sock: socket.socket, head: Callable[[int, int], bytes]) -> bytes:
    """Ask over UDP itself what has arrived: over a lossy link TCP could take longer."""
    for number in range(12):
        _send(sock, head(ASK_KIND, number))
        sock.settimeout(0.25)
        try:
            data = sock.recv(LINE)
        except OSError:
            continue
        if data.startswith(head(ANSWER_KIND, number)):
            return data[HEAD.size :]
    return b""


def _ask_over(control: Optional[socket.socket], sender: int) -> bytes:
    if control is None:
        return b""
    try:
        control.settimeout(3.0)
        control.sendall(b"count %d\n" % sender)
        return control.recv(LINE)
    except OSError:
        return b""
