"""A node that dials: one limit for all that answers there, and signals that are obeyed meanwhile."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from allranks.protocol.secure import HELLO

pytestmark = pytest.mark.processes
BOUND = 30.0  # seconds: below those for which the stranger can hold a node that counts each byte
DRIP = 0.5
NODE = """
import sys
from allranks.agent.dial import Dialler, DialTerms, Relay, Rules, Tries
from allranks.protocol.controls import HelloControl
place = ("127.0.0.1", int(sys.argv[1]))
terms = DialTerms(float(sys.argv[2]), 600.0)
dialler = Dialler(Tries([place], b"0123456789abcdef0123"), HelloControl(1), Relay(None), Rules(), terms, print)
outcome = dialler.run()
print(outcome.message)
sys.exit(outcome.exit)
"""


class Stranger:
    """At the address of node 0: it begins the handshake, and sends a byte now and then."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.heard = threading.Event()
        self.over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self.over.is_set():
            try:
                peer = self.server.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._drip, args=(peer,), daemon=True).start()

    def _drip(self, peer: socket.socket) -> None:
        with peer:
            peer.recv(4096)
            self.heard.set()
            for byte in HELLO + bytes(60):
                try:
                    peer.sendall(bytes([byte]))
                except OSError:
                    return
                if self.over.wait(DRIP):
                    return
            self.over.wait()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    stranger = Stranger()
    yield stranger
    stranger.over.set()
    stranger.server.close()


def node(port: int, patience: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", NODE, str(port), str(patience)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_who_sends_a_byte_now_and_then_holds_no_node_past_its_limit(stranger: Stranger) -> None:
    with node(stranger.port, 2.0) as process:
        try:
            said, _ = process.communicate(timeout=BOUND)
        finally:
            process.kill()
    assert process.returncode == 4
    assert "no coordinator answered at 127.0.0.1" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_node_in_a_handshake(stranger: Stranger, number: signal.Signals, code: int) -> None:
    with node(stranger.port, 600.0) as process:
        try:
            assert stranger.heard.wait(BOUND)
            process.send_signal(number)
            said, _ = process.communicate(timeout=BOUND)
        finally:
            process.kill()
    assert process.returncode == code
    assert "Interrupted system call" not in said
