"""What a rank is doing, from its stack and the kernel's word on its process (pure)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from allranks.protocol.codec import decode_parts
from allranks.protocol.jsontext import Json
from allranks.protocol.samples import StackSample
from allranks.text import name_with, with_reason

from .stacks import Frame, Stack, innermost_of_program, main_stack, native_call

BUSY = 0.25  # of a core between two samples, used or waited for: it computes, or would, and does not wait for others
MOVES = 1 << 20  # bytes between two samples: it saves or loads; the stacks that it prints are far less
# Calls of torch.distributed that wait for other ranks (distributed_c10d.py, torch 2.1 to 2.13).
COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_single"),
        *("all_gather_object", "all_gather_coalesced", "reduce_scatter", "reduce_scatter_tensor"),
        *("reduce_scatter_single", "reduce", "broadcast", "broadcast_object_list", "gather", "gather_object"),
        *("scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier"),
        *("send", "recv", "batch_isend_irecv", "send_object_list", "recv_object_list"),
    }
)
STARTING = frozenset({"init_process_group", "new_group", "rendezvous", "_store_based_barrier", "init_device_mesh"})
GRADIENTS = (
    "torch/autograd/",
    "torch/nn/parallel/distributed.py",
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/",
)
BACKWARD = frozenset({"backward", "_engine_run_backward", "wait", "unshard", "finalize_backward"})
WRAPPERS = ("torch/distributed/utils.py", "torch/nn/parallel/distributed.py")
AT_LOCK = "waiting for a lock"
# wchan (fs/proc/base.c) in words; names differ by kernel version, so their beginnings.
WAITS = (
    ("hrtimer_nanosleep", "sleeping"),
    ("do_nanosleep", "sleeping"),
    ("common_nsleep", "sleeping"),
    ("futex", AT_LOCK),
    ("pipe", "waiting at a pipe"),
    ("fifo", "waiting for the other end of a FIFO"),
    ("wait_for_partner", "waiting for the other end of a FIFO"),
    ("do_wait", "waiting for a child process"),
    ("rpc_", "waiting for NFS"),
    ("nfs", "waiting for NFS"),
    ("io_schedule", "waiting for a disk"),
    ("folio_wait", "waiting for a disk"),
    ("poll", "waiting for input"),
    ("ep_poll", "waiting for input"),
    ("unix_", "waiting for another process"),
    ("tcp_recv", "waiting for the network"),
    ("sk_wait", "waiting for the network"),
)


class ActivityKind(enum.Enum):
    """Roughly; `WAITING` is for others, everything else keeps them waiting."""

    WAITING = "waits for the others"
    STARTING = "waits for the others to join"
    ELSEWHERE = "is elsewhere"
    BUSY = "computes"
    STOPPED = "is stopped"
    BLOCKED = "is blocked in the kernel"
    GONE = "has ended"
    UNKNOWN = "could not be sampled"


@dataclass(frozen=True)
class Doing:
    """`call` is the collective's name; `at` is the innermost frame of the program's own; `stack` the main thread's."""

    kind: ActivityKind
    call: str = ""
    at: Frame | None = None
    why: str = ""
    stack: Stack = ()

    def __str__(self) -> str:
        """Write `all_reduce (train.py:41 in step)`."""
        return name_with(self.call, str(self.at or ""))

    def place(self) -> tuple[str, str, int]:
        """Give what has to be the same for two ranks to stand at the same point."""
        if self.at is None:
            return (self.call, "", 0)
        return (self.call, self.at.file, self.at.line)


def read_sample(rank: int, answer: Mapping[str, Json]) -> StackSample:
    """Read what a node reports of a rank; what is absent or of another type is unknown."""
    return decode_parts(StackSample, {**answer, "rank": rank})


def doing(before: StackSample, after: StackSample, seconds: float) -> Doing:
    """Tell what a rank does from two samples, `seconds` apart."""
    stack = main_stack(after.text)
    at = innermost_of_program(stack)
    if after.state in ("T", "t"):
        return Doing(ActivityKind.STOPPED, at=at, why="stopped by a signal (SIGSTOP, a debugger)", stack=stack)
    if after.state in ("Z", "X"):
        return Doing(ActivityKind.GONE, stack=stack)
    call = collective_of(stack)
    if call:
        return Doing(ActivityKind.STARTING if call in STARTING else ActivityKind.WAITING, call, at, stack=stack)
    why = next((words for name, words in WAITS if after.wchan.startswith(name)), "")
    if after.file:
        why = f"reading {after.file}"
    if before.io and after.io - before.io >= MOVES:
        return Doing(ActivityKind.BUSY, at=at, why="it reads or writes", stack=stack)
    if after.state == "D":
        return Doing(ActivityKind.BLOCKED, at=at, why=why or "in an uninterruptible wait of the kernel", stack=stack)
    native = ""
    if after.silent:  # code below Python holds the interpreter's lock
        native = with_reason("not answering, in native code", native_call(after.text) or why)
    if seconds > 0 and (after.cpu - before.cpu + after.ready - before.ready) / seconds >= BUSY:
        return Doing(ActivityKind.BUSY, at=at, why=native or "it uses its CPU", stack=stack)
    if not native and not stack:
        return Doing(ActivityKind.UNKNOWN, why=after.error or why, stack=stack)
    return Doing(ActivityKind.ELSEWHERE, at=at, why=native or why, stack=stack)


def waits_for_own_processes(item: Doing) -> bool:
    """Tell whether a rank waits for processes that it has started, whose stacks nothing takes (torch 2.1 to 2.13)."""
    joins = ("torch/multiprocessing/spawn.py", "multiprocessing/process.py")
    return any(frame.function.endswith("join") and frame.file.endswith(joins) for frame in item.stack)


def collective_of(stack: Stack) -> str:
    """Find the outermost call of torch.distributed, by its public name; a backward pass waits for gradients."""
    calls = COLLECTIVES | STARTING
    named = [f.function for f in stack if "torch/distributed/" in f.file and f.function in calls]
    if named:
        return named[-1]
    if stack and stack[0].file.endswith(WRAPPERS):  # in a call of C++, such as dist._verify_params_across_processes
        return "DistributedDataParallel"
    inner = stack[:6]
    in_gradients = any(part in f.file for f in inner for part in GRADIENTS)
    if in_gradients and any(f.function in BACKWARD for f in inner):
        return "backward (gradients)"
    return ""
