"""Channels that a command on node 0 asks the coordinator for: who gets one, and what everybody else gets."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.engines.test_dialled import BOUND, HEADER, Meeting, read
from tests.hosts.waiting import wait_until

from allranks.cluster import Node
from allranks.engines.calls import CalledTransport, serve_channels
from allranks.errors import NodeError
from allranks.gang.transport import Client
from allranks.protocol.header import FetchHeader
from allranks.protocol.secure import Records
from allranks.runs.questions import socket_name
from allranks.settings import RunSpec

NODE = Node(1, "h2", "h2")


class Coordinator(Meeting):
    """A listener that answers commands of this machine too."""

    def __init__(self) -> None:
        super().__init__()
        self.uid = secrets.token_hex(8)
        self.listener.serve(serve_channels(self.listener, {"h2": 1, "h3": 2}, socket_name(self.uid)))

    def control(self, sock: socket.socket, records: Records) -> dict[str, object]:
        """The next control message that a node gets."""
        return dict(json.loads(read(sock, records)[0][1:]))

    def asked(self, node: Node = NODE, header: object = HEADER, seconds: float = BOUND) -> Future[Client]:
        """A command asks for a channel, as `exec` does."""
        transport = CalledTransport(self.uid, os.getpid(), RunSpec())
        return ThreadPoolExecutor().submit(asyncio.run, transport.connect(node, header, seconds))


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator() as made:
        yield made


@pytest.mark.parametrize("header", [HEADER, FetchHeader("/data")], ids=["command", "fetch"])
def test_a_node_dials_once_more_and_its_connection_is_the_channel(coordinator, header):
    node, records = coordinator.join(1)
    wait_until(lambda: coordinator.listener.missing() == [2])
    asked = coordinator.asked(header=header)
    call = coordinator.control(node, records)
    assert call["type"] == "call" and len(call["token"]) == 32
    answer, answer_records = coordinator.join(1, call=call["token"])
    opened = coordinator.control(answer, answer_records)
    assert opened["type"] == "open"
    client = asked.result(BOUND)
    os.write(client.stdin, b"down")
    assert read(answer, answer_records) == [b"D" + struct.pack(">I", opened["number"]) + b"down"]
    answer.sendall(answer_records.pack(b"D" + struct.pack(">I", opened["number"]) + b"up"))
    os.set_blocking(client.stdout, True)
    assert os.read(client.stdout, 100) == b"up"
    client.end()
    assert coordinator.control(answer, answer_records) == {"type": "over", "exit": 0, "message": ""}
    assert coordinator.listener.missing() == [2], "the node's own connection stays"


def test_a_node_declines_in_its_own_words_on_one_line(coordinator):
    node, records = coordinator.join(1)
    asked = coordinator.asked()
    token = coordinator.control(node, records)["token"]
    words = {"type": "declined", "token": token, "message": "it joined without\n\x1b[2J--allow-exec"}
    node.sendall(records.pack(b"C" + json.dumps(words).encode()))
    with pytest.raises(NodeError, match=r"^it joined without  \[2J--allow-exec\nhint: start `allranks join` there"):
        asked.result(BOUND)


def test_a_call_is_answered_by_the_node_that_was_called_alone(coordinator):
    """Another member cannot take it over, decline it, or answer it twice."""
    node, records = coordinator.join(1)
    other, other_records = coordinator.join(2)
    wait_until(lambda: coordinator.listener.missing() == [])
    asked = coordinator.asked()
    token = coordinator.control(node, records)["token"]
    words = {"type": "declined", "token": token, "message": "never"}
    other.sendall(other_records.pack(b"C" + json.dumps(words).encode()))
    for rank, said in ((2, token), (1, "0" * 32)):
        wrong, wrong_records = coordinator.join(rank, call=said)
        refused = coordinator.control(wrong, wrong_records)
        assert (refused["type"], refused["message"]) == ("refused", "the call is over")
    answer, answer_records = coordinator.join(1, call=token)
    assert coordinator.control(answer, answer_records)["type"] == "open"
    assert asked.result(BOUND) is not None
    late, late_records = coordinator.join(1, call=token)
    assert coordinator.control(late, late_records)["type"] == "refused"


def test_a_node_that_does_not_come_or_is_none_is_said(coordinator):
    with pytest.raises(NodeError, match=r"^it did not answer in time$"):
        coordinator.asked(seconds=0.2).result(BOUND)
    with pytest.raises(NodeError, match="nowhere is not a node that has joined"):
        coordinator.asked(Node(5, "nowhere", "nowhere")).result(BOUND)


def test_the_socket_of_another_process_is_not_spoken_to():
    uid = secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(socket_name(uid))
        squatter.listen(1)
        transport = CalledTransport(uid, os.getppid(), RunSpec())
        with pytest.raises(NodeError, match=rf"belongs to another process \(pid {os.getpid()}, user {os.getuid()}\)"):
            asyncio.run(transport.connect(NODE, HEADER, BOUND))
        client, _ = squatter.accept()
        assert client.recv(100) == b"", "nothing was asked of it"
        client.close()


CONNECTS = """
import os, socket, struct, sys
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.connect("\\0" + sys.argv[1])
try:
    sock.sendall(struct.pack(">I", 2) + b"{}")
    print(sock.recv(100))
except OSError as error:
    print(b"")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_gets_no_answer(coordinator):
    words = [sys.executable, "-S", "-c", CONNECTS, socket_name(coordinator.uid)[1:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND)
    assert done.stdout == "b''\n", done.stderr
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(BOUND)
    sock.connect(socket_name(coordinator.uid))
    sock.sendall(struct.pack(">I", 2) + b"{}")
    assert b"the request cannot be read" in sock.recv(1000), "its own user gets one"
    sock.close()
