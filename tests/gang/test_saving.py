"""One step to save at: the gang's decisions, the agents' files and the ranks' calls, with the network as chance has it.

A rank is the `SaveRequests` of a training program and a node the agent's `SaveForwarding`, over files both have. A
rank that would wait at a proposed step raises `Held`, and calls again at its next turn.
"""

import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from tests.campaign import Campaign
from tests.gang.test_gang import Drive, summary

from allranks import program
from allranks.agent import saving as agent_side
from allranks.gang.saving import MOST_PROPOSALS, choose_step
from allranks.gang.states import State, UserSignal
from allranks.protocol.attempts import SavedStep
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import RankSaving, SavingMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import ORDERS, SaveOrder


class Held(Exception):
    """A rank waits at a proposed step."""


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(seconds: float) -> None:
        raise Held

    monkeypatch.setattr(program, "time", SimpleNamespace(sleep=hold, monotonic=time.monotonic))
    monkeypatch.setattr(agent_side, "SETTLE", 0.0)


@dataclass
class SimulatedRank:
    """A training loop: a step a turn, `should_save` after every `stride`th."""

    requests: program.SaveRequests
    stride: int
    step: int = 0
    holds: bool = False
    saved: list[int] = field(default_factory=list)

    def turn(self) -> None:
        try:
            if self.holds:
                answer = self.requests._answer(self.step)  # noqa: SLF001
            else:
                self.step += 1
                if self.step % self.stride:
                    return
                answer = self.requests.call(self.step)
        except Held:
            self.holds = True
            return
        if self.holds:  # the rest of `call`
            self.requests._numbers[program.HOLDS] = 0  # noqa: SLF001
            self.holds = False
        if answer:
            self.saved.append(self.step)


