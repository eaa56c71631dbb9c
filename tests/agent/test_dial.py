"""A node that dials: one limit for all that answers there, signals that are obeyed, and ranks that are kept."""

import contextlib
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from allranks.protocol.controls import (
    TO_COORDINATOR,
    TO_NODE,
    HelloControl,
    OpenControl,
    OverControl,
    RefusedControl,
    ToCoordinator,
    ToNode,
    WaitControl,
)
from allranks.protocol.frames import pack_json
from allranks.protocol.header import AgentHeader
from allranks.protocol.secure import HELLO, Handshake, pack_control, read_control

pytestmark = pytest.mark.processes
BOUND = 30.0  # seconds: below those for which the stranger can hold a node that counts each byte
DRIP = 0.5
SECRET = b"0123456789abcdef0123"
HEADER = AgentHeader("agent", "run-1", "node_01", "run-1/node_01", lease=30.0, grace=0.5)
NODE = """
import subprocess, sys
from allranks.agent.dial import Dialler, Relay, Rules, Tries
from allranks.protocol.controls import HelloControl
place = ("127.0.0.1", int(sys.argv[1]))
patience, lease = map(float, sys.argv[2:4])
relay = lambda header: subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
tries = Tries([place], b"0123456789abcdef0123")
relay = Relay(relay, ends_agent=False)
dialler = Dialler(tries, HelloControl(1), relay, Rules(), print, patience=patience, lease=lease)
outcome = dialler.run()
print(outcome.message)
sys.exit(outcome.exit)
"""


class Stranger(socketserver.ThreadingTCPServer):
    """At the address of node 0: it begins the handshake, and sends a byte now and then."""

    daemon_threads = True
    heard: threading.Event
    over: threading.Event

    def finish_request(self, request: Any, client_address: object) -> None:
        request.recv(4096)
        self.heard.set()
        with contextlib.suppress(OSError):
            for byte in HELLO + bytes(60):
                request.sendall(bytes([byte]))
                if self.over.wait(DRIP):
                    return
        self.over.wait()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with Stranger(("127.0.0.1", 0), socketserver.BaseRequestHandler) as one:
        one.heard, one.over = threading.Event(), threading.Event()
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.over.set()
        one.shutdown()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """The address of node 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(BOUND)
        yield listener


@contextlib.contextmanager
def node(port: int, patience: float, lease: float = 600.0, program: str = NODE) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", program, str(port), str(patience), str(lease)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], code: int) -> str:
    """What a node has said that ends with this code."""
    said, _ = process.communicate(timeout=BOUND)
    assert process.returncode == code, said
    return said


def test_who_sends_a_byte_now_and_then_holds_no_node_past_its_limit(stranger: Stranger) -> None:
    with node(stranger.server_address[1], 2.0) as process:
        assert "no coordinator answered at 127.0.0.1" in ended(process, 4)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_node_in_a_handshake(stranger: Stranger, number: signal.Signals, code: int) -> None:
    with node(stranger.server_address[1], 600.0) as process:
        assert stranger.heard.wait(BOUND)
        process.send_signal(number)
        assert "Interrupted system call" not in ended(process, code)


class Coordinator:
    """Node 0: one connection of the node after the other, each after its handshake and its hello."""

    def __init__(self, server: socket.socket) -> None:
        self._client = server.accept()[0]
        self._client.settimeout(BOUND)
        shake = Handshake(SECRET, listens=True)
        while not shake.done:
            self._client.sendall(shake.feed(self._client.recv(4096)))
        self._records = shake.channel()
        self._waiting = self._records.feed(b"")
        self.hello: ToCoordinator = TO_COORDINATOR.read(read_control(self.next()))

    def next(self) -> bytes:
        """Give the node's next record."""
        while not self._waiting:
            data = self._client.recv(4096)
            assert data, "the node hung up"
            self._waiting = self._records.feed(data)
        return self._waiting.pop(0)

    def tell(self, control: ToNode) -> None:
        self._client.sendall(self._records.pack(pack_control(TO_NODE.write(control))))

    def open(self, data: bytes) -> bytes:
        """Have the node start a relay that gets this data; return the record that has it."""
        self.tell(OpenControl(1, HEADER))
        record = b"D" + struct.pack(">I", 1) + data
        self._client.sendall(self._records.pack(record))
        return record

    def begin(self) -> None:
        """Have the node start a relay, and hang up once it answers."""
        echo = self.open(b"x")
        assert self.next() == echo
        self._client.close()


ANSWERS = {
    "another program": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another secret": HELLO + bytes(96),
    "another version": b"ALLRANKS-JOIN 1\n" + bytes(64),
    "silence": b"",
}


def test_a_node_with_ranks_dials_on_whatever_answers(server: socket.socket) -> None:
    """The coordinator comes back after another program, another secret and another run have answered in its place."""
    with node(server.getsockname()[1], 60.0) as process:
        Coordinator(server).begin()
        for answer in ANSWERS.values():
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(answer)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
        Coordinator(server).tell(RefusedControl(2, "it belongs to another run"))
        back = Coordinator(server)
        assert isinstance(back.hello, HelloControl) and back.hello.begun
        back.tell(OverControl(0, "all is well"))
        assert "all is well" in ended(process, 0)


def test_another_runs_coordinator_does_not_prolong_the_lease(server: socket.socket) -> None:
    """It knows the secret and answers again and again: the ranks end with the lease all the same."""
    with node(server.getsockname()[1], 60.0, lease=2.0) as process:
        Coordinator(server).begin()
        server.settimeout(0.5)
        while process.poll() is None:
            try:
                Coordinator(server).tell(RefusedControl(2, "it belongs to another run"))
            except OSError:
                continue
        assert "for the lease of 2 s: the ranks here are ended" in ended(process, 4)


OWN_RULES = "OwnRules(OwnOrders(RunSpec.of(command=('true',)), SetupOrder(), ()), None)"
JOINED = """
from allranks.engines.join import OwnRules
from allranks.plan.own_orders import OwnOrders
from allranks.protocol.orders import SetupOrder
from allranks.settings import RunSpec
"""


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"type": "hello", "protocol": 1, "lease": 1e9, "have": {}}, "$.lease: expected a number"),
        ({"type": "exec", "argv": ["id"]}, 'expected a known word, got "exec"'),
    ],
    ids=["out of bounds", "unknown"],
)
def test_an_order_that_is_none_ends_a_joined_node(order: dict[str, object], why: str, server: socket.socket) -> None:
    """The bounds of every field are in tests/protocol/test_orders.py."""
    with node(server.getsockname()[1], 60.0, program=JOINED + NODE.replace("Rules()", OWN_RULES)) as process:
        Coordinator(server).open(pack_json(order))
        said = ended(process, 4)
    assert "this node refused an order of the coordinator: " in said and why in said


def test_words_of_the_coordinator_are_shown_on_one_line_without_escapes(server: socket.socket) -> None:
    with node(server.getsockname()[1], 60.0) as process:
        coordinator = Coordinator(server)
        coordinator.tell(WaitControl("\x1b[2J\x1b]0;owned\x07node 1\nis\rlate" + "x" * 10**6))
        coordinator.tell(OverControl(3, "\x1b[31mred\nline"))
        said = ended(process, 3)
    assert "node 1 is late" in said and "[31mred line" in said
    assert "\x1b" not in said and "\x07" not in said and len(said) < 5000
