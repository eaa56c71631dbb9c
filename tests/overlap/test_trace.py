"""Synthetic traces with known answers."""

from dataclasses import replace
from typing import Any

import pytest
from tests.overlap.traces import event, gloo, kernel, measured, micros, nccl, operator, step, trace

from allranks.overlap.kernels import elements, gloo_kind, kernel_kind, plain
from allranks.overlap.measure import Longest, measure
from allranks.overlap.statement import document, verdict
from allranks.overlap.trace import OPTIMIZER_STEPS, rank_of
from allranks.protocol.codec import encode


def split(**given: float) -> dict[str, float]:
    return {"seconds": 0, "computing": 0, "communicating": 0, "both": 0, "copying": 0, "idle": 0, **given}


# -- GPU


def test_fully_overlapped() -> None:
    found = measured([step(1, 0, 1000), kernel(0, 1000), nccl(200, 300)])
    assert micros(found) == split(seconds=1000, computing=1000, communicating=300, both=300)
    assert found.mean.hidden == pytest.approx(1) and found.collectives[0].hidden == pytest.approx(1)
    assert verdict(found).startswith("Communication is hidden: of 300 µs in a step of 1 ms, computation covers 100 %")


def test_not_overlapped_at_all() -> None:
    found = measured([step(1, 0, 1000), kernel(0, 600), nccl(600, 400, elements=1 << 20)])
    assert micros(found) == split(seconds=1000, computing=600, communicating=400)
    said = verdict(found)
    assert said.startswith("Communication is hardly hidden") and "400 µs (40 % of the time) is exposed" in said
    assert "100 % of it all_reduce of 2 MB in default_pg" in said and "waiting" not in said and "idle" not in said


def test_partly_overlapped_with_idle_time() -> None:
    found = measured([step(1, 0, 1000), kernel(100, 300), nccl(300, 400)])
    assert micros(found) == split(seconds=1000, computing=300, communicating=400, both=100, idle=400)
    assert found.collectives[0].exposed == pytest.approx(300e-6)
    said = verdict(found)
    assert said.startswith("Communication is partly hidden: of 400 µs in a step of 1 ms, computation covers 25 %")
    assert said.endswith("For 40 % of the time the GPU is idle: look first at the input, and at what the CPU does.")


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        (  # unions, not sums
            [kernel(0, 400), kernel(200, 400, stream=8), nccl(500, 300), nccl(600, 100)],
            {"computing": 600, "communicating": 300, "both": 100, "idle": 200},
        ),
        (  # idle from 300 to 400, and from 600 to 700
            [kernel(0, 300), nccl(400, 200), event("gpu_memcpy", "Memcpy HtoD", 200, 500)],
            {"computing": 300, "communicating": 200, "copying": 200, "idle": 300},
        ),
        (  # what holds operators is no computation
            [event("user_annotation", "FSDP::all_gather (0)", 0, 90), event("python_function", "f", 0, 100),
             event("user_annotation", "Optimizer.step#AdamW.step", 0, 100),
             operator("DistributedDataParallel.forward", 0, 9), operator("graph_0_cpp_fused_add_0", 10, 20),
             operator("fsdp::chunk_cat", 40, 10)],
            {"computing": 30, "idle": 970},
        ),
    ],
    ids=["two streams count once", "copies count where nothing else runs", "Python"],
)  # fmt: skip
def test_parts_of_a_step(events: list[dict[str, Any]], parts: dict[str, float]) -> None:
    assert micros(measured([step(1, 0, 1000), *events])) == split(seconds=1000, **parts)


def test_steps_are_the_gpus_own() -> None:
    """The CPU is done with step 1 before the GPU begins it; between its steps, the GPU's time is the earlier one's."""
    events = [
        step(1, 0, 100), step(2, 100, 100), step(1, 500, 400, on_gpu=True), step(1, 550, 380, on_gpu=True),
        step(2, 1000, 300, on_gpu=True), kernel(500, 400), nccl(850, 80), kernel(1000, 200), nccl(1200, 100),
    ]  # fmt: skip
    found = measured(events)
    assert micros(found, at=0) == split(seconds=500, computing=400, communicating=80, both=50, idle=70)
    assert micros(found, at=1) == split(seconds=300, computing=200, communicating=100)
    assert not found.ranks[0].notes


def test_steps_of_the_cpu_take_in_what_the_gpu_does_after_them() -> None:
    found = measured([step(1, 0, 100), step(2, 100, 100), kernel(50, 40), kernel(150, 200), nccl(350, 100)])
    assert micros(found, at=0) == split(seconds=100, computing=40, idle=60)
    assert micros(found, at=1) == split(seconds=350, computing=200, communicating=100, idle=50)
    assert "the CPU's" in found.ranks[0].notes[0]


