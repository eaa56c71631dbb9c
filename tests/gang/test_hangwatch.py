"""Hangs as the gang sees them: when it looks, twice, what it then says, and when it keeps quiet."""

from typing import Any

import pytest
from tests.diagnose.hangs.test_attribute import at, in_collective
from tests.diagnose.hangs.test_recorder import recorder
from tests.gang.test_gang import Drive

from allranks.gang.hangwatch import ENDED_GRACE, GAP, PATIENCE, STARTING
from allranks.gang.states import Quiet, State
from allranks.protocol.messages import CountersMessage, StacksMessage
from allranks.protocol.samples import NO_PY_SPY

WAITS = {"text": in_collective(), "state": "S", "cpu": 1.0}
LOADS = {"text": at(41), "state": "S", "cpu": 1.0, "wchan": "hrtimer_nanosleep"}


class Hang(Drive):
    """A running gang of three hosts with a rank each, in which time passes without a sign."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**{"hang_timeout": 60.0, **spec})
        self.running()
        for rank in ("0", "1", "2"):
            self.initialised(rank)
        self.since, self.asked = self.now, 0

    def quiet(self, seconds: float) -> list[str]:
        """Without the questions for counters, which `asked` counts."""
        self.now += seconds
        actions = self.feed(Quiet(self.since))
        self.asked += any(a.startswith("counters>") for a in actions)
        return [a for a in actions if not a.startswith("counters>")]

    def counters(self, **ranks: dict[str, Any]) -> None:
        for name, counted in ranks.items():
            self.feed(CountersMessage({next(iter(self.roster.nodes[name].ranks)): counted}), name)

    def answer(self, **ranks: dict[str, Any]) -> None:
        for name, found in ranks.items():
            rank = next(iter(self.roster.nodes[name].ranks))
            self.feed(StacksMessage({rank: found}), name)

    def looked(self, second: dict[str, Any] | None = None, wait: float = 60, **ranks: dict[str, Any]) -> list[str]:
        """Suspicion, two looks with the same answers but for those of `second`, the conclusion."""
        self.quiet(wait)
        self.answer(**ranks)
        self.quiet(GAP)
        self.answer(**{**ranks, **(second or {})})
        return self.quiet(0.2)


def test_ranks_that_load_torch_are_no_hang() -> None:
    """The limit begins with the ranks, and a short one leaves time for the imports before init_process_group."""
    drive = Drive(hang_timeout=10.0).running()
    started = drive.roster.last_sign_at
    drive.now += STARTING - 1
    assert "hang-suspected" not in drive.feed(Quiet(started))
    for rank in ("0", "1", "2"):
        drive.initialised(rank)
    since = drive.roster.last_sign_at
    assert since == drive.now, "a rank that comes forward has given a sign"
    drive.now += 10
    assert "hang-suspected" in drive.feed(Quiet(since))


def test_a_program_that_never_comes_forward_is_looked_at_all_the_same() -> None:
    drive = Drive(hang_timeout=10.0).running()
    started = drive.roster.last_sign_at
    drive.now += STARTING
    assert "hang-suspected" in drive.feed(Quiet(started))


def test_a_rank_that_keeps_the_others_waiting_ends_the_gang() -> None:
    drive = Hang()
    actions = drive.looked(h0=WAITS, h1=LOADS, h2=WAITS)
    assert actions[0] == "hang" and "end>h0" in actions
    assert drive.hang is not None and drive.hang.culprits == (1,)
    (event,) = drive.said("hang")
    assert (event["quiet"], event["culprits"], event["cause"]) == (64.2, [1], drive.hang.cause)
    assert drive.roster.state is State.ENDING


def test_ranks_that_another_launcher_has_started_are_judged_too() -> None:
    """The gang knows the launcher alone, and its agent answers for all ranks of the node."""
    drive = Hang(launcher="torchrun", nproc=2)
    answers = [{0: WAITS, 1: WAITS}, {2: WAITS, 3: LOADS}, {4: WAITS, 5: WAITS}]
    drive.quiet(60)
    for _ in range(2):
        for name, ranks in zip(drive.names, answers, strict=True):
            drive.feed(StacksMessage(ranks), name)
        actions = drive.quiet(GAP)
    assert "hang" in actions
    assert drive.hang is not None and (drive.hang.culprits, drive.hang.victims) == ((3,), (0, 1, 2, 4, 5))
    assert "rank 3 on h1 is at data.py:41 in load" in drive.hang.message


def test_a_sign_of_life_between_the_looks_ends_the_suspicion() -> None:
    drive = Hang()
    drive.quiet(60)
    drive.answer(h0=WAITS, h1=LOADS, h2=WAITS)
    drive.since = drive.now + 1
    assert drive.quiet(GAP) == ["note"]
    assert drive.quiet(50) == [], "and the time begins again"
    assert drive.quiet(20)[0] == "hang-suspected"


def test_a_busy_rank_is_told_of_and_left_alone() -> None:
    drive = Hang()
    busy = {"h1": {**LOADS, "cpu": 10.0 + GAP}}
    assert drive.looked(busy, h0=WAITS, h1={**LOADS, "cpu": 10.0}, h2=WAITS) == ["hang-noted", "finding"]
    assert drive.hang is None and drive.roster.state is State.RUNNING
    assert drive.quiet(59) == [] and drive.quiet(1)[0] == "hang-suspected"


def test_report_goes_on() -> None:
    drive = Hang(on_hang="report")
    assert drive.looked(h0=WAITS, h1=LOADS, h2=WAITS) == ["hang-noted", "finding"]
    (finding,) = drive.said("finding")
    pid = next(iter(drive.roster.nodes["h1"].ranks.values())).pid
    assert finding["where"] == {"node": "h1", "rank": 1, "pid": pid}
    assert "no rank has come further for 64 s" in finding["message"]
    assert drive.roster.state is State.RUNNING


def test_a_node_that_does_not_answer_does_not_stop_the_looks() -> None:
    drive = Hang()
    drive.quiet(60)
    drive.answer(h0=WAITS, h2=WAITS)
    assert drive.quiet(1) == []
    assert drive.quiet(PATIENCE) == []
    asked = drive.quiet(GAP)
    assert "stacks>h1" in asked
    drive.answer(h0=WAITS, h2=WAITS)
    actions = drive.quiet(PATIENCE) + drive.quiet(0.2)
    assert "hang" in actions and drive.hang is not None
    assert drive.hang.culprits == (1,) and "could not be sampled" in drive.hang.message


def test_ranks_that_wait_for_processes_of_their_own_are_not_said_to_be_busy() -> None:
    """Those of torch.multiprocessing.spawn may hang, and stacks are taken of the ranks alone."""
    waits = {"text": at(41, "main", ("/env/torch/multiprocessing/spawn.py", 140, "join")), "state": "S", "cpu": 1.0}
    drive = Hang()
    assert drive.looked(h0=waits, h1=waits, h2=waits) == ["note"]
    message = drive.said("note")[-1]["message"]
    assert "processes that it has started" in message and "py-spy dump --subprocesses --pid" in message
    assert drive.looked(h0=waits, h1=LOADS, h2=waits) == ["note"]
    assert "it may be busy" in drive.said("note")[-1]["message"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (f"could not look: {NO_PY_SPY}, and the program has no dump handler", "`pip install py-spy`"),
        ("could not look: py-spy: Permission denied", "taken: could not look: py-spy: Permission denied"),
    ],
)
def test_stacks_that_could_not_be_taken_are_not_ranks_at_work(error: str, words: str) -> None:
    drive = Hang()
    blind = {"error": error, "state": "S", "cpu": 1.0}
    assert drive.looked(h0=blind, h1=blind, h2=blind) == ["note"]
    message = drive.said("note")[-1]["message"]
    assert message.startswith("no stack of a rank could be taken: ") and words in message


def test_a_rank_that_ended_with_0_shortens_the_wait() -> None:
    drive = Hang()
    drive.exit("2", "code=0")
    drive.since = drive.now
    assert drive.quiet(ENDED_GRACE - 1) == []
    assert "hang" in drive.looked(wait=1, h0=WAITS, h1=WAITS)
    assert drive.hang is not None and drive.hang.culprits == (2,)


def test_a_rank_that_is_stopped_while_the_others_end_is_an_answer() -> None:
    """Nobody waits for it: it was "may be busy" for ever."""
    drive = Hang()
    for rank in ("0", "1"):
        drive.exit(rank, "code=0")
    drive.since = drive.now
    assert "hang" in drive.looked(wait=ENDED_GRACE, h2={"text": at(41), "state": "T", "cpu": 1.0})
    hang = drive.hang
    assert hang is not None and (hang.cause, hang.culprits) == ("straggler", (2,))
    assert hang.message.endswith("; rank 0 on h0 and rank 1 on h1 ended with code 0")


def test_ranks_whose_groups_give_up_sooner_are_looked_at_before() -> None:
    """NCCL's watchdog aborts after 100 s: in the middle with the recorders, and again shortly before."""
    drive = Hang(hang_timeout=600.0)
    drive.compares = False  # with its log: this limit is of no rank
    drive.roster.note_limit(100.0)
    assert drive.quiet(49) == []
    assert drive.quiet(1)[0] == "hang-suspected"
    assert drive.last("stacks")["ask"] == "dump"
    drive.answer(h0=WAITS, h1=WAITS, h2=LOADS)
    assert drive.quiet(34) == [], "it may come to it yet"
    asked = drive.quiet(1)
    assert sorted(asked) == [f"stacks>h{i}" for i in range(3)]
    drive.answer(h0=WAITS, h1=WAITS, h2=LOADS)
    concluded = drive.quiet(0.2)
    assert "hang" in concluded[0], concluded


