"""The ledger of time: every part is what the events say, none overlaps another, and all add up to the wall time."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.facts import fact

from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.codec import encode
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import EndedMessage, ExitMessage, StartedMessage, TemplateMessage
from allranks.protocol.run_facts import (
    AttemptStart,
    EndingBegun,
    Fact,
    FailureNoted,
    NodeLost,
    NodesAsked,
    RunEnd,
    RunStart,
    Stamped,
    StepsSeen,
    StepsWentOn,
    StragglerWait,
    read_lines,
)
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeStatus, RankStatus, ResultDocument, StatusDocument, TimeLedger
from allranks.runs.result import write_result
from allranks.runs.timeledger import Timekeeper, ledger_of, newest_steps

T = 1_790_000_000.0
NOTHING = StatusDocument()
ROUNDING = 0.02  # seconds: each part is written in milliseconds
PARTS = [one.name for one in fields(TimeLedger) if one.name != "wall"]


def parts(ledger: TimeLedger) -> dict[str, float]:
    """All parts that are not zero."""
    return {name: value for name in PARTS if (value := getattr(ledger, name))}


def total(ledger: TimeLedger) -> float:
    return sum(parts(ledger).values())


@dataclass
class Story:
    """A run as it is told in events, and what of its time went into each part."""

    t: float = T
    events: list[Stamped[Fact]] = field(default_factory=list)
    expected: dict[str, float] = field(default_factory=dict)
    attempt: int = 0
    reached: int | None = None
    judging: float = 0.0  # seconds since the ranks of the last attempt had ended

    def passes(self, part: str, seconds: float) -> None:
        self.t += seconds
        self.expected[part] = self.expected.get(part, 0.0) + seconds

    def tell(self, kind: str, **values: Any) -> None:
        of_hang = {"cause": "unknown", "message": "m", "remedy": "r", "confidence": 0.5}
        self.events.append(fact({"t": self.t, "event": kind, "attempt": self.attempt, **of_hang, **values}))

    def notes(self, fact: Fact, after: float = 0.0, node: str = "") -> None:
        """A fact of the attempt, so long after this moment."""
        self.events.append(Stamped(node, self.t + after, self.attempt, fact))

    def starts(self, waits: float = 0.0) -> None:
        if waits:
            self.events.append(Stamped("", self.t, None, NodesAsked("Slurm")))
            self.passes("scheduler", waits)
        self.events.append(Stamped("", self.t, None, RunStart("r", "u")))

    @classmethod
    def under_way(cls, preparation: float = 1.0, start: float = 1.0, waits: float = 0.0) -> Story:
        """A run whose ranks have just started."""
        story = cls()
        story.starts(waits)
        story.prepares(preparation)
        story.ranks_start(start)
        return story

    def prepares(self, seconds: float, part: str = "preflight") -> None:
        self.expected[part] = self.expected.get(part, 0.0) + self.judging
        self.judging = 0.0
        self.tell("attempt-start")
        self.passes(part, seconds)

    def imports(self, seconds: float) -> None:
        """Nodes import what ranks are forked with: one is done some time before the other."""
        self.passes("imports", seconds)
        for node, share in (("h1", 0.5), ("h2", 1.0)):
            self.notes(TemplateMessage("ready", self.attempt, 900, share * seconds), (share - 1) * seconds, node)

    def ranks_start(self, seconds: float) -> None:
        for rank in (0, 1):
            self.notes(StartedMessage(rank, 70 + rank, 0), 0.001 * rank, "h1")
        self.passes("start", seconds)

    def steps(self, first: int, last: int, each: float) -> None:
        """Steps `first` to `last`, of which the first has come at the end of the start."""
        first_t = self.t
        redone_t = None
        for step in range(first + 1, last + 1):
            again = self.reached is not None and step <= self.reached
            self.passes("computed_twice" if again else "useful", each)
            if step == self.reached:
                redone_t = self.t
        if self.reached is not None and first >= self.reached:
            redone_t = first_t
        self.notes(StepsSeen(first, first_t, last, self.t, self.reached, redone_t), 0.3)
        self.reached = max(last, self.reached or 0)

    def fails(self, teardown: float, decision: str = "retry") -> None:
        """A rank fails, and the controller hears of it a little later."""
        heard = min(0.3, teardown)
        self.notes(ExitMessage(1, signal=9, pid=71), node="h1")
        self.notes(FailureNoted(), heard)
        self.notes(EndingBegun("failure", 1.0, 1), heard)
        self.ends(teardown, decision)

    def finishes(self, teardown: float) -> None:
        """All ranks end by themselves."""
        for rank in (0, 1):
            self.notes(ExitMessage(rank, code=0, pid=7), 0.1 * rank - 0.1, "h1")
        self.notes(EndingBegun("done", 1.0, 0), min(0.3, teardown))
        self.ends(teardown)

    def ends(self, teardown: float, decision: str = "finish") -> None:
        self.passes("teardown", teardown)
        self.notes(EndedMessage(left=()), node="h1")
        self.judging = 0.4
        self.t += self.judging
        self.tell("attempt-end", outcome="x", decision=decision)
        self.attempt += 1

    def run_ends(self) -> None:
        """The controller ends, and so what it did after the last rank is part of the teardown."""
        self.expected["teardown"] = self.expected.get("teardown", 0.0) + self.judging
        self.judging = 0.0
        self.events.append(Stamped("", self.t, None, RunEnd(4)))

    def is_over(self, seconds: float = 0.0) -> TimeLedger:
        self.passes("teardown", seconds)
        self.run_ends()
        ledger = ledger_of(self.events, NOTHING)
        assert ledger.wall == pytest.approx(self.t - T, abs=ROUNDING)
        assert ledger.unaccounted <= ROUNDING
        wanted = {part: seconds for part, seconds in self.expected.items() if seconds >= ROUNDING}
        got = {part: seconds for part, seconds in parts(ledger).items() if seconds >= ROUNDING}
        assert got == pytest.approx(wanted, abs=ROUNDING)
        return ledger


def test_a_run_that_is_killed_goes_on_from_its_checkpoint() -> None:
    story = Story.under_way(2.0, 5.0)
    story.steps(0, 30, 1.0)
    story.passes("after_last_step", 0.4)
    story.fails(3.0)
    story.prepares(4.0, "restart")
    story.ranks_start(6.0)
    story.steps(21, 60, 1.0)
    story.finishes(0.5)
    ledger = story.is_over(0.2)
    assert ledger.computed_twice == pytest.approx(9.0)  # 22 to 30: the first step of an attempt is part of its start
    assert ledger.useful == pytest.approx(60.0)  # each step once
    assert ledger.goodput == pytest.approx(60.0 / ledger.wall, abs=1e-4)
    assert ledger.slow_share is None


def test_a_standstill_that_passes_by_is_none_of_the_useful_time() -> None:
    story = Story.under_way()
    first_t = story.t
    story.passes("useful", 5.0)
    story.passes("hang", 10.0)
    story.tell("hang-noted", quiet=10.0)
    story.passes("hang", 3.0)
    story.tell("hang-noted", quiet=13.0)
    story.notes(StepsWentOn())
    story.passes("useful", 5.0)
    story.notes(StepsSeen(0, first_t, 9, story.t))
    story.finishes(1.0)
    story.is_over()


def test_ranks_that_save_after_a_stop_still_compute() -> None:
    story = Story.under_way()
    stop: Stamped[Fact] = Stamped("", story.t + 4.5, 0, EndingBegun("ctrl-c"))
    story.steps(0, 6, 1.0)
    story.events.insert(-1, stop)
    story.ends(2.0)
    assert story.is_over().useful == pytest.approx(6.0)


def test_without_a_step_goodput_is_not_known() -> None:
    story = Story.under_way(start=3.0)
    story.tell("all-initialised", seconds=4.0, ranks=2)
    story.passes("without_steps", 30.0)
    story.finishes(1.0)
    ledger = story.is_over()
    assert (ledger.useful, ledger.computed_twice, ledger.goodput) == (None, None, None)


def test_the_tests_before_a_program_and_a_port_that_was_taken_are_preflight() -> None:
    story = Story()
    story.starts()
    story.tell("attempt-start")
    story.events.append(Stamped("h1", T + 1.0, 0, StartedMessage(0, 70, 0)))
    story.passes("preflight", 9.0)
    story.events.append(Stamped("", story.t, 0, AttemptEnd(outcome="tested")))
    story.prepares(2.0)
    story.tell("attempt-start")  # again, with another port
    story.passes("preflight", 1.0)
    story.ranks_start(2.0)
    story.steps(0, 3, 1.0)
    story.finishes(1.0)
    story.is_over()


START, END = RunStart("r", "u"), Stamped[Fact]("", T + 40.0, None, RunEnd(1))
OF_JOINED = [(0, NodesAsked("join")), (30, START), (30, AttemptStart())]
OF_PODS = [(0.1, START), (0, NodesAsked("kubernetes")), (30, AttemptStart()), (35, EndingBegun("failure", 1.0, 0))]


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        pytest.param(OF_JOINED, {"scheduler": 30.0, "unaccounted": 10.0}, id="nodes join before there is a directory"),
        pytest.param(OF_PODS, {"scheduler": 30.0, "preflight": 5.0, "teardown": 5.0}, id="pods, until node 0 begins"),
    ],
)
def test_what_nodes_are_waited_for_is_the_schedulers(told: list[tuple[float, Fact]], wanted: dict[str, float]) -> None:
    events = [Stamped("", T + after, 0 if isinstance(one, AttemptStart) else None, one) for after, one in told]
    assert parts(ledger_of([*events, END], NOTHING)) == wanted


BEGUN: list[Stamped[Fact]] = [
    Stamped("", T, None, START),
    Stamped("", T, 0, AttemptStart()),
    Stamped("h1", T + 1.0, 0, StartedMessage(0, 7, 0)),
]


def test_what_came_after_a_controller_died_is_not_accounted_for() -> None:
    """Nobody knows how long the ranks went on: their lease ended them."""
    seen = Stamped("", T + 2.5, 0, StepsSeen(0, T + 2.0, 0, T + 2.0))
    status = StatusDocument(t=T + 12.0, nodes=(NodeStatus("h1", ranks=(RankStatus(0, step=9, last_output=T + 11.0),)),))
    so_far = ledger_of([*BEGUN, seen], status)
    assert parts(so_far) == {"preflight": 1.0, "start": 1.0, "useful": 9.0, "after_last_step": 1.0}
    over = ledger_of([*BEGUN, seen, Stamped("", T + 100.0, None, RunEnd(4))], status)
    assert parts(over) == {"preflight": 1.0, "start": 1.0, "unaccounted": 98.0}


def test_a_job_whose_controller_died_goes_on_with_the_steps_that_status_had() -> None:
    seen = StepsSeen(5, T + 2.0, 6, T + 3.0, reached=8)
    ranks = (RankStatus(0, step=9, last_output=T + 11.0), RankStatus(1, step=7, last_output=T + 12.0))
    status = StatusDocument(t=T + 20.0, nodes=(NodeStatus("h1", ranks=ranks),))
    assert newest_steps(seen, status) == StepsSeen(5, T + 2.0, 9, T + 11.0, 8, T + 11.0)
    events = [
        *BEGUN,
        Stamped("", T + 99.0, 0, StepsSeen(0, T + 2.0, 9, T + 11.0)),
        Stamped("", T + 99.0, None, RunStart("r", "u")),
        Stamped("", T + 99.0, 1, AttemptStart()),
        Stamped("h1", T + 100.0, 1, StartedMessage(0, 7, 0)),
        Stamped("", T + 109.0, 1, StepsSeen(4, T + 101.0, 12, T + 109.0, 9, T + 106.0)),
        Stamped("", T + 109.0, 1, EndingBegun("done", 1.0, 0)),
        Stamped("", T + 110.0, None, RunEnd(0)),
    ]
    found = parts(ledger_of(events, NOTHING))
    wanted = {"preflight": 1.0, "start": 2.0, "useful": 12.0, "computed_twice": 5.0, "scheduler": 88.0}
    assert found == {**wanted, "restart": 1.0, "teardown": 1.0}


def test_what_ranks_wait_for_stragglers_is_taken_from_the_useful_time() -> None:
    story = Story.under_way()
    begin = story.t
    story.steps(0, 20, 1.0)
    for since, share in ((0, 0.5), (5, 0.1), (5, 0.9)):  # the third says the second again
        wait = StragglerWait(begin + since, share)
        story.events.insert(-1, Stamped("", begin + since + 5.0, 0, wait))
    for part, seconds in (("useful", -3.0), ("slow_share", 3.0)):
        story.expected[part] = story.expected.get(part, 0.0) + seconds
    story.finishes(1.0)
    ledger = story.is_over()
    assert ledger.goodput == pytest.approx(17.0 / ledger.wall, abs=1e-4)


@pytest.mark.parametrize("ahead_s", [-0.2, 0.055])
def test_live_and_saved_ledgers_agree(tmp_path: Any, ahead_s: float) -> None:
    """A result without a ledger gets it from the events; the controller has it while they come.

    `ahead_s`: by how much the last node's event is later than the end. Clocks of nodes are corrected, not equal.
    """
    run = RunDirectory(tmp_path)
    keeper = Timekeeper()
    story = Story.under_way(waits=3.0)
    story.steps(0, 20, 1.0)
    story.finishes(1.0)
    for event in story.events:
        keeper.take(event)
        run.append(event)
    late = Stamped("h1", story.t + 0.5 + ahead_s, story.attempt, EndedMessage(left=()))
    keeper.take(late)
    run.append(late)
    live = keeper.ledger(story.t + 0.5)
    written = write_result(run, ResultDocument("r"), False, ended_t=story.t + 0.5)
    assert written.time_ledger == live and written.goodput == live.goodput
    assert written.timing.total == live.wall, "the end of a run counts from where its clock does"
    assert run.read_result() == written
    assert ledger_of(run.read_facts()[0], NOTHING) == live


seconds = st.floats(0.0, 500.0).map(lambda value: round(value, 3))


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Any run that can be: its parts follow from what was drawn, not from its events."""
    story = Story()
    story.starts(waits=draw(st.sampled_from([0.0, 40.0])))
    has_run = False
    for number in range(draw(st.integers(1, 4))):
        if number and draw(st.booleans()):  # Slurm starts the job again
            story.run_ends()
            story.passes("scheduler", draw(seconds))
            story.events.append(Stamped("", story.t, None, RunStart("r", "u")))
        preparation = "restart" if has_run else "preflight"
        if draw(st.booleans()):  # the port was taken
            story.prepares(draw(seconds), preparation)
        story.prepares(draw(seconds), preparation)
        if draw(st.booleans()):
            story.imports(draw(seconds))
        how = draw(st.sampled_from(["refused", "start", "steps", "hang", "lost", "stop"]))
        if how == "refused":
            story.fails(draw(seconds))
            continue
        has_run = True
        story.ranks_start(draw(seconds))
        if how != "start" or story.reached is None:
            first = draw(st.integers(0, (story.reached or 0) + 1))
            story.steps(first, first + draw(st.integers(0, 30)), draw(st.sampled_from([0.1, 1.0, 7.5])))
            story.passes("after_last_step", draw(st.sampled_from([0.0, 0.7])))
        if how == "hang":
            quiet = draw(seconds)
            story.passes("hang", quiet)
            story.tell("hang", quiet=quiet)
        if how == "lost":
            heard = story.t
            story.passes("hang", draw(seconds))
            story.notes(NodeLost(heard), node="h1")
        if how == "stop":
            story.tell("ending", reason="ctrl-c")
            story.ends(draw(seconds))
        else:
            story.fails(draw(seconds))
    return story


