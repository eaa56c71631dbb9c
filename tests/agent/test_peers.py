"""Nodes trying each other, over the loopback: real sockets, real losses of the server's making."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allranks.agent import peers
from allranks.agent.rendezvous_check import probe
from allranks.protocol.codec import decode, encode
from allranks.protocol.orders import ProbeOrder, ReachOrder

pytestmark = pytest.mark.processes

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def doors() -> Iterator[tuple[int, int]]:
    """A node that serves: its TCP and UDP port."""
    tcp, udp = peers.open_doors()

    def serve() -> None:
        with contextlib.suppress(ValueError, OSError):  # the sockets are closed at the end
            peers.serve(tcp, udp, TOKEN, 20.0)

    threading.Thread(target=serve, daemon=True).start()
    yield tcp.getsockname()[1], udp.getsockname()[1]
    tcp.close()
    udp.close()


def tried(port: int, udp: int, address: str = "127.0.0.1", token: str = TOKEN, **more: Any) -> dict[str, Any]:
    request = {"token": token, "sender": 3, "seconds": 15, "names": [],
               "peers": {"h2": {"address": address, "port": port, "udp": udp, **more}}}  # fmt: skip
    result: dict[str, Any] = encode(peers.reach(decode(ReachOrder, request)).pairs["h2"])
    return result


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_peer_that_is_fine(doors: tuple[int, int], address: str) -> None:
    found = tried(*doors, address=address)
    assert found["ok"] and found["bulk"] and found["local_address"] == address
    assert (found["sent"], found["arrived"]) == (peers.BURST, peers.BURST)
    assert found["mtu_arrived"] == min(found["mtu_local"], 65535) or found["mtu_arrived"] >= 9216


@contextlib.contextmanager
def answering(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a program that talks so with the first who connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: talk(server.accept()[0]), daemon=True).start()
        yield server.getsockname()[1]


def test_nobody_listens(doors: tuple[int, int]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = tried(free.getsockname()[1], doors[1])
    assert (found["ok"], found["error"]) == (False, "refused") and "bulk" not in found
    assert found["arrived"] == peers.BURST, "UDP is measured all the same"


def test_addresses_of_the_master_are_tried_where_no_thread_may_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        order = ProbeOrder(("127.0.0.1", "localhost"), free.getsockname()[1], TOKEN, 5.0)
        assert [result.error for result in probe(order).results] == ["refused", "refused"]


def test_a_foreign_program_answers(doors: tuple[int, int]) -> None:
    with answering(lambda client: client.sendall(b"SSH-2.0-x\n")) as port:
        found = tried(port, doors[1])
    assert (found["ok"], found["error"]) == (False, "foreign")


def test_a_program_that_leaves_within_the_token_is_a_foreign_one() -> None:
    with answering(lambda client: client.sendall(TOKEN[:1].encode())) as port:
        order = ProbeOrder(("127.0.0.1",), port, TOKEN, 2.0)
        assert [result.error for result in probe(order).results] == ["foreign"]


def test_another_token_gets_no_answer(doors: tuple[int, int]) -> None:
    found = tried(*doors, token="f" * 32)
    assert found["ok"] is False and found["arrived"] == 0


def test_a_peer_that_takes_no_bulk_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind an MTU black hole: the greeting passes, and then nothing."""
    monkeypatch.setattr(peers, "BULK_SECONDS", 0.5)
    kept = []

    def greet(client: socket.socket) -> None:
        client.sendall(client.recv(100))
        kept.append(client)

    with answering(greet) as port:
        found = tried(port, 0)
    assert (found["ok"], found["bulk"]) == (True, False)


def test_lost_packets_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that forgets each third packet of the burst."""
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 0.5)  # no program answers over TCP
    tcp, udp = peers.open_doors()
    counts = peers.BurstCounts()

    def forgetful() -> None:
        while True:
            data, sender = udp.recvfrom(65535)
            given, number, kind, sequence = peers.HEAD.unpack_from(data)
            if kind == peers.BURST_KIND and sequence % 3:
                counts.numbers.setdefault(number, set()).add(sequence)
            elif kind == peers.ASK_KIND:
                answer = peers.HEAD.pack(given, number, peers.ANSWER_KIND, sequence)
                udp.sendto(answer + counts.answer(number), sender)

    threading.Thread(target=forgetful, daemon=True).start()
    found = tried(tcp.getsockname()[1], udp.getsockname()[1])
    assert found["sent"] == peers.ROUNDS * peers.BURST
    assert found["arrived"] == sum(1 for n in range(found["sent"]) if n % 3)


def test_other_ways_and_names(doors: tuple[int, int]) -> None:
    found = tried(*doors, ways=["127.0.0.2", "::1"])
    assert [(w["address"], w["ok"]) for w in found["ways"]] == [("127.0.0.2", True), ("::1", True)]
    request = {"token": TOKEN, "sender": 1, "seconds": 5, "peers": {}, "names": ["localhost", "no-such-host.invalid"]}
    names = peers.reach(decode(ReachOrder, request)).names
    assert "127.0.0.1" in names["localhost"] and names["no-such-host.invalid"] == ()
