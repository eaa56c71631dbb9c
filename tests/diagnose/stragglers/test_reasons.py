"""Why a rank is late, from what its samples and the kernel's counters say."""

from typing import Any

import pytest
from tests.diagnose.hangs.test_attribute import at, in_collective

from allranks.diagnose.stragglers.lateness import GroupKey, Straggler
from allranks.diagnose.stragglers.reasons import Reason, find_reason
from allranks.diagnose.stragglers.slow_findings import slow_rank_finding
from allranks.protocol.samples import SuspectLook

IN_LOADER = at(53, "load", ("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1270, "_try_get_data"))
NAMES = {5: "h3", 0: "h1"}


def look(
    *texts: str, state: str = "S", ready: float = 0.0, cpu: float = 0.0, wchan: str = "", **more: Any
) -> SuspectLook:
    """Samples half a second apart; `ready` and `cpu` are shares of the time."""
    samples = tuple(
        {"text": text, "state": state, "ready": 1 + ready * at * 0.5, "cpu": 1 + cpu * at * 0.5, "wchan": wchan}
        for at, text in enumerate(texts)
    )
    return SuspectLook(samples, tuple(0.5 * at for at in range(len(texts))), **more)


USUAL = look(*[in_collective()] * 5)


def reason(suspect: SuspectLook, usual: SuspectLook = USUAL) -> Reason | None:
    return find_reason(5, "h3", {5: suspect, 0: usual}, 0, {})


@pytest.mark.parametrize(
    ("suspect", "words", "is_of_node"),
    [
        (look(*[at(41)] * 5, periods=20, throttled=18, stood=1.2), "its CPU is throttled by a quota", True),
        (look(*[IN_LOADER] * 5, wchan="do_poll"), "its data loader keeps it waiting at data.py:53 in load", True),
        (look(*[at(41)] * 5, state="T"), "it was stopped by a signal in 5 of 5 samples", True),
        (look(*[at(41)] * 5, ready=0.6), "other processes keep the CPUs of h3 busy", True),
        (look(*[at(41)] * 5, wchan="hrtimer_nanosleep"), "it sleeps at data.py:41 in load", False),
        (look(*[at(41)] * 5, cpu=0.9), "it computes at data.py:41 in load", False),
    ],
    ids=["quota", "loader", "stopped", "neighbour", "sleeps", "computes"],
)
def test_a_reason_that_shows(suspect: SuspectLook, words: str, is_of_node: bool) -> None:
    found = reason(suspect)
    assert found is not None and found.words.startswith(words)
    assert found.is_of_node == is_of_node


def test_the_garbage_collector_of_one_rank() -> None:
    busy = look(*[at(41)] * 5, cpu=0.9)
    found = find_reason(5, "h3", {5: busy, 0: USUAL}, 0, {5: 12, 0: 1})
    assert found is not None and found.words == "Python's garbage collector stops it"
    assert found.evidence == ("12 full collections between two looks, 1 on a usual rank",) and not found.is_of_node
    usual_too = find_reason(5, "h3", {5: busy, 0: USUAL}, 0, {5: 12, 0: 11})
    assert usual_too is not None and usual_too.words.startswith("it computes")
    sleeps = look(*[at(41)] * 5, wchan="hrtimer_nanosleep")
    asleep = find_reason(5, "h3", {5: sleeps, 0: USUAL}, 0, {5: 12, 0: 1})
    assert asleep is not None and asleep.words.startswith("it sleeps")


def test_what_the_usual_rank_has_too_is_no_reason() -> None:
    busy = look(*[at(41)] * 5, ready=0.6)
    found = reason(busy, look(*[in_collective()] * 5, ready=0.5))
    assert found is not None and "CPUs" not in found.words and not found.is_of_node
    throttled = look(*[in_collective()] * 5, periods=20, throttled=18, stood=1.2)
    assert reason(throttled, throttled) is None


def test_a_rank_that_waits_for_others_gives_no_reason() -> None:
    assert reason(look(*[in_collective()] * 5)) is None


@pytest.mark.parametrize("missing", [SuspectLook(), look(at(41)), look(*[at(41)] * 5)._replace(at=(0.0,))])
def test_too_few_samples_are_no_reason(missing: SuspectLook) -> None:
    assert reason(missing) is None


def test_the_sentence() -> None:
    found = Straggler(
        (5,), 0.18, 0.97, 30, 0.58, 0.31, GroupKey("0", 8, 0), "all_reduce", 1_800_000_000.0, 0.001
    )
    finding = slow_rank_finding(found, reason(look(*[at(41)] * 5, periods=20, throttled=18, stood=1.2)), NAMES, 400)
    assert finding.message == (
        "rank 5 on h3 arrives 180 ms late at every all_reduce since step 400: the other 7 ranks wait 31 % of the time. "
        "Its CPU is throttled by a quota of its control group"
    )
    assert (finding.id, finding.status, finding.where.node, finding.where.rank) == ("slow-rank", "warn", "h3", 5)
    assert "18 of 20 periods throttled, for 60 %" in finding.evidence
    several = slow_rank_finding(
        found._replace(ranks=(5, 4), since_t=None, calls_of_step=4), None, {**NAMES, 4: "h3"}, None
    )
    assert several.message == (
        "ranks 4-5 on h3 arrive 180 ms late at the collectives of every step since the start: the other 6 ranks wait "
        "31 % of the time. Why is not known"
    )
