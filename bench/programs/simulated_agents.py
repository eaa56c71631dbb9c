"""Many agents in one process, without nodes below them: simulated_agents.py SOCKET FACTS trains|sleeps.

Each connection to SOCKET is one agent. It speaks the real protocol with the records that a real agent speaks it with,
and no process of a rank stands behind what it says. FACTS are those of one real node: each agent has a name, addresses
and identity of its own. A line `fail NODE RANK` on standard input ends a rank with code 1.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allranks.agent.link import Link
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.frames import RANK_LOG, Frame, Stream, output_head, stream_key
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import (
    AddressProbe,
    CallTimesMessage,
    CountersMessage,
    DrainedMessage,
    EndedMessage,
    ExitMessage,
    FactsMessage,
    HelloMessage,
    ListeningMessage,
    PongMessage,
    ProbedMessage,
    StacksMessage,
    StartedMessage,
)
from allranks.protocol.samples import NodeUsage

PORT = 29500
FIRST_PRINTS = 10.0  # seconds between two lines of a node's first rank,
OTHERS_PRINT = 60.0  # and of its others
TICK = 0.1


class Agent:
    """One agent: what it is asked is answered at once, as by a node that has nothing to wait for."""

    def __init__(self, link: Link, index: int, name: str, facts: JsonObject, trains: bool) -> None:
        self.link = link
        self._trains = trains
        self.index = index
        self._name = name
        self._facts = facts
        self._attempt = 0
        self._ranks: list[int] = []
        self._living: set[int] = set()
        self._ends: dict[int, int] = {}  # bytes that each rank has printed
        self._lines = 0
        self._usage_every = 0.0
        self._usage_at = 0.0
        self._print_at: dict[int, float] = {}
        self.is_over = False

    def obey(self, frames: list[Frame]) -> None:
        for frame in frames:
            assert isinstance(frame, dict)
            act: Callable[[JsonObject], None] | None = getattr(self, "_" + frame["type"].replace("-", "_"), None)
            if act is not None:
                act(frame)

    def _hello(self, order: JsonObject) -> None:
        self.link.send(HelloMessage(f"/tmp/allranks-0/simulated/{self._name}", self._name, pid=1000, t=time.time()))

    def _ping(self, order: JsonObject) -> None:
        self.link.send(PongMessage(order["sent"], time.time()))

    def _setup(self, order: JsonObject) -> None:
        address = f"10.{self.index >> 16}.{self.index >> 8 & 255}.{self.index & 255}"
        loopback = {"address": "127.0.0.1", "prefix": 8, "family": 4, "scope": "host"}
        own = {"address": address, "prefix": 8, "family": 4, "scope": "global"}
        facts = {
            **self._facts,
            "hostname": self._name,
            "own_name": {"addresses": [address]},
            "interfaces": [
                {"name": "lo", "up": True, "running": True, "loopback": True, "addresses": [loopback]},
                {"name": "eth0", "up": True, "running": True, "loopback": False, "addresses": [own]},
            ],
            "identity": {**self._facts["identity"], "boot_id": f"b{self.index}", "machine_id": f"m{self.index}"},
        }
        self.link.send(FactsMessage(facts))

    def _listen(self, order: JsonObject) -> None:
        self.link.send(ListeningMessage(order["port"] or PORT))

    def _probe(self, order: JsonObject) -> None:
        address = f"10.{self.index >> 16}.{self.index >> 8 & 255}.{self.index & 255}"
        results = [AddressProbe(other, True, order["port"], 0.001, address) for other in order["addresses"]]
        self.link.send(ProbedMessage(tuple(results)))

    def _start(self, order: JsonObject) -> None:
        self._attempt = order["attempt"]
        self._ranks = [rank["rank"] for rank in order["ranks"]]
        self._living = set(self._ranks)
        now = time.time()
        for rank in order["ranks"]:
            number = rank["rank"]
            size = int(rank["env"]["WORLD_SIZE"])
            self.link.send(StartedMessage(number, 2000 + number, self._attempt, now))
            if not self._trains:
                continue
            self.link.send(ReportMessage("init-entered", number, now))
            self.link.send(ReportMessage("initialised", number, now, world_size=size, limit=600.0))
            self._print(number, b"loading the model\n")
            self._print_at[number] = now + (number % 100) / 100 * FIRST_PRINTS

    def _usage(self, order: JsonObject) -> None:
        self._usage_every = order["every"]
        self._usage_at = time.time() + self.index % 100 / 100 * self._usage_every

    def _counters(self, order: JsonObject) -> None:
        self.link.send(CountersMessage({rank: {"begun": int(time.time())} for rank in order["ranks"]}))

    def _stacks(self, order: JsonObject) -> None:
        self.link.send(StacksMessage(error="a simulated rank has no stack", asked=order["asked"]))

    def _call_times(self, order: JsonObject) -> None:
        self.link.send(CallTimesMessage(t=time.time(), error="a simulated rank calls nothing"))

    def _end(self, order: JsonObject) -> None:
        now = time.time()
        for rank in sorted(self._living):
            self.link.send(ExitMessage(rank, self._attempt, now, signal=15, expected=True))
        self._living.clear()
        self.link.send(EndedMessage(self._attempt, reason=order["reason"], t=now))
        sizes = {stream_key(Stream(RANK_LOG, rank, self._attempt)): end for rank, end in self._ends.items()}
        self.link.send(DrainedMessage(self._attempt, sizes))

    def _release(self, order: JsonObject) -> None:
        self.is_over = True

    def fail(self, rank: int) -> None:
        self._living.discard(rank)
        self.link.send(ExitMessage(rank, self._attempt, time.time(), code=1))

    def tick(self, now: float) -> None:
        """Say what a node says by itself."""
        if not self._living:
            return
        if self._usage_every and now >= self._usage_at:
            self._usage_at = now + self._usage_every
            self.link.send(NodeUsage(now, self._usage_every, 96, 11.5, 11.0, 0.5, memory_used=1 << 38))
        for rank in self._ranks:
            if now >= self._print_at.get(rank, now + 1):
                self._print_at[rank] = now + (FIRST_PRINTS if rank == self._ranks[0] else OTHERS_PRINT)
                self._lines += 1
                self._print(rank, b"a line of rank %d, number %d\n" % (rank, self._lines))

    def _print(self, rank: int, data: bytes) -> None:
        at = self._ends.get(rank, 0)
        self._ends[rank] = at + len(data)
        head = output_head(Stream(RANK_LOG, rank, self._attempt), at, len(data))
        self.link.send_output([head, data], len(data), time.monotonic())


class Agents:
    """All agents of this process in one loop."""

    def __init__(self, path: str, facts: JsonObject, trains: bool) -> None:
        self._facts = facts
        self._trains = trains
        self._selector = selectors.DefaultSelector()
        self._agents: dict[int, Agent] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ, self._told)

    def run(self) -> None:
        due = 0.0
        while True:
            for key, _ in self._selector.select(TICK):
                key.data()
            now = time.time()
            if now >= due:
                due = now + TICK
                for agent in list(self._agents.values()):
                    agent.tick(now)
                    self._flush(agent)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        head = bytearray()
        while not head.endswith(b"\n"):  # one line, which the controller's side has written before it connected on
            head += sock.recv(1)
        words: dict[str, Any] = json.loads(head)
        agent = Agent(Link(sock), words["index"], words["name"], self._facts, self._trains)
        self._agents[agent.index] = agent
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._take(agent))

    def _take(self, agent: Agent) -> None:
        try:
            agent.obey(agent.link.receive())
        except (EOFError, OSError):
            self._close(agent)
            return
        self._flush(agent)
        if agent.is_over:
            self._close(agent)

    def _flush(self, agent: Agent) -> None:
        try:
            agent.link.flush()
            self._selector.modify(agent.link.sock, agent.link.events, lambda: self._take(agent))
        except (OSError, KeyError):
            self._close(agent)

    def _close(self, agent: Agent) -> None:
        if self._agents.pop(agent.index, None) is not None:
            self._selector.unregister(agent.link.sock)
            agent.link.close()

    def _told(self) -> None:
        for line in os.read(0, 65536).decode().splitlines() or sys.exit(0):
            _, index, rank = line.split()
            agent = self._agents[int(index)]
            agent.fail(int(rank))
            self._flush(agent)


if __name__ == "__main__":
    Agents(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), sys.argv[3] == "trains").run()