def test_without_steps_the_trace_is_one() -> None:
    found = measured([kernel(100, 300), nccl(300, 200)])
    assert micros(found) == split(seconds=400, computing=300, communicating=200, both=100)
    assert found.ranks[0].steps[0].step is None and "ProfilerStep" in found.ranks[0].notes[0]
    assert "in a trace of 400 µs" in verdict(found)


def optimized(first: int, last: int, late: float = 0.0) -> list[dict[str, Any]]:
    """Steps of 100 µs from the `first` on: the collective of each, of which rank 1 is the last, and the optimizer's."""
    events = []
    for number in range(first, last):
        begin = 100.0 * number
        events.append(gloo("all_reduce", begin + 20 + late, 40 - late, [256]))
        events.append(event("user_annotation", "Optimizer.step#SGD.step", begin + 80, 10))
    return events


def test_without_a_call_of_step_they_lie_between_those_of_the_optimizer() -> None:
    found = measured(optimized(3, 7))
    assert [(one.step, one.seconds) for one in found.ranks[0].steps] == [(n, pytest.approx(100e-6)) for n in (1, 2, 3)]
    assert found.ranks[0].notes == [OPTIMIZER_STEPS]
    of_critic = [event("user_annotation", "Optimizer.step#Adam.step", 10.0 * at, 1) for at in range(60)]
    assert len(measured([*optimized(0, 6), *of_critic]).ranks[0].steps) == 5, "the optimizer that steps least often"
    on_gpu = [kernel(100.0 * at, 5) for at in range(6)]
    on_gpu += [event("gpu_user_annotation", "Optimizer.step#SGD.step", 100.0 * at + 90, 10, 7) for at in range(3)]
    assert len(measured([*optimized(0, 6), *on_gpu]).ranks[0].steps) == 2, "the GPU's own"


def test_steps_of_traces_that_began_apart_are_matched_by_their_ends() -> None:
    """Rank 1 is the last in each collective. Its trace begins two steps later, and its times have another base."""
    early = trace(optimized(3, 9), 0, "0.json")
    late = replace(trace(optimized(5, 11, late=30.0), 1, "1.json"), base=0.0)
    found = measure([early, late])
    assert [one.step for one in found.ranks[1].steps] == [3, 4, 5, 6, 7]
    assert found.waited_for == {"rank 1": pytest.approx(3 * 30e-6)}, "in the three steps that both have"
    moved = replace(late, base=50.0)  # the clocks differ by half a step
    assert measure([early, moved]).waited_for == {}


def test_traces_that_were_cut_out_of_a_run_are_compared_by_their_steps_alone() -> None:
    ones = [[gloo("all_reduce", 100.0 * at, 40 - late, [256]) for at in range(4)] for late in (0, 30)]
    traces = [trace(events, rank, f"{rank}.json") for rank, events in enumerate(ones)]
    assert measure(traces).waited_for == {"rank 1": pytest.approx(4 * 30e-6)}
    assert measure(traces, are_cut=True).waited_for == {}


def test_what_lies_outside_of_steps_is_left_out() -> None:
    found = measured([step(5, 1000, 100, True), kernel(0, 500), nccl(500, 100), kernel(1000, 100)])
    assert micros(found) == split(seconds=100, computing=100)
    assert found.collectives == []


def test_no_communication_is_said() -> None:
    assert verdict(measured([step(1, 0, 10), kernel(0, 10)])).startswith("No communication was traced")


# -- CPU


def test_nested_operators_and_those_of_collectives() -> None:
    """Outer and inner operators are one time; c10d's own work, gloo's copies, backward's shells are no computation."""
    events = [
        step(3, 0, 1000),
        operator("aten::linear", 100, 200), operator("aten::addmm", 120, 170), operator("aten::copy_", 130, 10),
        operator("autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward", 300, 500),
        operator("AddmmBackward0", 300, 500),
        operator("c10d::_reduce_scatter_base_", 400, 100), operator("aten::clone", 410, 80),
        gloo("all_reduce", 450, 300, [410240]), operator("aten::div_", 700, 50, thread=50),
        operator("aten::mm", 720, 60),
    ]  # fmt: skip
    found = measured(events)
    assert micros(found) == split(seconds=1000, computing=260, communicating=300, both=30, idle=470)
    assert found.collectives[0].kind.size == 410240 * 4 and found.collectives[0].kind.dtype == "float"
    assert found.ranks[0].device == "cpu"


