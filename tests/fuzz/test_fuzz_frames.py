"""Fuzzers of frames and of the messages in them: the decoder, the controller with a node's, the agent with orders."""

import contextlib
import json
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped, hostile_json, mutated
from tests.gang.test_gang import Drive, facts_of, reached
from tests.hosts.waiting import BOUND, wait_until
from tests.outcome import outcome
from tests.protocol.test_orders import PASSED

from allranks.agent.agent import Agent
from allranks.agent.controller_session import ControllerSession
from allranks.agent.forked_tasks import Tasks
from allranks.cluster.nodes import virtual_cluster
from allranks.engines.ssh import ssh_reach
from allranks.errors import UsageError
from allranks.gang import session as sessions
from allranks.gang.controller import Controller
from allranks.gang.gate import require_own
from allranks.gang.states import State
from allranks.protocol.codec import encode
from allranks.protocol.frames import (
    MAX_JSON,
    MAX_OFFSET,
    Decoder,
    Frame,
    FrameError,
    OutputFrame,
    Stream,
    pack_json,
    pack_output,
)
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import read_message
from allranks.protocol.run_facts import write_line
from allranks.report.live import OutputView
from allranks.settings import RunSpec

pytestmark = pytest.mark.fuzz
Message = dict[str, Any]
NODE = "h1"
ATTEMPT = {"attempt": 0, "ending": False, "signals": 0, "ranks": {"1": {"pid": 101, "exit": None}}}
EXIT: Message = {
    "type": "exit", "rank": 1, "attempt": 0, "code": 1, "signal": None, "expected": False, "oom_kills": 0, "t": 1000.5,
    "error": {"message": {"message": "E: x", "extraInfo": {"timestamp": "1"}}, "allranks": {"type": "E", "t": 1000.0}},
}  # fmt: skip
OF_NODES: list[Message] = [
    {"type": "hello", "node_dir": "/tmp/a", "pid": 7, "hostname": "h1", "dead": False, "t": 1000.0,
     "attempt": ATTEMPT},
    {"type": "hello", "node_dir": "/tmp/a", "hostname": "h1", "dead": True, "how": "was killed", "died_t": 1000.0,
     "attempt": {**ATTEMPT, "ranks": {"1": {"pid": 101, "exit": EXIT}}}},
    {"type": "shipped", "sha256": "ab", "files": 3, "path": "/tmp/a/tree", "error": "", "errno": None},
    {"type": "facts", "facts": facts_of(1)},
    {"type": "listening", "port": 29500, "error": None},
    {"type": "listening", "port": 0, "error": {"port": 29500, "errno": "EADDRINUSE", "text": "no", "owner": None}},
    {"type": "probed", "results": encode(reached(1)), "shared": True},
    {"type": "probed", "results": encode(reached(1, False)), "shared": False, "error": ""},
    {"type": "started", "rank": 1, "pid": 101, "attempt": 0, "t": 1000.0},
    {"type": "report", "rank": 1, "event": "initialised", "world_size": 3, "t": 1000.0},
    {"type": "report", "rank": 1, "event": "leaving", "code": 1, "threads": ["a"], "program": "x", "t": 1000.0},
    EXIT,
    {"type": "ended", "attempt": 0, "left": [{"pid": 9, "name": "x"}], "reason": "", "seconds": 0.1, "t": 1000.0},
    {"type": "drained", "attempt": 0, "sizes": {"0/1/0": 5}, "outputs": None, "refused": {"a report": 2}},
    {"type": "profiled", "ranks": {"1": {"seconds": 1.5, "size": 9, "note": "x"}}, "asked": 3},
    {"type": "stacks", "ranks": {"1": {"stack": "File x", "state": "S"}}, "ras": ""},
    {"type": "counters", "ranks": {"1": {"cpu": 1.5, "counters": {}}}},
    {"type": "call-times", "ranks": {"1": {"base": 1000, "groups": [{"name": "0", "size": 2, "kinds": ["all_reduce 9"],
     "sequence": [1, 2], "kind": [0, 0], "created": [5, 90]}]}}, "links": [{"rank": 1, "peer": "10.0.0.2", "acked": 9}],
     "suspects": {"1": {"samples": [{"text": "File x"}], "at": [0.0]}}, "t": 1000.0},
    {"type": "fault", "id": "start-failed", "message": "no", "rank": 1, "t": 1000.0},
    {"type": "pong", "sent": 1000.0, "t": 1000.1},
    {"type": "got", "bytes": 5, "begin": False},
    {"type": "refused", "source": "a report to the agent", "why": "expected JSON", "t": 1000.0},
    {"type": "dropped", "kind": 0, "rank": 1, "attempt": 0, "total": 5, "bounded": True},
    {"type": "replaced"},
]  # fmt: skip


