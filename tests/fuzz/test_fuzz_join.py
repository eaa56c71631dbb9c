"""Fuzzers of join: the handshake from both sides, records after it, and orders that reach a real agent."""

import contextlib
import functools
import json
import random
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped, hostile_json, mutated
from tests.hosts.waiting import BOUND, wait_until

from allranks.agent.dial import Dialler, DialOutcome, Relay, Rules, Tries
from allranks.agent.tls import Encryption
from allranks.engines.calls import serve_channels
from allranks.engines.dialled import Listener, Refuse, Seat, own_encryption
from allranks.protocol.codec import encode
from allranks.protocol.controls import HelloControl
from allranks.protocol.header import AgentHeader
from allranks.protocol.secure import HELLO, Handshake, Records, pack_control
from allranks.runs.questions import socket_name

pytestmark = pytest.mark.fuzz
SECRET = b"0123456789abcdef0123"
Message = dict[str, Any]


# -- the node's side of the handshake and of control records -----------------------------------------------------


HEADER = AgentHeader("agent", "r", "node_01", "r/node_01", lease=30.0, grace=1.0)
CONTROLS: list[Message] = [
    {"type": "wait", "say": "1 of 2 nodes are here"},
    {"type": "open", "number": 1, "header": encode(HEADER)},
    {"type": "close", "number": 1},
    {"type": "open", "number": 1, "header": {"mode": "fetch", "root": "/data", "wanted": [["a", 0]]}},
    {"type": "call", "token": "0123456789abcdef0123456789abcdef"},
    {"type": "refused", "exit": 2, "message": "no"},
    {"type": "over", "exit": 0, "message": "done"},
]


certified = functools.cache(lambda: own_encryption()[0])


def shaken(sock: socket.socket, shake: Handshake, rng: random.Random, chance: float = 0.0) -> bool:
    """Carry a handshake to its end; False where a reply was broken: bytes may be missing, and the other side waits."""
    while not shake.done:
        reply = shake.feed(sock.recv(4096))
        is_broken = bool(reply) and rng.random() < chance
        sock.sendall(flipped(reply, rng) if is_broken else reply)
        if is_broken:
            return False
    return True


def answer(client: socket.socket, rng: random.Random) -> None:
    """One connection of a node: a handshake that may be broken, then records that may be."""
    with contextlib.suppress(OSError, ValueError), client:
        client.settimeout(BOUND)
        shake = Handshake(SECRET, listens=True, encryption=rng.choice((None, certified())))
        if not shaken(client, shake, rng, 0.4):
            return
        records = shake.channel()
        client.sendall(b"".join(_records(records, rng) for _ in range(rng.randrange(1, 8))))


class OneCall(Dialler):
    """It dials once, and its loop is the test's."""

    def call(self, header: AgentHeader | None) -> DialOutcome | None:
        """Dial and serve, as a node that has begun with this header, or has not begun."""
        self._relay.header = header
        self._heard = time.monotonic()  # as when it begins: a handshake has its whole time
        return self._turn()

    def was_ended(self) -> bool:
        """Tell whether the coordinator ended it, or it has not begun."""
        return self._over is not None or not self._begun