def test_gloo_on_two_threads_beside_computation() -> None:
    events = [
        step(1, 0, 1000), operator("aten::mm", 0, 500),
        gloo("all_gather", 100, 300, [8], 50, "c10::BFloat16"), gloo("all_gather", 300, 400, [8], 51, "c10::BFloat16"),
    ]  # fmt: skip
    found = measured(events)
    assert micros(found) == split(seconds=1000, computing=500, communicating=600, both=400, idle=300)
    assert (found.collectives[0].count, found.collectives[0].kind.size) == (2, 16)
    assert found.collectives[0].exposed == pytest.approx(200e-6)


# -- collectives


def test_the_costliest_collective_comes_first() -> None:
    events = [
        step(1, 0, 1000), kernel(0, 500), nccl(0, 450, "_allgather_base", 4096), nccl(500, 200, "allreduce", 64),
        nccl(700, 100, "allreduce", 64), nccl(450, 60, "_reduce_scatter_base", 128),
    ]  # fmt: skip
    summaries = measured(events).collectives
    assert [(g.kind.name, g.kind.size, g.count) for g in summaries] == [
        ("all_reduce", 128, 2), ("reduce_scatter", 256, 1), ("all_gather", 8192, 1),
    ]  # fmt: skip
    assert summaries[0].exposed == pytest.approx(300e-6) and summaries[2].exposed == 0
    assert summaries[0].longest == Longest(pytest.approx(200e-6), "rank 0", 1)


def test_waiting_for_the_last_rank_is_told_from_transfer() -> None:
    """Rank 1 computes 300 µs longer: rank 0 waits, in an all_reduce that takes 100 µs in truth."""
    found = measured(
        [step(1, 0, 1000), kernel(0, 500), nccl(500, 400)], [step(1, 0, 1000), kernel(0, 800), nccl(800, 100)]
    )
    assert found.collectives[0].waiting == pytest.approx(300e-6)
    assert found.waited_for["rank 1"] == pytest.approx(300e-6)
    assert "60 % of it is waiting for rank 1, not transfer" in verdict(found)


def test_unlike_numbers_of_collectives_are_not_compared() -> None:
    one = [step(1, 0, 1000), nccl(500, 400)]
    assert measured(one, [*one, nccl(950, 10)]).collectives[0].waiting == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
     ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*)", "reduce_scatter"),
     ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send/recv"),
     ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
     ("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)", "all_reduce"),
     ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "generic")],
)  # fmt: skip
def test_collectives_by_the_name_of_their_kernel(name: str, said: str) -> None:
    kind = kernel_kind(name, {})
    assert kind is not None and (kind.name, kind.size) == (said, None)


@pytest.mark.parametrize(
    ("name", "said"),
    [("_allgather_base", "all_gather"), ("allreduce", "all_reduce"), ("_reduce_scatter_base", "reduce_scatter"),
     ("all_to_allv", "all_to_all"), ("allreduce_coalesced", "all_reduce"), ("all_gather_into_tensor", "all_gather"),
     ("broadcast", "broadcast"), ("barrier", "barrier"), ("reduce_scatter_tensor_coalesced", "reduce_scatter")],
)  # fmt: skip
def test_one_name_a_collective(name: str, said: str) -> None:
    assert plain(name) == said


def test_shapes() -> None:
    assert elements([2, 3]) == 6 and elements([[2, 3], [4]]) == 10 and elements([]) == 1 and elements("x") == 0
    assert gloo_kind("gloo:all_reduce", {"Input Dims": [[[2], [3]]], "Input type": ["long int"]}).size == 40
    assert gloo_kind("gloo:barrier", {}).size is None


# -- ranks, files, words


@pytest.mark.parametrize(
    ("file", "rank"),
    [("out/rank_03_trace.json.gz", 3), ("rank12.json", 12), ("run/Rank-7.pt.trace.json", 7), ("trace_5.json", 5),
     ("host_991234.1700000000000.pt.trace.json", None), ("trace.json", None), ("rank_2/trace.json", None)],
)  # fmt: skip
def test_ranks_from_file_names(file: str, rank: int | None) -> None:
    assert rank_of({}, file) == rank


def test_the_trace_itself_says_its_rank() -> None:
    assert trace([kernel(0, 1)], rank=9, file="rank_03.json").rank == 9
    assert rank_of({"distributedInfo": {"rank": "x"}}, "rank_03.json") == 3


def test_odd_events_do_no_harm() -> None:
    events = [{"ph": "X"}, {"name": 3, "ts": 1, "dur": 1}, {"name": "k", "ts": "1", "dur": 1, "cat": "kernel"},
              {"name": "k", "ts": 1, "dur": -5, "cat": "kernel"}, {"name": "gloo:x", "ts": 1, "dur": 1, "cat": "cpu_op",
              "args": None}, event("kernel", "nccl", 0, 1, **{"In msg nelems": "x", "dtype": 4})]  # fmt: skip
    made = encode(document(measured(events), 10))
    assert [rank["name"] for rank in made["ranks"]] == ["rank 0"]