# -- frames ----------------------------------------------------------------------------------------------


def packed(message: Any) -> bytes:
    """A frame; nothing where the message cannot be one."""
    found = outcome((TypeError, ValueError, AttributeError), pack_json, message)
    return found if isinstance(found, bytes) else b""


def frame(rng: random.Random) -> bytes:
    """A frame as it should be, or one that should be refused."""
    kind = rng.randrange(7)
    if kind == 0:
        return pack_json(rng.choice(OF_NODES))
    if kind == 1:
        stream = Stream(rng.randrange(256), rng.randrange(1 << 32), rng.randrange(1 << 16))
        offset = rng.choice((0, 1, MAX_OFFSET, MAX_OFFSET + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
        return pack_output(stream, offset, rng.randbytes(rng.randrange(300)))
    if kind == 2:
        body = hostile_json(rng)
        return struct.pack(">IB", len(body) + 1, ord("J")) + body
    if kind == 3:
        return struct.pack(">IB", rng.choice((0, 1, 5, MAX_JSON + 2, (1 << 32) - 1)), rng.choice(b"JOX\0"))
    if kind == 4:
        return packed(mutated(rng.choice(OF_NODES), rng) if rng.random() < 0.9 else {"type": "x" * 100_000})
    return flipped(pack_json(rng.choice(OF_NODES)), rng) if kind == 5 else rng.randbytes(rng.randrange(40))


def decoded(data: bytes, cuts: list[int]) -> tuple[list[Frame], str]:
    """The frames before the first that is none, and what was said of that."""
    decoder, frames, at = Decoder(), list[Frame](), 0
    for cut in [*sorted(cuts), len(data)]:
        try:
            frames += decoder.feed(data[at:cut])
        except FrameError as error:
            return frames, str(error)
        at = cut
    return frames, ""


def test_any_bytes_are_frames_or_a_frame_error(campaign: Campaign) -> None:
    for chance in campaign.cases(400):
        parts = [frame(chance) for _ in range(chance.randrange(1, 6))]
        data = b"".join(parts)
        bounds = [sum(map(len, parts[:n])) for n in range(1, len(parts))]
        found, why = decoded(data, bounds + [chance.randrange(len(data) + 1) for _ in range(3)])
        same, same_why = decoded(data, bounds + [chance.randrange(len(data) + 1) for _ in range(30)])
        assert why == same_why
        assert why or found == same, "wherever the bytes are cut"
        for one in found:
            if isinstance(one, OutputFrame):
                assert 0 <= one.offset <= MAX_OFFSET
            else:
                assert isinstance(one["type"], str) and json.loads(json.dumps(one)) == one
        campaign.counts["frames"] = campaign.counts.get("frames", 0) + len(found)
        campaign.counts["refused"] = campaign.counts.get("refused", 0) + bool(why)


# -- the controller's side -------------------------------------------------------------------------------


def of_node(rng: random.Random, messages: list[Message]) -> Message | None:
    """A message as the decoder lets it through; None where it doesn't."""
    frames = outcome(FrameError, Decoder().feed, packed(mutated(rng.choice(messages), rng)))
    if isinstance(frames, FrameError) or not frames:
        return None
    (found,) = frames
    assert isinstance(found, dict)
    return found


STAGES = {
    "new": lambda: Drive(),
    "gathering": lambda: _after("hello h0", "hello h1"),
    "listening": lambda: Drive().gathered(),
    "proving": lambda: _after("gathered", "listening"),
    "running": lambda: Drive().running(),
    "ending": lambda: _after("running", "exit 0 code=1"),
}


def _after(*steps: str) -> Drive:
    drive = Drive()
    for step in steps:
        word, *rest = step.split()
        getattr(drive, word)(*rest)
    return drive


def test_the_gang_takes_any_message_of_a_node(campaign: Campaign) -> None:
    """Nothing that one node says is a crash of the controller, whatever state the gang is in."""
    for chance in campaign.cases(300):
        drive = STAGES[chance.choice(list(STAGES))]()
        drive.compares = False  # at the end is enough
        for _ in range(6):
            message = of_node(chance, OF_NODES)
            try:
                read = read_message(message) if message is not None else None
                if read is None:
                    continue
                require_own(read, drive.roster.nodes[NODE].owned)
            except DecodeError:
                continue
            drive.feed(read, NODE)
            campaign.counts["facts"] = campaign.counts.get("facts", 0) + 1
        drive.tick()
        drive.compare_with_its_log()
        json.dumps([write_line(note) for note in drive.notes], allow_nan=False)  # each goes into events.jsonl


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    """Two nodes with a rank each: local0 has rank 0."""
    spec = RunSpec.of(command=("true",), local=2, nproc=1, runs_dir=str(tmp_path / "runs"))
    session = sessions.create(spec, virtual_cluster(2), ssh_reach(spec), dict(os.environ), str(tmp_path), OutputView)
    for number, node in enumerate(session.controller.roster.nodes.values()):
        node.take_ranks(range(number, number + 1))
        node.ranks[number].start(100 + number, session.started)
    session.controller.roster.state = State.RUNNING
    return session.controller


def test_a_node_alone_makes_no_controller_leave(controller: Controller) -> None:
    """`replaced` counts where run.json names another controller: the exit code would be 0."""
    member, _ = controller.links.members.values()
    for _ in range(100):
        controller.take_frames(member, [{"type": "replaced"}])
    assert not controller.replaced
    document = controller.run_dir.read_document("run.json")
    assert document is not None
    controller.run_dir.write_document("run.json", {**document, "controller": {"host": "h9", "pid": 7, "start_time": 1}})

    def is_replaced() -> bool:
        controller.take_frames(member, [{"type": "replaced"}])
        return controller.replaced

    wait_until(is_replaced)


def test_an_allranks_of_another_protocol_takes_no_run_over(controller: Controller) -> None:
    """It compares before it replaces: run.json still names the controller that has the run, and nothing ends it."""
    run = controller.run_dir
    document = run.read_document("run.json")
    assert document is not None
    versions = {**document["versions"], "protocol": "99"}
    run.write_document("run.json", {**document, "versions": versions})
    with pytest.raises(UsageError, match=r"speak protocol 99\. This allranks .* changes nothing of the run"):
        sessions.adopt(run, OutputView(), lambda spec, cluster: ssh_reach(spec))
    assert run.read_document("run.json")["controller"] == document["controller"]
    assert run.read_result() is None


def of_the_first(controller: Controller) -> tuple[object, ...]:
    """All that is kept of node local0, its rank and its files."""
    node = controller.roster.nodes["local0"]
    files = {
        path.relative_to(controller.run_dir.path): path.read_bytes()
        for path in controller.run_dir.path.rglob("*")
        if path.is_file() and ("node_00" in str(path) or "rank_00_" in path.name or "rank_000" in path.name)
    }
    dropped = controller.recording.dropped.get("local0")
    return (repr(node), files, controller.observing.progress.by_rank().get(0), dropped)


def test_one_nodes_frames_change_nothing_of_another(controller: Controller, campaign: Campaign) -> None:
    """Also `replaced` and `refused`; what they cause in files and events is bounded, and the other's beats hold."""
    first, second = controller.links.members.values()
    controller.take_frames(first, [OutputFrame(Stream(0, 0, 0), 0, b"mine\n")])
    before = of_the_first(controller)
    kept = [m for m in OF_NODES if m["type"] not in ("hello", "exit", "fault", "ended", "drained")]  # these end the run
    for chance in campaign.cases(400):
        stream = Stream(chance.randrange(12), chance.randrange(3), chance.choice((0, 1, 65535)))
        offset = chance.choice((0, 1, 100, 1 << 20, MAX_OFFSET))
        message = of_node(chance, kept)
        frames: list[Frame] = [OutputFrame(stream, offset, hostile_json(chance)[:500] + b"\n")]
        controller.take_frames(second, frames if message is None or chance.random() < 0.4 else [message])
        controller.take_frames(first, [{"type": "pong", "sent": 1000.0, "t": 1000.1}])
        assert of_the_first(controller) == before
        assert not controller.replaced
    assert first.heard >= second.heard
    assert all(isinstance(count, int) for count in controller.recording.undecodable.counts.values())
    assert json.loads(json.dumps(encode(controller.status())))["nodes"]
    files = [path for path in controller.run_dir.path.rglob("*") if path.is_file()]
    assert len(files) < 30
    assert (controller.run_dir.path / "events.jsonl").stat().st_size < 9 << 20
    assert sum(path.stat().st_size for path in files) < 3 << 30, "holes count, as they do for who reads them"


# -- the agent's side ------------------------------------------------------------------------------------

OF_CONTROLLER: list[Message] = [
    *PASSED,
    {"type": "ship", "sha256": "ab", "packed": 10, "files": 1, "bytes": 3},
    {"type": "listen", "port": 0, "token": "abc", "nonce_dir": None},
    {"type": "start", "attempt": 0, "follow": [{"kind": "metrics", "rank": 0, "path": "m.jsonl"}], "make": [],
     "ranks": [{"rank": 0, "local_rank": 0, "argv": ["./no-such-program"], "env": {"A": "1"}, "workdir": "."}]},
    {"type": "setup", "seconds": 1.0, "command": ["x"], "kind": "script", "workdir": "."},
    {"type": "serve", "token": "abc", "seconds": 0.1},
    {"type": "nonsense"},
]  # fmt: skip
REFUSALS = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)  # the agent's loop has them


class Quiet(Agent):
    """Looks in children are noted instead of begun."""

    def hear(self) -> None:
        """Take the connection that waits, and read what came over it."""
        for _ in range(2):
            for key, _ in self._selector.select(0):
                key.data()

    @property
    def session(self) -> ControllerSession:
        return self._session

    def forget_what_has_ended(self) -> None:
        if self._ranks.attempt is not None and not self._ranks.attempt.running():
            self._ranks.attempt = None


def no_task(self: Tasks, work: Any, done: Any) -> bool:
    assert isinstance(work.seconds, float)
    return False


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quiet]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Tasks, "run", no_task)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        listener.setblocking(False)
        (tmp_path / "spool").mkdir()
        header = AgentHeader("agent", "fuzz", "1", "fuzz/1", 30.0, 1.0, engine=True)
        yield Quiet(header, str(tmp_path), listener, supervisor)


