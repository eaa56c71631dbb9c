"""When the ranks of a node are asked what they import."""

import time
from collections.abc import Callable
from selectors import SelectSelector
from typing import Any

import pytest

from allranks.agent import forking, import_records
from allranks.agent.forked_tasks import Tasks, Work
from allranks.agent.forking import ASK_SECONDS, Forking
from allranks.agent.outlet import Outlet
from allranks.agent.this_node import ThisNode
from allranks.protocol.header import AgentHeader
from allranks.protocol.messages import Message
from allranks.protocol.orders import PreloadOrder, RankOrder, StartOrder
from allranks.protocol.processes import ImportRecord

RANK = RankOrder(0, 0, ("train.py",), {}, "/")
IMPORTED = ImportRecord({"torch": "/site-packages/torch/__init__.py"})


class Agent(Tasks):
    """The tasks of an agent: they end when the test says so."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.asked: list[Callable[..., None]] = []
        self.looks: list[Callable[..., None]] = []

    def run(self, work: Work[Any], done: Callable[..., None]) -> bool:
        if work.name == "the look for imports":
            self.looks.append(done)
        elif work.kind is ImportRecord:
            self.asked.append(done)
        else:
            work.function()
        return True

    def forking(self) -> Forking:
        header = AgentHeader("agent", "run", "node_00", "run/node_00", lease=60.0, grace=0.1)
        node = ThisNode(header, "/tmp", SelectSelector(), Outlet("/tmp"), tasks=self, tell=self.said.append)
        return Forking(node, dict)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> list[ImportRecord]:
    """On a node without devices, what is kept for a later run."""
    monkeypatch.setattr(forking, "DEVICES", ())
    records: list[ImportRecord] = []
    monkeypatch.setattr(import_records, "keep_record", lambda _, __, imports, ___: records.append(imports))
    return records


def start(preload: str = "auto") -> StartOrder:
    return StartOrder(attempt=0, ranks=(RANK,), preload=preload)


def ask(of: Forking, agent: Agent, answer: ImportRecord) -> None:
    """Let time pass until a question, and answer it."""
    of.tick(time.monotonic() + 2 * ASK_SECONDS)
    agent.asked.pop()(answer, "")


@pytest.mark.parametrize("look_ends", ["before the ranks start", "after the order to start them", "after the patience"])
def test_what_is_imported_is_kept_whenever_the_look_for_a_record_ends(look_ends: str, kept: list[ImportRecord]) -> None:
    agent = Agent()
    of = agent.forking()
    started: list[bool] = []
    of.prepare(PreloadOrder(0, RANK, "auto"), {})
    if look_ends == "before the ranks start":
        agent.looks.pop()(ImportRecord(), "")
    of.begin(start(), {}, lambda: started.append(True))
    assert started == ([True] if look_ends == "before the ranks start" else []), "ranks wait for the look"
    if look_ends == "after the patience":
        of.tick(time.monotonic() + 1000)
        assert started == [True]
    if agent.looks:
        agent.looks.pop()(ImportRecord(), "")
    assert started == [True]
    of.initialised(0)
    ask(of, agent, IMPORTED)
    assert not kept, "it may import more"
    ask(of, agent, IMPORTED)
    assert [record.modules for record in kept] == [IMPORTED.modules]
    of.tick(time.monotonic() + 10 * ASK_SECONDS)
    assert not agent.asked and bool(agent.said) == (look_ends == "after the patience")


def test_nothing_is_asked_where_no_run_and_no_attempt_can_use_it() -> None:
    agent = Agent()
    of = agent.forking()
    of.begin(start("never"), {}, lambda: None)
    of.initialised(0)
    of.tick(time.monotonic() + 10 * ASK_SECONDS)
    assert not agent.asked and not agent.looks
