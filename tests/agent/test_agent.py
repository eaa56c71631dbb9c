"""What a program, its files and a node without room can do to the agent: nothing that ends the run, or holds it up."""

import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.agent.real_agent import RealAgent, channel, real_agent
from tests.hosts.waiting import BOUND, wait_until
from tests.processes import parent_of

from allranks.agent.files import names_in, read_link
from allranks.agent.processes import command_of, descendants
from allranks.agent.rendezvous_check import MasterPort
from allranks.protocol.frames import PROTOCOL, Decoder, pack_json
from allranks.protocol.messages import (
    CountersMessage,
    DrainedMessage,
    EndedMessage,
    ExitMessage,
    FactsMessage,
    FaultMessage,
    ListeningMessage,
    RefusedMessage,
    ReplacedMessage,
    StacksMessage,
    StartedMessage,
)
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import (
    CountersOrder,
    EndOrder,
    FollowedFile,
    ListenOrder,
    RankOrder,
    SetupOrder,
    StacksOrder,
    StartOrder,
    pack_order,
)

pytestmark = pytest.mark.processes

WAIT = "import time; time.sleep(600)"
FLOOD = """
import json, os, socket
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for number in range(1 << 40):
    channel.sendto(json.dumps({"event": "became", "rank": 0, "program": str(number)}).encode(), os.environ["SOCKET"])
"""


@pytest.fixture
def agent():
    with real_agent() as one:
        yield one


def node_dir(agent: RealAgent) -> Path:
    return Path(agent.hello.node_dir)


def test_reports_without_end_keep_no_ping_waiting(agent):
    """A program that writes reports faster than they are read: the agent answers, and its journal stays small."""
    agent.start(FLOOD, FLOOD, SOCKET=str(node_dir(agent) / "report.sock"))
    agent.expect(RefusedMessage)
    agent.ping()
    assert (node_dir(agent) / "journal.jsonl").stat().st_size < 4 << 20


def stranger(agent: RealAgent, data: bytes = b"") -> socket.socket:
    """Connect to the agent's socket as any process of the user may, and send this."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(node_dir(agent) / "agent.sock"))
    sock.sendall(data)
    return sock


def test_strangers_at_the_socket_cost_the_controller_nothing(agent):
    """They say nothing, drip, send garbage, an order, another protocol's hello: the controller stays, ranks too."""
    (pid,) = agent.start(WAIT)
    hello = pack_json({"type": "hello", "protocol": PROTOCOL + 1})
    words = (b"", b"GET / HTTP/1.1\r\n\r\n", pack_order(EndOrder(0.0, "x")), hello, hello[:7])
    strangers = [stranger(agent, data) for data in words * 20]
    agent.ping()
    wait_until(lambda: _sockets(agent.hello.pid) < 40, what="most of them are gone")
    agent.ping()
    assert not [m for m in agent.seen if isinstance(m, (EndedMessage, ExitMessage, ReplacedMessage))]
    assert Path(f"/proc/{pid}").exists()
    for sock in strangers:
        sock.close()


def _sockets(pid: int) -> int:
    return sum(read_link(f"/proc/{pid}/fd/{fd}").startswith("socket:") for fd in names_in(f"/proc/{pid}/fd"))


def test_a_hello_of_another_protocol_is_told_why_it_is_refused(agent):
    with stranger(agent, pack_json({"type": "hello", "protocol": PROTOCOL + 1})) as sock:
        sock.settimeout(BOUND)
        (answer,) = Decoder().feed(sock.recv(65536))
    assert answer["id"] == "protocol" and f"protocol {PROTOCOL}, the controller {PROTOCOL + 1}" in answer["message"]


def test_agent_and_supervisor_stand_in_no_directory_that_may_be_removed(tmp_path):
    """A scratch is cleaned up: a controller that comes back is greeted as before, and ranks begin where they did."""
    place = tmp_path / "scratch"
    place.mkdir()
    with real_agent(cwd=str(place)) as agent:
        order = StartOrder(0, (), make=("made",))
        agent.start(WAIT, order=order, workdir=".")
        supervisor = parent_of(agent.hello.pid)
        assert [os.readlink(f"/proc/{pid}/cwd") for pid in (agent.hello.pid, supervisor)] == ["/", "/"]
        (rank,) = [m.pid for m in agent.seen if isinstance(m, StartedMessage)]
        assert os.readlink(f"/proc/{rank}/cwd") == str(place)
        assert (place / "made").is_dir()
        shutil.rmtree(place)
        with channel("attach", str(node_dir(agent).parents[2])) as again:
            assert again.hello.cwd == str(place)
            again.ping()


def test_a_directory_in_the_place_of_a_followed_file_cuts_no_channel(agent, tmp_path):
    """The program makes directories where it likes; every other stream flows and the attempt drains."""
    place = tmp_path / "rank_00_metrics.jsonl"
    place.mkdir()
    order = StartOrder(0, (), follow=(FollowedFile("metrics", 0, str(place)),))
    agent.start("print('done')", order=order)
    agent.tell(EndOrder(0.0, "test"))
    agent.expect(DrainedMessage)


LARGE = """
import json, os, socket
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(os.environ["ASK"])
listener.listen(8)
print("there", flush=True)
entries = [{"process_group": [str(group), "x"], "state": "started", "sizes": "x" * 6000}
           for group in range(50) for _ in range(40)]
while True:
    channel = listener.accept()[0]
    channel.recv(64)
    answer = {"stacks": "a stack", "groups": [], "recorders": {"nccl": {"entries": entries}}}
    channel.sendall(json.dumps(answer).encode())
    channel.close()
"""