@contextlib.contextmanager
def connected(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(BOUND)
        client.connect(str(place / "agent.sock"))
        yield client


def answers(agent: Quiet, client: socket.socket) -> list[str]:
    """The types of what the agent has sent."""
    agent.session.send_output()
    found = [m["type"] for m in Decoder().feed(client.recv(1 << 16)) if isinstance(m, dict)]
    agent.session.drop()
    return found


def test_any_order_to_the_agent_is_done_answered_or_refused(agent: Quiet, tmp_path: Path, campaign: Campaign) -> None:
    """A frame that is none ends the connection and nothing else; the next one is heard."""
    for chance in campaign.cases(250):
        with connected(tmp_path) as client:
            data = pack_json(OF_CONTROLLER[0]) + b"".join(order(chance) for _ in range(chance.randrange(1, 5)))
            client.sendall(data[: 64 << 10])
            if isinstance(outcome(REFUSALS, agent.hear), Exception):
                campaign.counts["errors"] = campaign.counts.get("errors", 0) + 1
            agent.session.drop()
            agent.forget_what_has_ended()
    with connected(tmp_path) as client:
        client.sendall(pack_json({"type": "hello", "protocol": 1}) + pack_json({"type": "ping", "sent": 5.0}))
        agent.hear()
        assert answers(agent, client)[:2] == ["hello", "pong"]


def order(rng: random.Random) -> bytes:
    """An order of a controller, as it should be or not."""
    return frame(rng) if rng.random() < 0.2 else packed(mutated(rng.choice(OF_CONTROLLER), rng))


def test_no_stranger_reaches_the_controller_of_an_agent(agent: Quiet, tmp_path: Path, campaign: Campaign) -> None:
    """Whoever connects and sends anything but a hello that is accepted replaces nobody, and is not obeyed."""
    with connected(tmp_path) as client:
        client.sendall(pack_json(OF_CONTROLLER[0]))
        agent.hear()
        link = agent.session.link
        assert link is not None
        for chance in campaign.cases(250):
            with connected(tmp_path) as stranger:
                first = chance.choice((b"", order(chance), pack_json({"type": "hello", "protocol": 2})))
                if b'"hello"' in first and b'"protocol":1' in first.replace(b" ", b""):
                    continue
                stranger.sendall((first + pack_json({"type": "release"}))[: 64 << 10])
                agent.hear()
                assert agent.session.link is link
        agent.hear()
        client.sendall(pack_json({"type": "ping", "sent": 5.0}))
        agent.hear()
        assert answers(agent, client) == ["hello", "pong"]
