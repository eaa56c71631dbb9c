"""Steps an epoch, against the figures people get and against DistributedSampler and DataLoader themselves."""

import pytest

from allranks.data.step_plan import Training, explain_observed, plan, plan_lines
from allranks.errors import UsageError


def asked(**more: object) -> Training:
    given = {"samples": 32217, "nodes": (1, 2, 8), "epochs": 5, "step_time": 2.0, **more}
    return Training(**given)  # type: ignore[arg-type]


def test_rounding_down_and_up() -> None:
    rows = plan(asked())
    assert [row.down for row in rows] == [4027, 2013, 503]
    assert [row.up for row in rows] == [4028, 2014, 504]
    assert [row.steps for row in rows] == [4028, 2014, 504]
    assert [row.exact for row in rows] == [4027.125, 2013.5625, 503.390625]
    assert [round((row.total_s or 0) / 3600, 1) for row in rows] == [11.2, 5.6, 1.4]
    assert [round(row.speedup, 2) for row in rows] == [1.0, 2.0, 7.99]


def test_who_gets_the_rest() -> None:
    assert [row.rest for row in plan(asked())] == [
        "ranks 1-7 read one sample again (7 padded)",
        "ranks 9-15 read one sample again (7 padded)",
        "ranks 25-63 read one sample again (39 padded)",
    ]
    assert [row.rest for row in plan(asked(rounding="drop"))] == ["1 left out", "9 left out", "25 left out"]
    assert plan(asked(samples=64, nodes=(1,)))[0].rest == "none"
    assert plan(asked(samples=15, nodes=(1,), batch=2))[0].rest == "rank 7 reads one sample again (1 padded)"


@pytest.mark.torch
@pytest.mark.parametrize("samples", [1, 7, 64, 97, 1000])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_as_torch_counts(samples: int, batch: int) -> None:
    from torch.utils.data import DataLoader, DistributedSampler

    for rounding, drop in (("pad", False), ("drop", True)):
        row = plan(asked(samples=samples, batch=batch, nodes=(1,), rounding=rounding))[0]
        data = range(samples)
        found = {
            len(DataLoader(data, batch, drop_last=drop, sampler=DistributedSampler(data, 8, rank, drop_last=drop)))
            for rank in range(8)
        }
        if samples >= 8:  # with fewer samples than ranks the sampler pads even where it should drop
            assert found == {row.steps}


def test_prediction() -> None:
    one, two, eight = plan(asked(model_bytes=20 << 30, bandwidth=float(10 << 30), grad_accum=4))
    assert one.efficiency == (1.0, 1.0) and one.exchange_s == 0
    assert two.exchange_s == pytest.approx(2 * 15 / 16 * 2)
    assert two.efficiency == (pytest.approx(8 / (8 + 3.75)), 1.0)
    assert two.updates == 504 and two.epoch_s == pytest.approx(2014 * 2 + 504 * 3.75)
    assert eight.speedup < 7.99
    assert two.global_batch == 64
    lines = plan_lines(asked(model_bytes=1, bandwidth=1.0), [one, two, eight])
    assert "Efficiency = T/(T+t)" in lines[-1]


@pytest.mark.parametrize(
    ("steps", "fits", "words"),
    [
        (32217, False, "not sharded: every rank reads everything"), (4028, False, "sharded within a node only"),
        (2013, True, "2 nodes with 16 ranks, rounded down"), (16108, False, "split by node only"),
        (126, False, "sharded twice"), (999, False, "fit none of these"),
    ],
)  # fmt: skip
def test_observed_steps_on_two_nodes(steps: int, fits: bool, words: str) -> None:
    known = asked(nodes=(2,))
    found, said = explain_observed(known, steps, plan(known))
    assert found is fits and words in said


def test_observed_steps_of_one_of_several_numbers_of_nodes() -> None:
    found, said = explain_observed(asked(), 4028, plan(asked()))
    assert found and "rounded up" in said


@pytest.mark.parametrize(
    "more",
    [{"samples": 0}, {"batch": 0}, {"nodes": ()}, {"nodes": (0,)}, {"epochs": 0}, {"model_bytes": 1},
     {"bandwidth": 1.0}, {"model_bytes": 1, "bandwidth": 1.0, "step_time": None}, {"grad_accum": -1}],
)  # fmt: skip
def test_figures_that_cannot_be(more: dict) -> None:
    with pytest.raises(UsageError):
        plan(asked(**more))
