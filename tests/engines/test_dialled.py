"""The listener of join: who gets in, who does not, and that nothing a stranger sends does harm."""

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from tests.hosts.waiting import BOUND, wait_until

from allranks.agent.dial import Tries
from allranks.agent.tls import Encryption
from allranks.cluster import Node
from allranks.engines.dialled import ANY, LOOPBACK, Listener, Refuse
from allranks.engines.joined import JoinedTransport
from allranks.engines.slurm.step import StepTransport
from allranks.errors import UsageError
from allranks.gang.transport import NodeHungUp
from allranks.protocol.codec import encode
from allranks.protocol.controls import HelloControl
from allranks.protocol.header import AgentHeader
from allranks.protocol.secure import HELLO, Handshake
from allranks.settings import RunSpec
from allranks.settings.runspec import Launch

SECRET = b"0123456789abcdef0123"
HEADER = AgentHeader("agent", "x", "node_01", "x/node_01", lease=30.0, grace=1.0)


class Meeting:
    """A listener for ranks 1 to `count` - 1 on the loopback, and what it told."""

    def __init__(self, count=3):
        self.told, self.stops, self.sockets = [], [], []
        self.listener = Listener(count, SECRET, self.admit, self.told.append)
        self.listener.stopped = self.stops.append
        self.port = self.listener.start(["127.0.0.1"], 0)

    @staticmethod
    def admit(seats, hello, address):
        if hello.rank not in seats:
            raise Refuse("no such rank")
        return hello.rank

    def connect(self, source="127.0.0.1"):
        self.sockets.append(socket.create_connection(("127.0.0.1", self.port), BOUND, (source, 0)))
        return self.sockets[-1]

    def open(self, rank, header):
        """A channel to a node that is there."""
        self.sockets.append(asyncio.run(self.listener.connect(rank, header, BOUND)))
        return self.sockets[-1]

    def join(self, rank, source="127.0.0.1", **hello):
        """A node that behaves: its socket and records."""
        sock = self.connect(source)
        records, _ = shaken(sock, Encryption())
        sock.sendall(records.pack(b"C" + json.dumps({"type": "hello", "rank": rank, **hello}).encode()))
        return sock, records

    def __enter__(self):
        return self

    def __exit__(self, *why):
        for sock in self.sockets:
            sock.close()
        self.listener.finish(0, "over")


def shaken(sock, encryption=None):
    """The records after a handshake, and what the node's side of it sent."""
    shake = Handshake(SECRET, listens=False, encryption=encryption)
    sent = [shake.begin()]
    sock.sendall(sent[0])
    while not shake.done:
        sent.append(shake.feed(sock.recv(4096)))
        sock.sendall(sent[-1])
    return shake.channel(), b"".join(sent)


@pytest.fixture
def meeting():
    with Meeting() as made:
        yield made


def read(sock, records, count=1):
    """Records that are no beats."""
    found = []
    while len(found) < count:
        data = sock.recv(65536)
        assert data, found
        found += [record for record in records.feed(data) if record != b'C{"type":"wait"}']
    return found


def gone(sock):
    with contextlib.suppress(OSError):
        while sock.recv(65536):
            pass
    return True


def test_a_channel_carries_bytes_both_ways_and_a_new_one_replaces_it(meeting):
    node, records = meeting.join(1)
    wait_until(lambda: meeting.listener.missing() == [2])
    first = meeting.open(1, HEADER)
    opened = json.loads(read(node, records)[0][1:])
    assert (opened["type"], opened["header"]) == ("open", encode(HEADER))
    first.sendall(b"down")
    assert read(node, records) == [b"D" + struct.pack(">I", opened["number"]) + b"down"]
    node.sendall(records.pack(b"D" + struct.pack(">I", opened["number"]) + b"up"))
    assert first.recv(100) == b"up"
    second = meeting.open(1, HEADER)
    assert first.recv(100) == b""  # the older channel is over
    again = json.loads(read(node, records)[0][1:])
    node.sendall(records.pack(b"D" + struct.pack(">I", opened["number"]) + b"late"))
    node.sendall(records.pack(b"D" + struct.pack(">I", again["number"]) + b"new"))
    assert second.recv(100) == b"new"
    node.close()
    assert second.recv(100) == b""
    wait_until(lambda: meeting.listener.missing() == [1, 2])


def test_a_node_can_ask_for_the_end_and_hears_of_it(meeting):
    node, records = meeting.join(2)
    node.sendall(records.pack(b"C" + json.dumps({"type": "stop", "reason": "sigterm"}).encode()))
    wait_until(lambda: meeting.stops == ["sigterm"])
    meeting.listener.say("hello all")
    assert b"hello all" in read(node, records)[0]
    ending = threading.Thread(target=meeting.listener.finish, args=(3, "so it ended"))
    ending.start()
    over = {"type": "wait"}
    while over["type"] == "wait":  # beats come in between
        over = json.loads(read(node, records)[-1][1:])
    assert (over["type"], over["exit"], over["message"]) == ("over", 3, "so it ended")
    node.close()
    ending.join(BOUND)


