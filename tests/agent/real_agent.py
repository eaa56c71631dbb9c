"""A real agent on this machine, started as ssh starts it, with the test in the controller's place."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import TypeVar

from tests.hosts.waiting import BOUND

from allranks.agent.processes import end_all, tagged
from allranks.gang.agent_archive import BOOT, payload
from allranks.protocol.frames import Decoder, OutputFrame
from allranks.protocol.header import AgentHeader
from allranks.protocol.messages import HelloMessage, Message, PongMessage, StartedMessage, read_message
from allranks.protocol.orders import HelloOrder, Order, PingOrder, RankOrder, StartOrder, pack_order

Kind = TypeVar("Kind")
RUN = f"real-{os.getpid()}"  # tests that run beside this one end only their own
RUN_TAG = f"{RUN}/node_00"


class RealAgent:
    """The channel to an agent. Messages that a test does not ask for are kept in `seen`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._in = process.stdin
        self._out = process.stdout.fileno()
        self._decoder = Decoder()
        self._waiting: list[Message] = []
        self.seen: list[Message] = []
        self.tell(HelloOrder(lease=60.0))
        self.hello = self.expect(HelloMessage)

    def tell(self, order: Order) -> None:
        """Send an order."""
        self._in.write(pack_order(order))
        self._in.flush()

    def expect(self, kind: type[Kind], fits: Callable[[Kind], bool] = lambda _: True) -> Kind:
        """Wait for a message of this kind; AssertionError where the channel ends before, or it does not come."""
        end = time.monotonic() + BOUND
        while True:
            while self._waiting:
                message = self._waiting.pop(0)
                self.seen.append(message)
                if isinstance(message, kind) and fits(message):
                    return message
            assert select([self._out], [], [], max(0.0, end - time.monotonic()))[0], f"no {kind.__name__}: {self.seen}"
            data = os.read(self._out, 1 << 16)
            assert data, f"the channel ended: {self.seen}"
            frames = [frame for frame in self._decoder.feed(data) if not isinstance(frame, OutputFrame)]
            self._waiting += [read_message(frame) for frame in frames]

    def start(self, *programs: str, order: StartOrder | None = None, workdir: str = "/", **env: str) -> list[int]:
        """Start each program as a rank; return their pids."""
        ranks = [
            RankOrder(rank, rank, (sys.executable, "-c", program), {"ALLRANKS_MARK": RUN_TAG, **env}, workdir)
            for rank, program in enumerate(programs)
        ]
        self.tell((order or StartOrder(0, ()))._replace(ranks=tuple(ranks)))
        return [self.expect(StartedMessage, lambda m, rank=rank: m.rank == rank).pid for rank in range(len(ranks))]

    def ping(self) -> None:
        """Send a ping, and wait for the answer."""
        self.tell(PingOrder(time.time()))
        self.expect(PongMessage)


@contextmanager
def real_agent(cwd: str | None = None, parent: str = "/tmp") -> Iterator[RealAgent]:
    """Start an agent in a node directory of its own below `parent`, and end it and its ranks afterwards."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="agent-") as place:
        try:
            with channel("agent", place, cwd) as agent:
                yield agent
        finally:
            _end(Path(place))


@contextmanager
def channel(mode: str, place: str, cwd: str | None = None) -> Iterator[RealAgent]:
    """Start a relay: with an agent, or to the one that is there (`attach`)."""
    header = AgentHeader(mode, RUN, "node_00", RUN_TAG, lease=60.0, grace=0.1, node_dir=place)
    words = [sys.executable, "-I", "-S", "-c", BOOT]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() + process.stdout.readline() == b"\nALLRANKS-BOOT 1\n"
        process.stdin.write(payload(header))
        process.stdin.flush()
        yield RealAgent(process)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _end(place: Path) -> None:
    """End supervisor, agent and ranks."""
    for journal in place.glob("allranks-*/*/node_*/journal.jsonl"):
        for pid, _ in reversed(json.loads(journal.read_text().splitlines()[0])["keepers"]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not end_all(lambda: tagged(RUN_TAG), lambda: None, BOUND)
