"""Fuzzers of join: the handshake from both sides, records after it, and orders that reach a real agent."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.agent.hostile import TOKEN, Service
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped, hostile_json, mutated

from allranks.agent.dial import Dialler, DialOutcome, DialRefused, DialTerms, Relay, Rules, Tries
from allranks.agent.tls import Encryption
from allranks.engines.calls import ChannelServer, socket_name
from allranks.engines.dialled import Listener, Refuse, Seat, own_encryption
from allranks.engines.join import Calls, OwnRules, spawn
from allranks.engines.joined import own_of
from allranks.protocol.codec import decode, encode
from allranks.protocol.controls import HelloControl
from allranks.protocol.frames import Decoder, FrameError, pack_json
from allranks.protocol.header import AgentHeader
from allranks.protocol.secure import HELLO, Handshake, Records, pack_control
from allranks.settings import RunSpec

pytestmark = pytest.mark.fuzz
SECRET = b"0123456789abcdef0123"
BOUND = 60.0
RUN = f"run-{os.getpid()}"
Message = dict[str, Any]


# -- the node's side of the handshake and of control records -----------------------------------------------------


HEADER = AgentHeader("agent", "r", "node_01", "r/node_01", lease=30.0, grace=1.0)
CONTROLS: list[Message] = [
    {"type": "wait", "say": "1 of 2 nodes are here"},
    {"type": "open", "number": 1, "header": encode(HEADER)},
    {"type": "close", "number": 1},
    {"type": "fetch", "number": 1, "header": {"mode": "fetch", "root": "/data", "wanted": [["a", 0]]}},
    {"type": "call", "token": "0123456789abcdef0123456789abcdef"},
    {"type": "refused", "exit": 2, "message": "no"},
    {"type": "over", "exit": 0, "message": "done"},
]


@functools.cache
def certified() -> Encryption | None:
    """A listener's part of encryption, made once."""
    return own_encryption()[0]


def answer(client: socket.socket, rng: random.Random) -> None:
    """One connection of a node: a handshake that may be broken, then records that may be."""
    with contextlib.suppress(OSError, ValueError), client:
        client.settimeout(BOUND)
        shake = Handshake(SECRET, listens=True, encryption=rng.choice((None, certified())))
        reply = shake.feed(client.recv(4096))
        if rng.random() < 0.5:
            client.sendall(flipped(reply, rng))
            return
        client.sendall(reply)
        while not shake.done:
            reply = shake.feed(client.recv(4096))
            client.sendall(flipped(reply, rng) if reply and rng.random() < 0.3 else reply)
        records = shake.channel()
        client.sendall(b"".join(_records(records, rng) for _ in range(rng.randrange(1, 8))))


class OneCall(Dialler):
    """It dials once, and its loop is the test's."""

    def call(self, header: AgentHeader | None) -> DialOutcome | None:
        """Dial and serve, as a node that has begun with this header, or has not begun."""
        self._relay.header = header
        outcome = self._dial()
        if outcome is None and self._connection is not None:
            outcome = self._serve(self._connection)
        self._hang_up()
        return outcome

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
    """In one process, so that there are thousands of connections: tests/agent/test_join_hostile.py has real nodes."""
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
        dialler = OneCall(tries, HelloControl(1), Relay(child), Rules(), DialTerms(60.0, 60.0), said.append)
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


def greeting(rng: random.Random) -> Callable[[socket.socket], None]:
    """What one stranger does: noise, a broken handshake, or (who knows the secret) broken records."""
    hello = {"type": "hello", "rank": 2, "hostname": "h", "instance": "i", "nproc": 1, "begun": False, "nnodes": "3"}
    if rng.random() < 0.3:
        hello["call"] = "0123456789abcdef0123456789abcdef"

    def talk(sock: socket.socket) -> None:
        kind = rng.randrange(4)
        if kind == 0:
            sock.sendall(flipped(HELLO + bytes(64), rng))
            return
        shake = Handshake(SECRET, listens=False, encryption=rng.choice((None, Encryption())))
        sock.sendall(shake.begin())
        while not shake.done:
            reply = shake.feed(sock.recv(4096))
            sock.sendall(flipped(reply, rng) if kind == 1 and reply else reply)
            if kind == 1 and reply:
                return
        records = shake.channel()
        first = mutated(hello, rng) if kind == 2 else hello
        sock.sendall(records.pack(b"C" + json.dumps(first).encode()))
        for _ in range(rng.randrange(40)):
            word = rng.choice(
                (
                    {"type": "closed", "number": 1},
                    {"type": "stop", "reason": "later"},
                    {"type": "declined", "token": "0123456789abcdef", "message": "no"},
                )
            )
            noise = rng.choice((b"D", b"X", b"D\0\0\0\7")) + rng.randbytes(rng.randrange(4, 60))
            control = b"C" + json.dumps(mutated(word, rng)).encode()
            sock.sendall(records.pack(rng.choice((noise, control))))

    return talk