@given(stories(), st.integers(0, 60), st.floats(T - 10.0, T + 10_000.0))
def test_all_parts_of_any_run_add_up_at_any_moment_too(story: Story, count: int, now: float) -> None:
    if story.reached is None:
        story.expected["start"] = story.expected.get("start", 0.0)
    keeper = Timekeeper()
    for event in story.events[:count]:
        keeper.take(event)
    for ledger in (keeper.ledger(now), story.is_over(1.0)):
        assert total(ledger) == pytest.approx(ledger.wall, abs=ROUNDING)
        assert all(value >= 0 for value in parts(ledger).values())


KINDS = [
    "run-start", "nodes-asked", "run-end", "attempt-start", "attempt-end", "rank-started", "rank-entered",
    "all-initialised", "steps", "went-on", "hang", "hang-noted", "node-lost", "failed", "ending", "straggler-wait",
    "note", "",
]  # fmt: skip
def test_without_the_first_lines_of_a_log_its_time_begins_with_what_is_left() -> None:
    events = [{"event": "rank-started", "rank": 0}, {"event": "attempt-start"}, {"event": "run-end", "exit": 1}]
    left = [fact({"t": T + 20 * place, **event}) for place, event in enumerate(events, 1)]
    assert ledger_of(left, NOTHING).wall == 40


