"""When the ranks of a node are asked what they import."""

import socket
import time
from collections.abc import Callable

import pytest

from allranks.agent import forking
from allranks.agent.forking import ASK_SECONDS, Forking, FoundRecord
from allranks.protocol.messages import Message
from allranks.protocol.orders import PreloadOrder, RankOrder, StartOrder
from allranks.protocol.processes import ImportRecord

RANK = RankOrder(0, 0, ("train.py",), {}, "/")
IMPORTED = ImportRecord({"torch": "/site-packages/torch/__init__.py"})


class Agent:
    """An agent whose tasks end when the test says so."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.asked: list[Callable[[ImportRecord | None, str], None]] = []
        self.looks: list[Callable[[FoundRecord | None, str], None]] = []
        self.kept: list[ImportRecord] = []

    def tell(self, message: Message) -> None:
        self.said.append(message)

    def ask_imports(self, done: Callable[[ImportRecord | None, str], None]) -> None:
        self.asked.append(done)

    def find_record(self, rank: RankOrder, done: Callable[[FoundRecord | None, str], None]) -> None:
        self.looks.append(done)

    def keep_record(self, rank: RankOrder, imports: ImportRecord, against: str) -> None:
        self.kept.append(imports)

    def watch(self, channel: socket.socket) -> None:
        raise AssertionError("no template is started here")

    def forget(self, channel: socket.socket) -> None:
        raise AssertionError("no template is started here")


@pytest.fixture(autouse=True)
def without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "DEVICES", ())


def start(preload: str = "auto") -> StartOrder:
    return StartOrder(attempt=0, ranks=(RANK,), preload=preload)


def ask(of: Forking, agent: Agent, answer: ImportRecord) -> None:
    """Let time pass until a question, and answer it."""
    of.tick(time.monotonic() + 2 * ASK_SECONDS)
    agent.asked.pop()(answer, "")


@pytest.mark.parametrize("is_late", [False, True], ids=["before the ranks start", "after the order to start them"])
def test_what_is_imported_is_kept_whenever_the_look_for_a_record_ends(is_late: bool) -> None:
    agent = Agent()
    of = Forking(agent)
    started: list[bool] = []
    of.prepare(PreloadOrder(0, RANK, "auto"), {})
    if not is_late:
        agent.looks.pop()(FoundRecord(), "")
    of.begin(start(), {}, lambda: started.append(True))
    if is_late:
        assert not started, "ranks wait for the look"
        agent.looks.pop()(FoundRecord(), "")
    assert started == [True]
    of.initialised(0)
    ask(of, agent, IMPORTED)
    assert not agent.kept, "it may import more"
    ask(of, agent, IMPORTED)
    assert [record.modules for record in agent.kept] == [IMPORTED.modules]
    of.tick(time.monotonic() + 10 * ASK_SECONDS)
    assert not agent.asked and not agent.said


def test_a_look_that_ends_after_the_patience_changes_no_attempt_but_is_used_for_the_record() -> None:
    agent = Agent()
    of = Forking(agent)
    started: list[bool] = []
    of.begin(start(), {}, lambda: started.append(True))
    of.tick(time.monotonic() + 1000)
    assert started == [True]
    agent.looks.pop()(FoundRecord(), "")
    assert started == [True]
    of.initialised(0)
    ask(of, agent, IMPORTED)
    ask(of, agent, IMPORTED)
    assert len(agent.kept) == 1


def test_nothing_is_asked_where_no_run_and_no_attempt_can_use_it() -> None:
    agent = Agent()
    of = Forking(agent)
    of.begin(start("never"), {}, lambda: None)
    of.initialised(0)
    of.tick(time.monotonic() + 10 * ASK_SECONDS)
    assert not agent.asked and not agent.looks