def test_whatever_strangers_and_nodes_send_the_others_go_on(campaign: Campaign) -> None:
    stops, told = list[str](), list[str]()
    listener = Listener(3, SECRET, admit, told.append)
    listener.stopped = stops.append
    port = listener.start(["127.0.0.1"], 0)
    good = socket.create_connection(("127.0.0.1", port), BOUND)
    try:
        shake = Handshake(SECRET, listens=False)
        good.sendall(shake.begin())
        while not shake.done:
            good.sendall(shake.feed(good.recv(4096)))
        records = shake.channel()
        good.sendall(records.pack(pack_control({"type": "hello", "rank": 1, "instance": "good"})))
        while 1 in listener.missing():
            time.sleep(0.01)
        for chance in campaign.cases(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), BOUND) as sock:
                sock.settimeout(BOUND)
                greeting(chance)(sock)
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
    listener.serve(ChannelServer(listener, {"h2": 1}).start(name))

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


# -- orders --------------------------------------------------------------------------------------------------------


def orders(port: int) -> list[Message]:
    """One honest order of each kind, for a node that trains or is checked."""
    terms = {"world_size": 2, "index": 1, "of": 2, "first_rank": 1, "nproc": 1, "attempt": 0, "repeats": 0,
             "tests": None, "master_addr": "127.0.0.1", "master_port": port, "run": RUN, "run_tag": f"{RUN}/node_01",
             "interfaces": {}}  # fmt: skip
    peer = {"address": "127.0.0.1", "ways": [], "port": port, "udp": port}
    return [
        {"type": "hello", "protocol": 1, "lease": 60.0, "have": {"0/0/0": 0}},
        {"type": "ping", "sent": 1.0},
        {"type": "ack", "sizes": {"1/0/0": 0}},
        {"type": "taken", "output": 0},
        {"type": "setup", "uid": RUN, "checks": [], "seconds": 30.0},
        {"type": "probe", "addresses": ["127.0.0.1"], "port": port, "token": TOKEN, "seconds": 0.2, "nonce_dir": None},
        {"type": "start", "attempt": 0, "ranks": [], "terms": terms},
        {"type": "stacks", "ranks": [1], "ask": "look"},
        {"type": "counters", "ranks": [1]},
        {"type": "call-times", "ranks": [1], "most": 400, "suspects": []},
        {"type": "signal", "attempt": 0, "order": 1, "name": "USR1"},
        {"type": "end", "grace": 0.0, "reason": "failure"},
        {"type": "listen", "port": 0, "token": TOKEN},
        {"type": "serve", "token": TOKEN, "seconds": 0.2},
        {"type": "reach", "token": TOKEN, "sender": 1, "names": [], "seconds": 0.2, "peers": {"b": peer}},
    ]


class NodeRules(OwnRules):
    def begin_stream(self) -> None:
        """What comes next is the first of a connection."""
        self._down = Decoder()