def test_a_flight_recorder_that_no_message_holds_ends_no_run(agent):
    """The sample comes, with as many entries as fit; the dump itself travels as a file."""
    place = node_dir(agent) / "ask_000"
    agent.start(LARGE, ASK=str(place))
    while not place.exists():
        pass
    agent.tell(StacksOrder((0,), "dump"))
    message = agent.expect(StacksMessage)
    assert message.error == ""
    sample = message.ranks[0]
    assert sample["text"] == "a stack"
    entries = sample["recorder"]["recorders"]["nccl"]["entries"]
    assert {next(iter(entry["process_group"])) for entry in entries} == {str(group) for group in range(50)}


def limit_files(pid: int) -> None:
    """Leave a process no descriptor to open."""
    most = max(map(int, names_in(f"/proc/{pid}/fd"))) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))


def test_a_task_that_cannot_be_started_is_an_answer(agent):
    """No descriptor and no process may be left on the node; that is no defect of allranks."""
    agent.start(WAIT)
    limit_files(agent.hello.pid)
    agent.tell(CountersOrder((0,)))
    message = agent.expect(CountersMessage)
    assert "Too many open files" in message.error
    assert not [m for m in agent.seen if isinstance(m, FaultMessage)]


def test_the_reason_of_an_end_is_that_of_the_last_attempt_alone(agent):
    """A shorter one left the tail of the one before it: Ray's logs were then saved though its work was done."""
    (node_dir(agent) / "ray").mkdir()
    files = NodeFiles(str(node_dir(agent)))
    Path(files.ending).write_text("a long reason of the attempt before")
    agent.start(WAIT)
    agent.tell(EndOrder(0.0, "done"))
    agent.expect(EndedMessage)
    assert Path(files.ending).read_text() == "done"


def test_what_the_end_has_killed_is_no_answer_to_the_next_attempt(agent):
    """A check that an end interrupts dies without a result. The controller asks again, and would read that first."""
    agent.tell(SetupOrder(prelude="sleep 1000", seconds=600.0))
    begun = wait_until(lambda: _below(agent.hello.pid, "sleep"), what="the prelude")
    agent.tell(EndOrder(0.1, "failure"))
    agent.expect(EndedMessage)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in begun), what="the prelude ended")
    agent.tell(SetupOrder(seconds=600.0))
    facts = agent.expect(FactsMessage)
    assert facts.error == "" and facts.facts


def _below(pid: int, name: str) -> list[int]:
    """Processes of this program below another."""
    return [p.pid for p in descendants([pid]) if command_of(p.pid).startswith(name)]


def test_a_rank_that_cannot_be_forked_is_a_rank_that_cannot_be_started(agent):
    limit_files(agent.hello.pid)
    agent.tell(StartOrder(0, (RankOrder(0, 0, ("true",), {}, "/"),)))
    fault = agent.expect(FaultMessage)
    assert (fault.id, fault.rank) == ("start-failed", 0)
    assert "rank 0 could not start: Too many open files" in fault.message


FAILS = """
import json, os, sys
text = "\u00e9" * int(os.environ["SIZE"])
with open(os.environ["ERROR"], "w") as file:
    json.dump({"message": {"message": text, "extraInfo": {}}}, file, ensure_ascii=False)
sys.exit(1)
"""


def test_errors_that_no_message_holds_keep_no_controller_out(agent, tmp_path):
    """A controller that comes back learns how each rank ended, and as much of the reasons as fits."""
    orders = []
    for rank in range(30):
        path = str(tmp_path / f"error_{rank}")
        words = (sys.executable, "-c", FAILS)
        environment = {"ERROR": path, "SIZE": "60000" if rank < 29 else "3"}
        orders.append(RankOrder(rank, rank, words, environment, "/", error_files=(path,)))
    agent.tell(StartOrder(0, tuple(orders)))
    exits = [agent.expect(ExitMessage) for _ in orders]
    assert all(one.error for one in exits)
    with channel("attach", agent.hello.node_dir.partition("/allranks-")[0]) as again:
        ended = again.hello.attempt.ranks
    assert {rank: one.exit.code for rank, one in ended.items()} == dict.fromkeys(range(30), 1)
    assert not all(one.exit.error for one in ended.values()) and ended[0].exit.error and ended[29].exit.error


def test_a_prober_that_comes_with_the_order_to_stop_listening(agent):
    """Both are ready in one look at the selector, the order first: the listener is closed when its turn comes."""
    begun = json.loads((node_dir(agent) / "journal.jsonl").read_text().splitlines()[0])
    pid = begun["keepers"][0][0]
    order = ListenOrder(token="a-token-of-the-run", port=0)
    for _ in range(5):
        agent.tell(order)
        listening = agent.expect(ListeningMessage)
        os.kill(pid, signal.SIGSTOP)
        try:
            agent.tell(order)
            time.sleep(0.1)  # the relay passes it on
            prober = socket.create_connection(("127.0.0.1", listening.port), timeout=BOUND)
        finally:
            os.kill(pid, signal.SIGCONT)
        again = agent.expect(ListeningMessage)
        prober.close()
        assert again.port > 0 and again.port != listening.port
    agent.ping()
    assert [one for one in agent.seen if isinstance(one, FaultMessage)] == []


def test_strangers_at_the_master_port_do_not_keep_the_agent(monkeypatch):
    """There is always one more."""
    port = MasterPort(0, "a-token-of-the-run")
    port.listener.close()
    accepted = []

    def accept() -> tuple[socket.socket, str]:
        accepted.append(1)
        assert len(accepted) < 20_000, "the agent does nothing else"
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours, ""

    monkeypatch.setattr(port, "listener", SimpleNamespace(accept=accept, close=lambda: None))
    port.accept()
    port.release()