def test_a_node_that_hangs_up_has_left_once_its_host_answers_and_no_connection_comes(meeting):
    """kill -9 of a `join` was known after the lease alone."""
    for rank in (1, 2):
        meeting.join(rank)
    wait_until(lambda: meeting.listener.missing() == [])
    meeting.sockets[0].close()
    wait_until(lambda: meeting.listener.missing() == [1])
    with pytest.raises(NodeHungUp):
        asyncio.run(meeting.listener.connect(1, HEADER, BOUND))
    meeting.sockets[1].close()
    wait_until(lambda: meeting.listener.missing() == [1, 2])
    meeting.join(2)  # it was the connection alone
    assert meeting.open(2, HEADER)


def test_a_rank_that_is_not_admitted_is_told_why(meeting):
    node, records = meeting.join(7)
    refused = json.loads(read(node, records)[0][1:])
    assert (refused["type"], refused["message"]) == ("refused", "no such rank")
    assert gone(node) and meeting.listener.missing() == [1, 2]


def test_a_second_handshake_from_a_recording_gets_nothing(meeting):
    """What a node sent is sent again, byte by byte the same: the listener's nonce is another."""
    sock = meeting.connect()
    records, sent = shaken(sock)
    hello = records.pack(b"C" + json.dumps({"type": "hello", "rank": 1}).encode())
    sock.sendall(hello)
    wait_until(lambda: meeting.listener.missing() == [2])
    replayed = meeting.connect()
    replayed.sendall(sent + hello)
    assert gone(replayed)
    assert meeting.listener.missing() == [2] and meeting.stops == []


STRANGERS = [  # noise, half a handshake, a record without one, something far too long
    lambda rng: rng.randbytes(rng.randrange(1, 200)),
    lambda rng: HELLO + rng.randbytes(rng.randrange(0, 200)),
    lambda rng: (HELLO + bytes(32))[: rng.randrange(1, 48)],
    lambda rng: struct.pack(">I", rng.randrange(2**32)) + rng.randbytes(40),
    lambda rng: HELLO + bytes(64) + rng.randbytes(4096),
    lambda rng: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
]


def test_strangers_neither_start_nor_stop_anything(meeting):
    node, records = meeting.join(1)
    wait_until(lambda: meeting.listener.missing() == [2])
    channel = meeting.open(1, HEADER)
    number = json.loads(read(node, records)[0][1:])["number"]
    rng = random.Random(7)
    for i in range(120):
        with contextlib.suppress(OSError), meeting.connect() as sock:
            sock.sendall(STRANGERS[i % len(STRANGERS)](rng))
    assert meeting.stops == [] and meeting.listener.missing() == [2]
    node.sendall(records.pack(b"D" + struct.pack(">I", number) + b"still here"))
    assert channel.recv(100) == b"still here"
    wait_until(lambda: len(meeting.told) == 1)  # once for this peer, however often it came
    assert meeting.told[0].startswith("a connection from 127.0.0.1 was refused: ")


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"], ids=["another-address", "the-nodes-own-address"])
def test_idle_sockets_of_one_peer_keep_no_honest_node_out(source):
    """300 connections that say nothing, and 50 nodes that join meanwhile."""
    with Meeting(51) as meeting:
        idle = [meeting.connect(source) for _ in range(300)]
        nodes = [meeting.join(rank) for rank in range(1, 51)]
        wait_until(lambda: meeting.listener.missing() == [])
        kept = [sock for sock in idle if not ended(sock)]
        assert 0 < len(kept) <= 64 and kept == idle[-len(kept) :], "the oldest go first"
        assert len(nodes) == 50