times = st.one_of(st.floats(0, 100), st.sampled_from([-5.0, 1e300, 1e10, 0.0]), st.none(), st.just("x"))
names = ["t", "quiet", "last_heard", "first_t", "last_t", "redone_t", "since", "share"]
lines = st.fixed_dictionaries(
    {"event": st.one_of(st.sampled_from(KINDS), st.just([])), "t": times},
    optional={
        **{name: times for name in names if name != "t"},
        "reached": st.integers(0, 9),
        "first": st.integers(0, 9),
        "reason": st.sampled_from(["failure", "done", "ctrl-c", 5]),
        "decision": st.sampled_from(["retry", None, 5]),
    },
)


@given(st.lists(lines, max_size=30), st.floats(0, 200))
@example([{"event": "attempt-start", "t": 50.0}, {"event": "run-start", "t": 5.0}], 20.0)
def test_events_in_any_order_give_parts_that_add_up(events: list[JsonObject], now: float) -> None:
    keeper = Timekeeper()
    facts = list(read_lines(events))
    for stamped in facts:
        keeper.take(stamped)
    for ledger in (keeper.ledger(now), ledger_of(facts, StatusDocument(t=now))):
        assert all(value >= 0 for value in parts(ledger).values())
        assert total(ledger) == pytest.approx(ledger.wall, abs=max(ROUNDING, 1e-9 * ledger.wall))
        assert ledger.goodput is None or 0 <= ledger.goodput <= 1
        assert encode(ledger)["wall"] == ledger.wall