def test_a_hang_after_a_long_step_is_looked_at_before_the_groups_give_up() -> None:
    drive = Hang(hang_timeout=600.0)
    drive.compares = False  # with its log: this limit is of no rank
    drive.roster.note_limit(100.0)
    for seconds in (50, 35):
        assert any(action.startswith("stacks>") for action in drive.quiet(seconds))
        drive.answer(h0=LOADS, h1=LOADS, h2=LOADS)
    assert drive.quiet(0.2) == ["note"], "no rank waits for others"
    drive.since = drive.now + 5  # they go on
    assert drive.quiet(54) == [] and drive.quiet(1)[0] == "hang-suspected"


def test_never() -> None:
    drive = Drive(hang_timeout=0.0).running()
    drive.now += 10**6
    assert drive.feed(Quiet(drive.now - 10**6)) == []


def test_the_next_attempt_begins_without_it() -> None:
    drive = Hang(retries=1)
    drive.looked(h0=WAITS, h1=LOADS, h2=WAITS)
    drive.through_the_end()
    drive.retry()
    assert drive.hang is None and drive.gang.hang_watch.suspicion is None


# -- counters of collectives ---------------------------------------------------------------------------


def test_counters_are_asked_for_a_few_times_in_silence_and_never_while_ranks_print() -> None:
    drive = Hang()
    for _ in range(59):
        drive.quiet(1)
    assert drive.asked == 3
    printing = Hang()
    for _ in range(100):
        printing.since = printing.now
        printing.quiet(10)
    assert printing.asked == 0