def ended(sock):
    """Whether the other side has closed it."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_many_addresses_share_the_room_for_strangers(meeting):
    """No address has more than its share; the one with most gives way."""
    crowd = [meeting.connect("127.0.0.2") for _ in range(60)]
    others = [meeting.connect(f"127.0.{1 + i // 50}.{1 + i % 50}") for i in range(250)]
    _node, _ = meeting.join(1, source="127.9.0.1")  # the name keeps the connection
    wait_until(lambda: meeting.listener.missing() == [2])
    assert sum(ended(sock) for sock in crowd) >= 50 and not any(ended(sock) for sock in others)


@pytest.mark.parametrize(
    "first",
    [
        b"C[]", b"C" + b"[" * 100_000, b"C{}", b'C{"type": 1}', b'C{"type": "hello"}',
        b'C{"type": "hello", "rank": true}',
        b'C{"type": "hello", "rank": 1, "nproc": -3}', b'C{"type": "hello", "rank": 1, "nproc": "8"}', b"D1234", b"",
        b'C{"type": "hello", "rank": "1"}', b'C{"type": "stop", "rank": 1}', b"C" + b" " * (1 << 20) + b"{}",
    ],
    ids=lambda first: str(first[:30]),
)  # fmt: skip
def test_a_first_word_that_is_no_hello_is_refused_and_the_connection_ends(meeting, first):
    sock = meeting.connect()
    records, _ = shaken(sock)
    with contextlib.suppress(OSError):
        sock.sendall(records.pack(first))
    assert gone(sock) and meeting.listener.missing() == [1, 2]
    wait_until(lambda: meeting.told)


def test_what_a_node_says_of_itself_is_bounded(meeting):
    node, records = meeting.join(1, hostname="../../x\x1b[2J", instance="i" * 1000, nproc=4, nnodes="3", version="1/1")
    wait_until(lambda: meeting.listener.missing() == [2])
    hello = meeting.listener.seats[1].hello
    assert (hello.hostname, hello.instance, hello.nproc) == ("", "i" * 64, 4)
    assert (hello.nnodes, hello.version, hello.command, hello.script) == ("3", "1/1", "", "")
    node.sendall(records.pack(b'C{"type": "stop", "reason": "\\u001b[2J"}'))
    node.sendall(records.pack(b'C{"type": "close", "number": "x"}'))
    node.sendall(records.pack(b'C{"type": "stop", "reason": "ctrl-c"}'))
    wait_until(lambda: meeting.stops)
    assert meeting.stops == ["ctrl-c"]


# -- addresses -------------------------------------------------------------------------------------------

ONLY_IPV4 = """
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 && echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6 || exit 77
ip link set lo up && exec "$@"
"""
LISTENS = """
import socket
from allranks.engines.dialled import ANY, LOOPBACK, Listener
for hosts in (ANY, LOOPBACK):
    listener = Listener(2, b"", lambda *words: 1, lambda text: None)
    port = listener.start(hosts, 0)
    socket.create_connection(("127.0.0.1", port), 30).close()
    listener.finish(0, "over")
    print("reached")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_machine_without_ipv6_is_listened_on():
    """Docker's default: `join` on 127.0.0.1 ended with "port 29400 cannot be listened on"."""
    command = ["unshare", "--net", "sh", "-c", ONLY_IPV4, "-", sys.executable, "-c", LISTENS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    if done.returncode == 77:
        pytest.skip("IPv6 cannot be switched off here")
    assert done.stdout.split() == ["reached", "reached"], done.stderr


@pytest.mark.parametrize("hosts", [ANY, LOOPBACK])
def test_both_families_have_the_same_port(hosts):
    """A step's tasks are told one port. It was that of IPv6 in every second start, and they dialled over IPv4."""
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    listener = Listener(2, SECRET, Meeting.admit, lambda text: None)
    port = listener.start(hosts, 0)
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, port), BOUND).close()
    listener.finish(0, "over")


def test_a_port_that_is_taken_is_named_with_the_reason():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^port {port} cannot be listened on: Address already in use\. Set"):
            Listener(2, SECRET, Meeting.admit, lambda text: None).start(LOOPBACK, port)


def test_a_node_that_does_not_come_back_is_a_verdict_with_a_cause(meeting):
    """The verdict of a retry for which it did not come was "unknown"."""
    transport = JoinedTransport({"h2": partial(meeting.listener.connect, 1)}, Launch())
    node = Node(1, "h2", "127.0.0.1")
    assert transport.silence(node, 12.0).id == "node-network-down"
    assert transport.failure(node, b"", "", None).id == "agent-killed"
    of_slurm = StepTransport([], RunSpec()).failure(node, b"", "reset by peer", None)
    assert of_slurm.id == "agent-killed" and of_slurm.message.endswith("Slurm's step has ended: reset by peer")


def test_a_node_gets_in_while_its_own_address_floods_the_port(meeting, caplog):
    """Connections as fast as the machine makes them, half of them open to the end of the run."""
    is_over = threading.Event()

    def flood():
        kept = []
        while not is_over.is_set():
            sock = socket.socket()
            sock.settimeout(1.0)
            with contextlib.suppress(OSError):
                sock.connect(("127.0.0.1", meeting.port))
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n"[: len(kept) % 8])
            if len(kept) < 200:
                kept.append(sock)
            else:
                sock.close()
        flooded.append(kept)

    flooded = []
    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for rank in (1, 2):
            tries = Tries([("127.0.0.1", meeting.port)], SECRET)
            connection = tries.dial(begun=False, give_up=time.monotonic() + BOUND)
            assert connection is not None, tries.why
            meeting.sockets.append(connection.socket)
            connection.tell(HelloControl(rank))
            connection.send()
        wait_until(lambda: meeting.listener.missing() == [])
        meeting.listener.finish(0, "over")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert len(flooded) == 2 and len(meeting.told) == 1
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