class Agent:
    """A real agent of this machine behind a node's own rules."""

    HEADER: ClassVar[Message] = {
        "mode": "agent", "uid": RUN, "node": "node_01", "run_tag": f"{RUN}/node_01", "lease": 60.0,
        "grace": 0.2, "checks": [],
    }  # fmt: skip

    def __init__(self, spec: RunSpec) -> None:
        self.rules = NodeRules(own_of(spec), Calls(spec, SECRET, [], print))
        self.frames: list[Message] = []
        self._relay: subprocess.Popen[bytes] | None = None
        self.attach("agent")

    def attach(self, mode: str = "attach") -> None:
        """A new relay; the one before ends."""
        self._end_relay()
        self._relay = spawn(self.rules.header(decode(AgentHeader, {**self.HEADER, "mode": mode})))
        self._decoder = Decoder()

    def _end_relay(self) -> None:
        if self._relay is not None:
            assert self._relay.stdin is not None and self._relay.stdout is not None
            self._relay.stdin.close()
            self._relay.stdout.close()
            self._relay.kill()
            self._relay.wait()

    def give(self, data: bytes) -> bool:
        """Whether the rules let it pass; each begins a stream of its own, as after a new connection."""
        assert self._relay is not None and self._relay.stdin is not None
        self.rules.begin_stream()
        try:
            made = self.rules.down(data)
        except (DialRefused, FrameError):
            return False
        try:
            self._relay.stdin.write(made)
        except BrokenPipeError:  # an order before has ended the connection
            self.attach()
        return bool(made)

    def until(self, kind: str) -> Message:
        assert self._relay is not None and self._relay.stdout is not None
        while True:
            for frame in self.frames:
                if frame["type"] == kind:
                    self.frames.clear()
                    return frame
            data = os.read(self._relay.stdout.fileno(), 1 << 18)
            assert data, "the agent is gone"
            self.rules.up(data)
            self.frames += [f for f in self._decoder.feed(data) if isinstance(f, dict)]

    def alive(self) -> int:
        """The agent's pid over a new connection; fails where it does not answer."""
        self.attach()
        assert self.give(pack_json({"type": "hello", "protocol": 1, "lease": 60.0, "have": {}}))
        hello = self.until("hello")
        assert not hello["dead"], hello
        return int(hello["pid"])

    def close(self) -> None:
        self.alive()
        self.give(pack_json({"type": "end", "grace": 0.0, "reason": "done"}))
        self.until("ended")
        self.give(pack_json({"type": "release"}))
        assert self._relay is not None and self._relay.stdout is not None
        while os.read(self._relay.stdout.fileno(), 1 << 18):
            pass
        self._end_relay()


@pytest.fixture
def scratch() -> Iterator[str]:
    """A directory with a short path: a socket's is bounded."""
    with tempfile.TemporaryDirectory(prefix="ar") as path:
        yield path


@pytest.mark.parametrize("what", ["train", "check"])
def test_whatever_order_passes_the_agent_lives_and_runs_its_own_program(
    what: str, tmp_path: Path, scratch: str, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(work)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "py-spy").write_text("#!/bin/sh\nexit 1\n")  # it would take most of the time
    (tmp_path / "bin" / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    spec = RunSpec.of(nodes=2, node_rank=1, master_addr="127.0.0.1", node_dir=scratch, nproc=1)
    spec = spec.changed(python=sys.executable)
    spec = spec.changed(command=("train.py",)) if what == "train" else spec
    passed = Counter[str]()
    agent = Agent(spec)
    agent.give(pack_json({"type": "hello", "protocol": 1, "lease": 60.0, "have": {}}))
    pid = int(agent.until("hello")["pid"])
    master = Service(token=TOKEN)
    honest = orders(master.port)
    try:
        for number, chance in enumerate(campaign.cases(150)):
            order = chance.choice(honest)
            changed = mutated(order, chance) if number % 5 else order
            body = json.dumps(changed).encode()
            frame = struct.pack(">IB", len(body) + 1, ord("J")) + body
            if agent.give(frame if number % 7 else flipped(frame, chance)):
                passed[str(order["type"])] += 1
            if number % 25 == 24:
                assert agent.alive() == pid
        assert agent.alive() == pid
        _only_own_programs(work)
    finally:
        campaign.counts.update(passed=sum(passed.values()), kinds=len(passed))
        agent.close()
        master.close()
    assert sorted(p.name for p in work.iterdir()) == ["train.py"]


def _only_own_programs(work: Path) -> None:
    """What works in the node's directory is the agent and its program."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(work) and int(entry) != os.getpid():
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
                assert b"ALLRANKS-" in words or b"train.py" in words or words == b"", words