def test_what_moves_is_alive() -> None:
    drive = Hang()
    for number in range(40):
        assert drive.quiet(15) == [], number
        drive.counters(h0={"0": number}, h1={"0": 0}, h2={})
    assert drive.asked == 40
    assert drive.quiet(59) == [], "the time begins at the last that moved"
    assert drive.quiet(1)[0] == "hang-suspected"


def test_numbers_of_an_earlier_silence_do_not_count() -> None:
    drive = Hang()
    drive.quiet(15)
    drive.counters(h0={"0": 5})
    drive.now += 1000
    drive.since = drive.now
    drive.quiet(15)
    drive.counters(h0={"0": 500})
    assert drive.quiet(45)[0] == "hang-suspected", "500 and not 5: but that was before it printed"


def test_collectives_that_go_on_between_the_looks() -> None:
    drive = Hang()
    eight = {"counted": {"0": 8}}
    further = {"h0": {**WAITS, "counted": {"0": 9}}}
    actions = drive.looked(further, h0={**WAITS, **eight}, h1={**LOADS, **eight}, h2=WAITS)
    assert actions == ["note"] and "collectives go on" in drive.said("note")[-1]["message"]
    assert drive.gang.hang_watch.suspicion is None and drive.quiet(59) == []


def test_with_a_pattern_counters_are_no_sign_of_life_and_are_told_of() -> None:
    drive = Hang(hang_pattern="step")
    further = {"h0": {**WAITS, "counted": {"0": 9}}}
    assert drive.looked(further, h0={**WAITS, "counted": {"0": 8}}, h1=LOADS, h2=WAITS) == ["finding"]
    assert drive.asked == 0
    assert drive.said("finding")[0]["message"].startswith("no log line has matched --hang-pattern step for 64 s")
    assert drive.roster.state is State.RUNNING


# -- what the second look brings -----------------------------------------------------------------------


def test_recorders_and_ras_are_evidence() -> None:
    drive = Hang()
    pid = next(iter(drive.roster.nodes["h1"].ranks.values())).pid
    text = f"Warnings\n========\n\n#0-0 (ab) MISMATCH\n  Rank 1 -- GPU 0 managed by process {pid} on node h1\n"
    drive.quiet(60)
    assert drive.last("stacks")["ask"] == "look"
    drive.answer(h0=WAITS, h1=LOADS, h2=WAITS)
    drive.quiet(GAP)
    assert drive.last("stacks")["ask"] == "dump", "the second look asks for the recorders"
    for name in ("h0", "h1", "h2"):
        rank = next(iter(drive.roster.nodes[name].ranks))
        entries = [(1, True), (2, False)] if name != "h1" else [(1, True)]
        found = {**(LOADS if name == "h1" else WAITS), "recorder": recorder((0, 1, 2), *entries)}
        drive.feed(StacksMessage({rank: found}, text), name)
    assert drive.quiet(0.2)[0] == "hang"
    assert drive.hang is not None
    sources = [line.partition(":")[0] for line in drive.hang.evidence]
    assert sources == ["flight recorder", "rank 1", "NCCL RAS MISMATCH"]
    assert "rank 1 has not called it" in drive.hang.evidence[0]
