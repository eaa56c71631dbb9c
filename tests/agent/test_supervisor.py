"""The supervisor holds the lease by itself: an agent that does not beat any more keeps no rank alive."""

import os
import selectors
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.real_agent import RUN_TAG, real_agent
from tests.hosts.waiting import BOUND, wait_until

from allranks.agent.journal import read_journal
from allranks.agent.processes import Process, alive, descendants, end_all, read_process, read_processes
from allranks.agent.supervised import AgentNote, SupervisorLink, write_note
from allranks.agent.supervisor import FIRST_PATIENCE, AgentWatch, Supervisor
from allranks.protocol.header import AgentHeader
from allranks.protocol.messages import ExitMessage
from allranks.protocol.orders import RankOrder, StartOrder

pytestmark = pytest.mark.processes

RUNNING = Process(7, 1, "S", 7)
LEASE = 20.0


def watched(seconds: int, watch: AgentWatch, note: AgentNote | None, agent: Process = RUNNING) -> str | None:
    """Look at an agent each second, after a beat where there is a note; say what the first look said that said any."""
    for _ in range(seconds):
        watch.pass_time(watch.now + 1)
        if note is not None:
            watch.beats(note)
        why = watch.look(agent)
        if why is not None:
            return why
    return None


def watch_with_a_beat(ends_by: float = 1e9) -> AgentWatch:
    watch = AgentWatch(LEASE, 1000.0)
    assert watched(1, watch, AgentNote(patience=LEASE, ends_by=ends_by)) is None
    return watch


@pytest.mark.parametrize("state", ["S", "D", "R", "t"])
def test_an_agent_that_does_not_beat_for_the_lease_holds_no_rank(state):
    watch = watch_with_a_beat()
    agent = RUNNING._replace(state=state)
    assert watched(20, watch, None, agent) is None
    assert watched(1, watch, None, agent) == f"did not answer for 21 s (state {state})"


def test_the_last_words_of_a_supervisor_are_heard_before_its_death(monkeypatch):
    """A busy agent saw the death first: the node was at fault for a defect of allranks."""
    heard: list[str] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with selectors.DefaultSelector() as selector, ours, theirs:
        link = SupervisorLink(ours, selector, AgentNote, lambda kind, text: heard.append(text))
        theirs.send(b"KeyError: 7")
        theirs.close()
        monkeypatch.setattr(os, "getppid", lambda: 1)
        link.look()
        link.look()
    assert heard == ["KeyError: 7", "the supervisor process died"]


def test_one_look_at_a_stopped_agent_is_a_shells_momentary_stop():
    watch = watch_with_a_beat()
    stopped = RUNNING._replace(state="T")
    assert watched(1, watch, None, stopped) is None
    assert watched(1, watch, None) is None
    assert watched(1, watch, None, stopped) is None
    assert watched(1, watch, None, stopped) == "was stopped (SIGSTOP)"


def test_time_in_which_the_supervisor_did_not_run_is_nobodys_silence():
    """As on a machine that slept, or under a frozen control group: its agent had no time to beat either."""
    watch = watch_with_a_beat(ends_by=1030.0)
    watch.pass_time(watch.now + 10 * LEASE)
    assert watch.look(RUNNING) is None
    assert watched(10, watch, None) is None


def test_the_first_beat_may_take_as_long_as_an_import_on_a_loaded_machine():
    watch = AgentWatch(2.0, 1000.0)
    assert watched(int(FIRST_PATIENCE), watch, None) is None
    assert watched(1, watch, None) is not None


# -- with real processes -----------------------------------------------------------------------------

TAG = f"blocked-{os.getpid()}/node_00"
HEADER = AgentHeader("agent", TAG.split("/")[0], "node_00", TAG, lease=2.0, grace=0.1)


def agent_that(place: Path, link: socket.socket, notes: int, ends_in: float) -> None:
    """Stand for an agent with a rank, which beats so often and is then asleep in a call."""
    ends_by = time.monotonic() + ends_in
    rank = subprocess.Popen(["sleep", "600"], env={"ALLRANKS_MARK": TAG}, start_new_session=True)
    (place / "rank").write_text(str(rank.pid))
    for _ in range(notes):
        link.send(write_note(AgentNote(patience=2.0, ends_by=ends_by)))
        time.sleep(0.2)
    time.sleep(600)


@contextmanager
def supervised(place: Path, notes: int, ends_in: float) -> Iterator[None]:
    """Run a supervisor over such an agent in a process of its own."""
    (place / "spool").mkdir()
    supervisor = os.fork()
    if supervisor == 0:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(place / "agent.sock"))
            listener.listen(8)
            agent = os.fork()
            if agent == 0:
                ours.close()
                listener.close()
                agent_that(place, theirs, notes, ends_in)
            theirs.close()
            Supervisor(HEADER, str(place), listener, agent, ours).run()
        finally:
            os._exit(0)
    own = read_process(supervisor)
    assert own is not None
    try:
        yield
    finally:
        left = end_all(lambda: [*descendants([supervisor]), own], lambda: None, BOUND)
        os.waitpid(supervisor, 0)
        assert left == []


@pytest.mark.parametrize(
    ("notes", "ends_in", "how"),
    [(3, 600.0, "did not answer for"), (1 << 20, 1.0, "did not end its ranks with the lease")],
)
def test_no_rank_outlives_an_agent_that_is_blocked(tmp_path, notes, ends_in, how):
    with supervised(tmp_path, notes, ends_in):
        death = wait_until(lambda: read_journal(str(tmp_path)).death, BOUND, "the journal")
        assert death.how.startswith(how)
        assert death.left == ()
        assert alive(read_processes([int((tmp_path / "rank").read_text())])) == []


def test_a_fifo_in_the_place_of_an_error_file_blocks_no_agent(tmp_path):
    path = tmp_path / "error.json"
    program = f"import os; os.mkfifo({str(path)!r}); os.mkfifo({str(path) + '.calls'!r})"
    environment = {"ALLRANKS_MARK": RUN_TAG, "PATH": os.environ["PATH"]}
    order = RankOrder(0, 0, ("python3", "-c", program), environment, "/", error_files=(str(path),))
    with real_agent() as agent:
        agent.tell(StartOrder(0, (order,)))
        assert agent.expect(ExitMessage).code == 0
        agent.ping()
