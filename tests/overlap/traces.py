"""Traces as torch.profiler writes them, with answers that are known; times in microseconds."""

import json
from typing import Any

from allranks.overlap.measure import Overlap, measure
from allranks.overlap.trace import Trace, read_trace

Event = dict[str, Any]
COMPUTE_STREAM, COMM_STREAM = 7, 20


def event(category: str, name: str, start: float, length: float, thread: object = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 0, "tid": thread, "args": args}


def kernel(start: float, length: float, stream: int = COMPUTE_STREAM, name: str = "ampere_bf16_gemm") -> Event:
    return event("kernel", name, start, length, stream, stream=stream, device=0, correlation=1)


def nccl(start: float, length: float, name: str = "all_reduce", elements: int = 1024, **args: Any) -> Event:
    """As Kineto writes an NCCL kernel since torch 2.2: the collective stands in its arguments."""
    more = {"Collective name": name, "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
            "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]", "stream": COMM_STREAM, **args}  # fmt: skip
    return event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, length,
                 COMM_STREAM, **more)  # fmt: skip


def step(number: int, start: float, length: float, on_gpu: bool = False) -> Event:
    return event("gpu_user_annotation" if on_gpu else "user_annotation", f"ProfilerStep#{number}", start, length)


def operator(name: str, start: float, length: float, thread: int = 1) -> Event:
    return event("cpu_op", name, start, length, thread)


def gloo(name: str, start: float, length: float, shape: Any = None, thread: int = 50, dtype: str = "float") -> Event:
    args = {"Input Dims": [shape], "Input type": [dtype]} if shape is not None else {}
    return event("user_annotation", f"gloo:{name}", start, length, thread, **args)


def as_text(events: list[Event], rank: int | None = 0) -> str:
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return json.dumps({**head, "traceEvents": events, "traceName": "t.json"}, indent=2)


def trace(events: list[Event], rank: int | None = 0, file: str = "t.json") -> Trace:
    return read_trace(file, [as_text(events, rank)])


def measured(*traces: list[Event]) -> Overlap:
    """Each list of events is a rank's."""
    return measure([trace(events, rank, f"{rank}.json") for rank, events in enumerate(traces)])


def micros(found: Overlap, rank: int = 0, at: int = 0) -> dict[str, float]:
    """One step's split, in whole microseconds."""
    split = found.ranks[rank].steps[at]
    names = ("seconds", "computing", "communicating", "both", "copying", "idle")
    return {name: round(getattr(split, name) * 1e6) for name in names}