def _records(records: Records, rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return records.pack(pack_control(rng.choice(CONTROLS)))
    if kind == 1:
        found = mutated(rng.choice(CONTROLS), rng)
        return records.pack(b"C" + json.dumps(found).encode())
    if kind == 2:
        return records.pack(rng.choice((b"C", b"D", b"D\0\0\0\1", b"X")) + rng.randbytes(rng.randrange(0, 60)))
    return flipped(records.pack(pack_control(rng.choice(CONTROLS))), rng)


def test_whatever_a_coordinator_answers_the_dialler_says_how_it_ended(campaign: Campaign) -> None:
    """In one process, so that there are thousands of connections."""
    outcomes = Counter[str]()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                answer(server.accept()[0], campaign.random)

    threading.Thread(target=serve, daemon=True).start()
    said: list[str] = []

    def child(header: AgentHeader) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    places = [("127.0.0.1", server.getsockname()[1])]
    for number, _ in enumerate(campaign.cases(400)):
        tries = Tries(places, SECRET)
        dialler = OneCall(tries, HelloControl(1), Relay(child), Rules(), said.append, patience=60.0, lease=60.0)
        outcome = dialler.call(HEADER if number % 2 else None)
        assert outcome is None or (isinstance(outcome, DialOutcome) and 0 <= outcome.exit <= 255)
        assert not (number % 2 and outcome is not None and outcome.exit == 2 and not dialler.was_ended())
        outcomes["ended" if outcome else "dials on"] += 1
    server.close()
    assert outcomes["ended"] and outcomes["dials on"]
    assert all(line.isprintable() and len(line) < 4000 for line in said)
    campaign.counts.update(outcomes)


# -- node 0's side -------------------------------------------------------------------------------------------------


def admit(seats: dict[int, Seat], hello: HelloControl, address: str) -> int:
    seat = seats.get(hello.rank)
    if seat is None or (seat.taken and seat.hello.instance != hello.instance):
        raise Refuse("no such rank, or another's")
    return hello.rank


OF_NODES: list[Message] = [
    {"type": "close", "number": 1},
    {"type": "stop", "reason": "later"},
    {"type": "declined", "token": "0123456789abcdef", "message": "no"},
]


def greet(sock: socket.socket, rng: random.Random) -> None:
    """What one stranger does: noise, a broken handshake, or (who knows the secret) broken records."""
    hello = {"type": "hello", "rank": 2, "hostname": "h", "instance": "i", "nproc": 1, "begun": False, "nnodes": "3"}
    if rng.random() < 0.3:
        hello["call"] = "0123456789abcdef0123456789abcdef"
    kind = rng.randrange(4)
    if kind == 0:
        sock.sendall(flipped(HELLO + bytes(64), rng))
        return
    shake = Handshake(SECRET, listens=False, encryption=rng.choice((None, Encryption())))
    sock.sendall(shake.begin())
    if not shaken(sock, shake, rng, float(kind == 1)):
        return
    records = shake.channel()
    first = mutated(hello, rng) if kind == 2 else hello
    sock.sendall(records.pack(b"C" + json.dumps(first).encode()))
    for _ in range(rng.randrange(40)):
        noise = rng.choice((b"D", b"X", b"D\0\0\0\7")) + rng.randbytes(rng.randrange(4, 60))
        control = b"C" + json.dumps(mutated(rng.choice(OF_NODES), rng)).encode()
        sock.sendall(records.pack(rng.choice((noise, control))))


def test_whatever_strangers_and_nodes_send_the_others_go_on(campaign: Campaign) -> None:
    stops, told = list[str](), list[str]()
    listener = Listener(3, SECRET, admit, told.append)
    listener.stopped = stops.append
    port = listener.start(["127.0.0.1"], 0)
    good = socket.create_connection(("127.0.0.1", port), BOUND)
    try:
        shake = Handshake(SECRET, listens=False)
        good.sendall(shake.begin())
        shaken(good, shake, campaign.random)
        records = shake.channel()
        good.sendall(records.pack(pack_control({"type": "hello", "rank": 1, "instance": "good"})))
        wait_until(lambda: 1 not in listener.missing())
        for chance in campaign.cases(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), BOUND) as sock:
                sock.settimeout(BOUND)
                greet(sock, chance)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
        assert stops == [] and 1 not in listener.missing()
        good.sendall(records.pack(pack_control({"type": "stop", "reason": "ctrl-c"})))
        while not stops:
            assert good.recv(65536)  # beats come
        campaign.counts["lines told"] = len(told)
    finally:
        good.close()
        listener.finish(0, "over")


QUESTIONS: list[Message] = [
    {"node": "h2", "seconds": 0.0, "header": encode(HEADER)},
    {"node": "h2", "seconds": 0.0, "header": {"mode": "fetch", "root": "/data", "wanted": [["a", 0]]}},
]


def test_whatever_a_process_of_this_machine_asks_for_the_coordinator_goes_on(campaign: Campaign) -> None:
    """It gets a short answer or none, and the next one is answered."""
    listener = Listener(2, SECRET, admit, lambda text: None)
    port = listener.start(["127.0.0.1"], 0)
    name = socket_name(f"fuzz-{port}")
    listener.serve(serve_channels(listener, {"h2": 1}, name))

    def asked(data: bytes, seconds: float = 0.5) -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(seconds)  # a question may be for an hour
            sock.connect(name)
            said = b""
            with contextlib.suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65536):
                    said += part
            return said

    try:
        for chance in campaign.cases(300):
            question = chance.choice(QUESTIONS)
            kind = chance.randrange(3)
            body = hostile_json(chance) if kind == 0 else json.dumps(mutated(question, chance)).encode()
            packed = struct.pack(">I", len(body)) + body
            said = asked(flipped(packed, chance) if kind == 1 else packed)
            assert len(said) < 1000
            campaign.counts["answered"] = campaign.counts.get("answered", 0) + bool(said)
        body = json.dumps(QUESTIONS[0]).encode()
        answer = json.loads(asked(struct.pack(">I", len(body)) + body, BOUND)[4:])
        assert answer == {"failed": "it did not answer in time"}, "h2 has not joined"
    finally:
        listener.finish(0, "over")