class Rig:
    """A gang whose nodes have ranks that call should_save, with words under way in both directions."""

    def __init__(self, place: str, strides: list[int], nodes: int = 2) -> None:
        self.drive = Drive(count=nodes, nproc=len(strides) // nodes).running()
        self.answers: list[tuple[str, SavingMessage]] = []
        self.ranks: dict[int, SimulatedRank] = {}
        self.agents: dict[str, agent_side.SaveForwarding] = {}
        self.seen = len(self.drive.sent)
        self.orders: list[tuple[str, SaveOrder]] = []
        for index, name in enumerate(self.drive.names):
            directory = Path(place) / name
            directory.mkdir()
            self.agents[name] = agent_side.SaveForwarding(
                str(directory), lambda message, name=name: self.answers.append((name, message))
            )
            for rank in range(index * len(strides) // nodes, (index + 1) * len(strides) // nodes):
                file = NodeFiles(str(directory)).save(rank, 0)
                self.ranks[rank] = SimulatedRank(program.SaveRequests(file), strides[rank])

    def callers(self, *ranks: int) -> None:
        for rank in ranks or tuple(self.ranks):
            self.drive.feed(ReportMessage("saves", rank), self.drive.node_of(rank))

    def ask(self, name: str = "USR1") -> None:
        self.drive.now += 60
        self.drive.feed(UserSignal(name))

    def collect(self) -> None:
        """Take the orders that the gang has sent since."""
        fresh = self.drive.sent[self.seen :]
        self.seen = len(self.drive.sent)
        self.orders += [(node, ORDERS.read(sent)) for node, sent in fresh if sent["type"] == "save"]

    def deliver_order(self, at: int = 0) -> None:
        node, order = self.orders.pop(at)
        self.agents[node].obey(order)

    def deliver_answer(self, at: int = 0) -> None:
        node, message = self.answers.pop(at)
        fields = (message.attempt, message.request, message.phase, message.step, message.ranks)
        self.drive.feed(SavingMessage(*fields), node)

    def deliver_all(self) -> None:
        """Until nothing is under way."""
        self.collect()
        while self.orders or self.answers:
            self.deliver_round()

    def deliver_round(self) -> None:
        """All that is under way, and take the orders that come of it."""
        while self.orders:
            self.deliver_order()
        while self.answers:
            self.deliver_answer()
        self.collect()

    def look(self) -> None:
        for agent in self.agents.values():
            agent.look(float("inf"))

    def turns(self, count: int) -> None:
        for _ in range(count):
            for rank in self.ranks.values():
                rank.turn()

    def turns_and_look(self, count: int) -> None:
        """Ranks go on, and the gang hears what has come of it."""
        self.turns(count)
        self.look()
        self.deliver_all()

    @property
    def saved(self) -> list[list[int]]:
        return [rank.saved for rank in self.ranks.values()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(str(tmp_path), [1, 1, 1, 1])
    made.turns(10)
    made.callers()
    return made


def test_both_sides_know_the_same_places() -> None:
    names = ("CALLS", "LAST", "BEFORE", "HOLDS", "ANSWERED", "ANSWERED_STEP", "ANSWERED_CALL",
             "REQUEST", "PHASE", "STEP", "SHARED_NUMBERS")  # fmt: skip
    assert [getattr(program, name) for name in names] == [getattr(agent_side, name) for name in names]
    phases = [agent_side.SAVE_PHASES.index(word) + 1 for word in ("proposed", "agreed")]
    assert phases == [program.PROPOSED, program.AGREED]


def test_one_request_is_one_step_on_all_ranks(rig: Rig) -> None:
    rig.ask()
    rig.deliver_all()
    rig.turns(5)
    assert rig.saved == [[12]] * 4
    rig.look()
    rig.deliver_all()
    assert rig.drive.said("saved")[0]["step"] == 12
    assert rig.drive.gang.saving.saved == SavedStep(12, 4, 4)


@pytest.mark.fuzz
def test_whatever_is_late_and_whoever_is_ahead_all_ranks_save_at_one_step(campaign: Campaign) -> None:
    """Words cross and wait, ranks run on meanwhile by their own speed; requests come again and again."""
    for chance in campaign.cases(60):
        with tempfile.TemporaryDirectory() as place:
            one_run(place, chance)


def one_run(place: str, chance: Random) -> None:
    nodes = chance.choice((1, 2, 3))
    strides = chance.choice(([1] * 6, [1] * 6, [5] * 6, [1, 10] * 3, [4, 6] * 3))
    rig = Rig(place, strides, nodes)
    speeds = [chance.choice((1, 1, 1, 2, 7)) for _ in strides]
    asked = 0
    called = False
    for _ in range(chance.choice((150, 400))):
        what = chance.random()
        if what < 0.02 or asked == 0:
            before = len(rig.drive.said("save-asked"))
            rig.ask(chance.choice(("USR1", "USR2")))
            asked += len(rig.drive.said("save-asked")) > before or not called
        elif what < 0.3 and rig.orders:
            first_of = {node: at for at, (node, _) in reversed(list(enumerate(rig.orders)))}
            rig.deliver_order(chance.choice(list(first_of.values())))  # each channel keeps its order
        elif what < 0.5 and rig.answers:
            first_of = {node: at for at, (node, _) in reversed(list(enumerate(rig.answers)))}
            rig.deliver_answer(chance.choice(list(first_of.values())))
        elif what < 0.6:
            rig.look()
        else:
            at = chance.randrange(len(strides))
            for _ in range(speeds[at]):
                rig.ranks[at].turn()
        if not called and all(rank.step >= 2 * rank.stride for rank in rig.ranks.values()):
            called = True
            rig.callers()
        rig.collect()
    for rank in rig.ranks.values():
        while rank.step < 2 * rank.stride:
            rank.turn()
    rig.callers()
    most = max(rank.step for rank in rig.ranks.values())
    for _ in range(40):
        rig.deliver_all()
        for rank in rig.ranks.values():  # the others come to where the furthest was, and beyond
            for _ in range(most):
                if len(rank.saved) < len(rig.drive.said("save-agreed")) or rank.step < most:
                    rank.turn()
        rig.look()
    rig.deliver_all()
    agreed = rig.drive.said("save-agreed")
    assert agreed, "a request that was made is answered"
    if all(one["proposals"] < MOST_PROPOSALS for one in agreed):
        assert rig.saved == [[one["step"] for one in agreed]] * len(strides), (strides, speeds)


@pytest.mark.parametrize(
    ("last_calls", "margin", "step"),
    [
        pytest.param([(9, 8), (10, 9)], 2, 12, id="every step"),
        pytest.param([(90, 80), (100, 90)], 2, 120, id="every tenth"),
        pytest.param([(99, 98), (90, 80)], 2, 120, id="one every step, one every tenth"),
        pytest.param([(12, 8), (12, 6)], 1, 24, id="every fourth and every sixth"),
        pytest.param([(12, 10), (13, 11)], 1, 16, id="even and odd: no step is common"),
        pytest.param([(-3, -4)], 2, -1, id="negative"),
        pytest.param([(5, 9)], 2, 7, id="a loop that begins again"),
    ],
)
def test_the_step_is_one_that_every_rank_comes_to(last_calls: list[tuple[int, int]], margin: int, step: int) -> None:
    assert choose_step([RankSaving(7, last, before) for last, before in last_calls], margin) == step


def test_a_rank_that_never_calls_is_not_waited_for(tmp_path: Path) -> None:
    alone = Rig(str(tmp_path), [1, 1, 1000, 1000])
    alone.turns(10)
    alone.callers(0, 1)
    alone.ask()
    alone.deliver_all()
    alone.turns_and_look(5)
    assert alone.drive.gang.saving.saved == SavedStep(12, 2, 2)


def test_a_request_before_the_first_call_is_kept(tmp_path: Path) -> None:
    early = Rig(str(tmp_path), [1, 1])
    early.ask()
    assert early.drive.said("save-asked") == []
    early.turns(1)
    early.callers()
    early.deliver_all()
    early.turns_and_look(1)  # with its second call a rank has shown at which steps it calls
    early.turns(5)
    assert early.saved == [[4]] * 2


def test_a_second_request_while_one_is_under_way_is_the_same_and_a_later_one_another(rig: Rig) -> None:
    rig.ask()
    rig.ask("USR2")
    rig.deliver_all()
    rig.turns_and_look(5)
    assert rig.saved == [[12]] * 4
    rig.ask()
    rig.deliver_all()
    rig.turns(5)
    assert rig.saved == [[12, 17]] * 4


def test_a_node_that_was_away_hears_the_last_word_again(rig: Rig) -> None:
    rig.ask()
    rig.collect()
    rig.orders = [(node, order) for node, order in rig.orders if node != "h1"]  # lost with the channel
    rig.deliver_all()
    rig.turns(3)
    assert rig.saved == [[]] * 4
    assert "save>h1" in rig.drive.hello("h1", {**summary(0, r2=None, r3=None), "signals": 1})
    rig.deliver_all()
    rig.turns(9)
    assert [len(steps) for steps in rig.saved] == [1] * 4 and len({steps[0] for steps in rig.saved}) == 1


def test_answers_that_are_old_agree_on_nothing(rig: Rig) -> None:
    """Ranks wait at a proposal for a while only: what was true of them may not be so any more."""
    rig.ask()
    rig.collect()
    rig.deliver_round()
    while rig.orders:
        rig.deliver_order()
    rig.drive.now += 30
    rig.drive.feed(SavingMessage(0, 1, "proposed", 12, {}), "h9")
    while rig.answers:
        rig.deliver_answer()
    assert rig.drive.said("save-agreed") == []
    rig.deliver_all()
    assert rig.drive.said("save-agreed")[0]["proposals"] == 2


# -- stops -------------------------------------------------------------------------------------------------


def test_a_stop_lets_ranks_save_first(rig: Rig) -> None:
    assert rig.drive.stop("30") == ["save-asked", "save>h0", "save>h1"]
    rig.deliver_all()
    rig.turns(3)
    rig.drive.now += 4
    assert rig.drive.roster.state is State.RUNNING
    rig.look()
    rig.deliver_all()
    assert rig.drive.roster.state is State.ENDING
    assert rig.drive.said("ending")[0] == {"reason": "ctrl-c", "grace": 26.0, "ranks": 4}


def test_a_stop_soon_after_a_save_asks_for_no_other(rig: Rig) -> None:
    rig.ask()
    rig.deliver_all()
    rig.turns_and_look(3)
    rig.drive.now += 1
    assert rig.drive.stop("30")[0] == "ending"


@pytest.mark.parametrize(("second", "ends_after"), [("0", 0.0), ("6", 4.0)])
def test_a_second_stop_shortens_the_time_to_save(rig: Rig, second: str, ends_after: float) -> None:
    rig.drive.stop("30")
    rig.drive.stop(second)
    rig.drive.tick(str(max(0.0, ends_after - 0.1)))
    assert rig.drive.roster.state is (State.RUNNING if ends_after else State.ENDING)
    rig.drive.tick("0.2")
    assert rig.drive.roster.state is State.ENDING


def test_ranks_that_do_not_save_in_time_are_ended(rig: Rig) -> None:
    rig.drive.stop("30")
    rig.drive.tick("24.9")
    assert rig.drive.roster.state is State.RUNNING
    rig.drive.tick("0.2")
    assert rig.drive.said("ending")[0]["grace"] == 4.9


def test_ranks_that_end_after_saving_have_saved(rig: Rig) -> None:
    rig.drive.stop("30")
    rig.deliver_all()
    rig.turns_and_look(2)
    for rank in range(4):
        rig.drive.exit(str(rank), "code=0")
    assert rig.drive.said("saved")[0] == {"step": 12, "ranks": 4, "of": 4, "seconds": 0.0, "others": {}}
    assert rig.drive.roster.stop_reason == "ctrl-c"


# -- the agent's file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["cut", "directory", "link", "numbers", "pipe"])
def test_a_file_that_the_program_has_spoilt_ends_no_agent(tmp_path: Path, spoil: str) -> None:
    said: list[SavingMessage] = []
    agent = agent_side.SaveForwarding(str(tmp_path), said.append)
    file = Path(NodeFiles(str(tmp_path)).save(1, 0))
    if spoil == "cut":
        program.SaveRequests(str(file)).call(5)
        file.write_bytes(b"x")
    elif spoil == "directory":
        file.mkdir()
    elif spoil == "link":
        (tmp_path / "other").write_text("mine")
        file.symlink_to(tmp_path / "other")
    elif spoil == "pipe":
        program.os.mkfifo(file)
    else:
        file.write_bytes(struct.pack("=12q", *[-(1 << 63)] * 12))
    agent.obey(SaveOrder(0, 1, "asked", 0, (1,)))
    assert said[0].ranks[1].calls in (0, 0x78)
    assert spoil != "link" or (tmp_path / "other").read_text() == "mine"


def test_a_rank_without_room_for_the_file_trains_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program.os, "posix_fallocate", full)
    requests = program.SaveRequests(str(tmp_path / "save"))
    assert [requests.call(step) for step in range(3)] == [False] * 3
