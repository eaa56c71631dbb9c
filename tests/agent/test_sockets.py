"""A process's connections by the kernel's own counters: what the peer has not acknowledged, and what has arrived."""

import os
import socket
import subprocess
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from allranks.agent import netfacts, sockets
from allranks.agent.sockets import connections


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection of this process to itself, which counts as one to another machine here."""
    monkeypatch.setattr(sockets, "is_loopback", lambda address: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
    with one, other:
        yield one, other


def name(end: tuple[str, int]) -> str:
    return f"{end[0]}:{end[1]}"


def test_both_ends_of_a_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(b"x" * 1000)
    assert other.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
    by_end = {found.local: found for found in connections({3: os.getpid()})[3]}
    sender, receiver = by_end[name(one.getsockname())], by_end[name(other.getsockname())]
    assert (sender.peer, receiver.peer) == (receiver.local, sender.local)
    assert (sender.queued, sender.retransmits, sender.connecting) == (0, 0, False)
    assert receiver.received == 1000
    assert sender.acked in (1000, 1001)  # the SYN of who connected counts too


def test_the_kernel_is_asked_once_for_all_ranks(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(wraps=netfacts.dump)
    monkeypatch.setattr(netfacts, "dump", asked)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=pair[1]) as other:
        found = connections({3: os.getpid(), 4: other.pid})
        other.communicate()
    assert [call.args[2][0] for call in asked.call_args_list] == [socket.AF_INET, socket.AF_INET6]
    assert set(found) == {3, 4} and [one.local for one in found[4]] == [name(pair[1].getsockname())]


def test_strangers_have_none() -> None:
    assert connections({3: 2**22}) == {}
