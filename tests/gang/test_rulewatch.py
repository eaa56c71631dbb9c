"""Rules of --fail-on: how they are read, and when they hold."""

import pytest

from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.gang.observing import RuleWatch
from allranks.runs.documents import RankStatus
from allranks.settings import RunSpec
from allranks.settings.failrules import FailRule, read_rule
from allranks.settings.layers import resolve

SLOW = {"name": "steps/s", "sign": "<", "bound": 0.5, "of_median": True}
NODES = {0: "h1", 1: "h2"}


def watch(*rules: str) -> RuleWatch:
    return RuleWatch(rules, stops=True, on_off=lambda why: None)


def shown(one: RuleWatch, rank: int, values: list[object], name: str = "loss") -> list[str]:
    """What is found after lines of metrics, a step and a second each."""
    said = []
    for step, value in enumerate(values):
        one.metrics(rank, {"step": step, name: value}, step, float(step))
        said += [finding.message for finding in one.found(NODES)]
    return said


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("loss=nan", {"name": "loss"}),
        ("train/loss > 10 for 50 steps", {"name": "train/loss", "sign": ">", "bound": 10.0, "steps": 50}),
        ("grad_norm>1e3", {"name": "grad_norm", "sign": ">", "bound": 1000.0}),
        ("acc<0.1 for 2m", {"name": "acc", "sign": "<", "bound": 0.1, "seconds": 120.0}),
        ("steps/s<0.5×median for 5m", {**SLOW, "seconds": 300.0}),
        ("steps/s<0.5x median", SLOW),
        ("no-step for 10m", {"seconds": 600.0}),
        ("output:CUDA error", {"pattern": "CUDA error"}),
    ],
)  # fmt: skip
def test_a_rule_is_read(text: str, rule: dict[str, object]) -> None:
    assert read_rule(text) == FailRule(text, **rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["loss", "loss>>1", "loss>high", "loss=1", "no-step", "output:", "loss>1×median", "steps/s<3", "output:("],
)
def test_a_rule_that_says_nothing_is_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(UsageError, match=r"--fail-on.*'loss=nan', 'loss>10 for 50 steps'"):
        resolve({"fail_on": (text,), "command": ["train.py"]}, {}, {}, config_source="")


def test_a_rule_whose_pattern_is_none_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match=r"a regular expression of Python \(missing \)"):
        resolve({"fail_on": ("output:(",), "command": ["train.py"]}, {}, {}, config_source="")


def test_a_value_is_bad_at_once_or_for_as_long_as_the_rule_says() -> None:
    one = watch("loss=nan")
    assert shown(one, 1, [2.5, 2.25]) == []
    one.metrics(1, {"step": 3, "loss": None}, 3, 3.0)
    (found,) = one.found(NODES)
    assert (found.status, found.where.node, found.where.rank) == ("fail", "h2", 1)
    assert found.message == "loss of rank 1 is not a number at step 3 (on h2)"
    assert found.evidence == ("--fail-on 'loss=nan' holds", "the last good loss of rank 1 is 2.25 at step 1")
    assert shown(one, 0, [None]) == [], "once a rule and attempt"
    one.begin_attempt()
    assert shown(one, 0, ["NaN"]) == ["loss of rank 0 is not a number at step 0 (on h1)"]
    assert shown(watch("loss>10 for 3 steps"), 0, [11, 12, 3, 11, 11]) == []
    assert shown(watch("loss>10 for 3 steps"), 0, [11, 3, 11, 11, 14]) == ["loss of rank 0 is 14 at step 4 (on h1)"]
    assert len(shown(watch("loss>10 for 5s"), 0, [11] * 6)) == 1
    assert shown(watch("loss>10 for 6s"), 0, [11] * 6) == []
    assert shown(watch("loss>10"), 0, [True, "high", {}, None]) == [], "what is no number is not looked at"


def steps(one: RuleWatch, times: dict[float, int]) -> list[Finding]:
    found: list[Finding] = []
    for now, step in times.items():
        one.look({0: RankStatus(0, step=step)}, now)
        found += one.found(NODES)
    return found


def test_a_rate_falls_below_the_ranks_own_median() -> None:
    usual = {float(now): now for now in range(60)}
    slower = {60.0 + now: 60 + now // 4 for now in range(200)}
    (found,) = steps(watch("steps/s<0.5xmedian for 30s"), {**usual, **slower})
    assert found.message.startswith("rank 0 makes 0.") and "usually 1" in found.message
    stopped = {60.0 + now: 59 for now in range(100)}
    assert len(steps(watch("steps/s<0.5xmedian for 30s"), {**usual, **stopped})) == 1
    assert steps(watch("steps/s<0.5xmedian for 30s"), usual) == []
    assert steps(watch("steps/s<0.5xmedian"), {0.0: 1, 50.0: 2, 60.0: 3}) == [], "the first steps are none to go by"


def test_no_step_comes_for_too_long_after_the_first() -> None:
    one = watch("no-step for 10s")
    for now in range(100):
        one.look({0: RankStatus(0)}, float(now))
    assert one.found(NODES) == (), "before the first step nothing is late"
    (found,) = steps(one, {100.0: 7, 109.0: 7, 110.5: 7, 115.0: 7})
    assert found.message == "no rank has shown a step for 10s, and rank 0 is at step 7 (on h1)"


def test_a_metric_that_no_rank_writes_is_warned_of_once() -> None:
    times = {float(now): now for now in range(300)}
    (found,) = steps(watch("loss=nan"), times)
    assert (found.status, found.where.rank) == ("warn", None)
    assert found.message == "no rank has written a metric loss in 100 steps, so --fail-on 'loss=nan' can't hold"
    late = watch("loss=nan")
    assert shown(late, 1, [2.5]) == [] and steps(late, times) == [], "another rank writes it"


def test_output_that_matches() -> None:
    pytest.importorskip("regex")
    one = watch("output:CUDA .*error")
    one.look({1: RankStatus(1, step=4)}, 1.0)
    one.output(1, b"fine\nCUDA fatal er")
    assert one.found(NODES) == ()
    one.output(1, b"ror\n")
    (found,) = one.found(NODES)
    assert found.message == "rank 1 printed what matches 'CUDA .*error' at step 4 (on h2)"


def test_a_warning_where_the_user_wants_no_more() -> None:
    one = RuleWatch(("loss=nan",), stops=RunSpec.of(on_rule="warn").recovery.on_rule == "stop", on_off=lambda why: None)
    one.metrics(0, {"loss": None}, None, 0.0)
    assert [finding.status for finding in one.found(NODES)] == ["warn"]
