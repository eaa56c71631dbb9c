"""When a run is slower than it was, and what of its nodes changed then."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.diagnose.slowdown import (
    KEPT,
    LEAST_SECONDS,
    Pace,
    PaceKeeper,
    Slowdown,
    changes,
    find_slowdown,
    has_recovered,
    recovery_words,
    slowdown_finding,
)
from allranks.protocol.samples import NodeUsage

AT = 1000.0


def paces(*parts: tuple[int, float], noise: float = 0.1, seed: int = 0) -> list[Pace]:
    """So many paces of so many seconds a step, one step each, one part after the other; they begin at AT."""
    chance = random.Random(seed)
    made = []
    t = AT
    for count, seconds in parts:
        for _ in range(count):
            length = seconds * (1 + chance.uniform(-noise, noise))
            t += length
            made.append(Pace(t, length, 1))
    return made


@given(st.integers(12, 100), st.floats(0.5, 20), st.floats(2.0, 20), st.integers(0, 1000), st.integers(30, 60))
def test_any_lasting_one_of_twice_or_more_is(before: int, seconds: float, factor: float, seed: int, after: int) -> None:
    made = paces((before, seconds), (after, factor * seconds), seed=seed)
    found = find_slowdown(made)
    assert found is not None
    assert found.paces_before == pytest.approx(before, abs=1)
    assert found.t == pytest.approx(AT + before * seconds, rel=0.1)
    assert found.before / found.after == pytest.approx(factor, rel=0.25)


@given(st.integers(20, KEPT), st.floats(0.5, 20), st.integers(0, 1000), st.floats(0, 0.3))
def test_a_steady_run_has_none(count: int, seconds: float, seed: int, noise: float) -> None:
    assert find_slowdown(paces((count, seconds), noise=noise, seed=seed)) is None


@given(st.lists(st.tuples(st.integers(8, 40), st.floats(5, 600)), min_size=1, max_size=8), st.integers(0, 1000))
def test_pauses_for_evaluation_and_saving_are_none(pauses: list[tuple[int, float]], seed: int) -> None:
    parts = [part for steps, pause in pauses for part in ((steps, 1.0), (1, pause))]
    made = paces(*parts, (8, 1.0), seed=seed)
    assert all(find_slowdown(made[:end]) is None for end in range(1, len(made) + 1))


def test_a_run_that_becomes_faster_has_none() -> None:
    """The first steps compile."""
    assert find_slowdown(paces((20, 8.0), (60, 1.0))) is None


def test_it_has_to_last() -> None:
    before = paces((60, 1.0))
    for count in range(1, 20):
        made = paces((60, 1.0), (count, 3.0), noise=0.01)
        lasted = made[-1].t - before[-1].t
        assert (find_slowdown(made) is None) == (lasted < LEAST_SECONDS or count < 4), count


def test_recovery_is_as_fast_as_before_and_lasts() -> None:
    slow = Slowdown(AT + 60, 1.0, 0.25, 60, 10)
    assert not has_recovered(slow, paces((60, 1.0), (30, 4.0)))
    assert not has_recovered(slow, paces((60, 1.0), (30, 4.0), (10, 1.0)))
    recovered = paces((60, 1.0), (30, 4.0), (40, 1.0))
    assert has_recovered(slow, recovered)
    assert not has_recovered(slow, paces((60, 1.0))), "all of that was before"
    assert recovery_words(slow, paces((60, 1.0), (30, 4.0), (40, 1.0), noise=0)) == (
        "the run is back at 1 s a step, after 4 s a step"
    )


def test_fast_steps_are_taken_together_and_steps_that_go_back_begin_again() -> None:
    keeper = PaceKeeper()
    for number in range(1001):
        keeper.note(AT + number / 100, number)
    assert len(keeper.paces) == pytest.approx(20, abs=1)
    assert keeper.paces[0].steps == pytest.approx(50, abs=1)
    assert not keeper.note(AT + 20, 3)
    assert keeper.paces == []
    assert keeper.note(AT + 21, 5)
    assert keeper.paces == [Pace(AT + 21, 1.0, 2)]


def samples(before: NodeUsage, after: NodeUsage) -> list[NodeUsage]:
    """Six samples of 10 seconds before AT, and three after it."""
    made = [before._replace(t=AT - 10 * number, seconds=10.0, cores=16) for number in range(6, 0, -1)]
    return made + [after._replace(t=AT + 10 * number, seconds=10.0, cores=16) for number in range(1, 4)]


CALM = NodeUsage(
    tcp_sent=10_000, tcp_retransmitted=1, cpu_throttled_s=0.0, cpu_others=0.3, memory_pressure=0.0, io_pressure=0.01
)
CHANGED = [
    (CALM._replace(tcp_retransmitted=400), "h3: 4.0% of its TCP segments were sent again, 0.0% before"),
    (CALM._replace(cpu_throttled_s=31.0), "h3: its ranks' CPU quota held them back 3.1 s a second, 0 before"),
    (CALM._replace(cpu_others=12.1), "h3: processes that are not of the run use 12.1 of 16 cores, 0.3 before"),
    (CALM._replace(memory_pressure=0.4), "h3: processes wait for memory 40% of the time, 0% before"),
    (CALM._replace(io_pressure=0.43), "h3: processes wait for disks 43% of the time, 1% before"),
]


@pytest.mark.parametrize(("after", "sentence"), CHANGED, ids=[row[1].split()[2] for row in CHANGED])
def test_what_changed_is_named_with_its_node(after: NodeUsage, sentence: str) -> None:
    found = changes(AT, {"h1": samples(CALM, CALM), "h3": samples(CALM, after)})
    assert found == [("h3", sentence)]


def test_nothing_is_claimed_where_nothing_changed() -> None:
    busy = CALM._replace(cpu_others=12.0, io_pressure=0.4)
    assert changes(AT, {"h1": samples(CALM, CALM), "h2": samples(busy, busy), "h3": samples(NodeUsage(), CALM)}) == []
    assert changes(AT, {"h1": samples(CALM, CALM)[:6], "h2": []}) == []
    message = slowdown_finding(Slowdown(AT, 40.0, 3.0, 60, 9), "02:07:54 UTC", [], [], {}).message
    assert message == (
        "the run fell from 40 steps/s to 3 steps/s at 02:07:54 UTC. "
        "Nothing that allranks samples on the nodes changed then"
    )


def test_the_sentence() -> None:
    changed = [("h3", "h3: 4.0% of its TCP segments were sent again, 0.0% before")]
    finding = slowdown_finding(Slowdown(AT, 0.5, 0.05, 60, 9), "02:07:54 UTC", changed, [], {})
    assert (finding.id, finding.status, finding.where.node) == ("slowdown", "warn", "h3")
    assert finding.message == (
        "the run fell from 2 s a step to 20 s a step at 02:07:54 UTC. At that time, "
        "h3: 4.0% of its TCP segments were sent again, 0.0% before"
    )
    many = slowdown_finding(Slowdown(AT, 10, 0.1, 60, 9), "02:07:54 UTC", changed * 5, [], {})
    assert many.message.endswith("2 more in evidence/usage.jsonl")


def test_ranks_that_became_late_then_are_named_with_their_nodes() -> None:
    node_of = {3: "h1", 4: "h2", 5: "h2"}
    finding = slowdown_finding(Slowdown(AT, 40.0, 3.0, 60, 9), "02:07:54 UTC", [], [3, 4, 5], node_of)
    assert finding.message.endswith("At that time, rank 3 on h1 and ranks 4-5 on h2 began to come late to collectives")
    assert finding.where.nodes == ("h1", "h2")
    busy = [("h2", "h2: processes wait for disks 43% of the time, 1% before")]
    both = slowdown_finding(Slowdown(AT, 40.0, 3.0, 60, 9), "02:07:54 UTC", busy, [4], node_of)
    assert both.message.endswith("collectives. h2: processes wait for disks 43% of the time, 1% before")
    assert (both.where.node, both.remedy) == ("h2", "look at h2 for what began then")
