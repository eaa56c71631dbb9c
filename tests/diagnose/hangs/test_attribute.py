"""Who keeps the others waiting: from stacks as faulthandler and py-spy print them."""

from typing import Any

import pytest

from allranks.agent.runner import NAME
from allranks.diagnose.hangs.attribute import MISMATCH, STRAGGLER, UNEVEN, attribute
from allranks.diagnose.hangs.doing import ActivityKind, Doing, doing
from allranks.diagnose.hangs.stacks import Frame, main_stack, native_call
from allranks.findings import Hang
from allranks.protocol.samples import StackSample

SITE = "/venv/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch/distributed/distributed_c10d.py"
WORKER = """Thread 0x00007f7b164f36c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner

"""
CURRENT = "Current thread 0x00007f7b17258b80 (most recent call first):"
NAMES = {0: "h1", 1: "h1", 2: "h2", 3: "h2"}


def dump(*frames: tuple[str, int, str]) -> str:
    lines = [f'  File "{file}", line {line} in {function}\n' for file, line, function in frames]
    return f"{WORKER}{CURRENT}\n{''.join(lines)}"


def in_collective(name: str = "all_reduce", line: int = 60) -> str:
    return dump((TORCH, 2810, name), (f"{SITE}/torch/distributed/c10d_logger.py", 81, "wrapper"),
                ("/work/train.py", line, "step"), ("/work/train.py", 99, "<module>"))  # fmt: skip


def at(line: int, function: str = "load", *above: tuple[str, int, str]) -> str:
    return dump(*above, ("/work/data.py", line, function), ("/work/train.py", 50, "step"))


def seen(text: str = "", state: str = "S", cpu: float = 0.0, **more: Any) -> Doing:
    before, after = StackSample(0, text, state=state), StackSample(0, text, state=state, cpu=cpu, **more)
    return doing(before, after, 5.0)


def hang(*of: Doing, ended: tuple[int, ...] = ()) -> Hang:
    found = attribute({rank: item for rank, item in enumerate(of) if rank not in ended}, ended, NAMES)
    assert found is not None
    return found


PY_SPY = """Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    load (/work/data.py:41)
    <module> (/work/train.py:50)
Thread 9 (active): "worker"
    run (threading.py:982)
"""


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        pytest.param(at(41), ["data.py:41 in load", "train.py:50 in step"], id="the current thread"),
        pytest.param(
            at(41).replace("Current thread", "Thread"), ["data.py:41 in load", "train.py:50 in step"], id="the last"
        ),
        pytest.param(at(41) + "\n" + at(42), ["data.py:42 in load", "train.py:50 in step"], id="the last of two dumps"),
        pytest.param(PY_SPY, ["data.py:41 in load", "train.py:50"], id="py-spy"),
        *((text, []) for text in ("", "garbage\n", "Fatal Python error: x", f"{CURRENT}\n")),
    ],
)
def test_the_stack_of_the_main_thread(text: str, stack: list[str]) -> None:
    assert [str(frame) for frame in main_stack(text)] == stack


def test_a_frame_without_a_line() -> None:
    assert main_stack(dump(("/x.py", 0, "f")).replace("line 0", "line ???")) == (Frame("/x.py", 0, "f"),)


def test_a_rank_deep_in_an_import_is_at_the_file_that_imports() -> None:
    importing = [("<frozen importlib._bootstrap>", 1165, "_find_and_load"), (f"{SITE}/torch/fsdp.py", 8, "<module>")]
    assert str(seen(dump(*importing)).at) == "fsdp.py:8"
    assert str(seen(dump(*importing, ("/work/train.py", 3, "<module>"))).at) == "train.py:3"
    assert str(seen(dump(importing[0])).at) == "<frozen importlib._bootstrap>:1165 in _find_and_load"


def test_frames_of_the_runner_are_no_part_of_a_programs_stack() -> None:
    runner = ((NAME, 198, "run"), (NAME, 562, "<module>"))
    assert [str(f) for f in main_stack(dump(("/work/train.py", 19, "<module>"), *runner))] == ["train.py:19"]
    py_spy = f"Thread 41 (active): \"MainThread\"\n    <module> (/work/train.py:19)\n    run ({NAME}:198)\n"
    assert [str(f) for f in main_stack(py_spy)] == ["train.py:19"]
    assert main_stack(dump(*runner))[0].function == "run", "before the program has begun"
    native = f"Thread 41 (active): \"MainThread\"\n    poll (libc.so.6)\n    wait (libuv.so.1)\n    run ({NAME}:198)\n"
    native += "    start (launcher.so)\n"
    assert [f.function for f in main_stack(native)] == ["run"], "in native code before the program has begun"
    assert native_call(native) == "wait (libuv.so.1)"
    assert native_call(native.replace("    wait (libuv.so.1)\n", "")) == "poll (libc.so.6)"


NATIVE = PY_SPY.partition("    load")[0] + """\
    clock_nanosleep (libc.so.6)
    nanosleep (libc.so.6)
    sleep (libc.so.6)
    {frame}
    load (/work/data.py:41)
    <module> (/work/train.py:50)
    0x7f810904524a (libc.so.6)
"""


@pytest.mark.parametrize(
    ("frame", "call"),
    [
        ("snooze (slow.cpython-311-x86_64-linux-gnu.so)", "snooze (slow.cpython-311-x86_64-linux-gnu.so)"),
        ("at::native::copy_(at::Tensor const&, bool) (libtorch_cpu.so)",
         "at::native::copy_(at::Tensor const&, bool) (libtorch_cpu.so)"),
        ("read_rows (/src/reader.pyx:12)", "read_rows (reader.pyx:12)"),
        ("0x7f70c92b5f7a (libffi.so.8.1.2)", "sleep (libc.so.6)"),
        ("PyCFuncPtr_call (_ctypes.c:4201)", "sleep (libc.so.6)"),
    ],
)  # fmt: skip
def test_py_spys_native_frames(frame: str, call: str) -> None:
    text = NATIVE.format(frame=frame)
    assert [str(f) for f in main_stack(text)] == ["data.py:41 in load", "train.py:50"]
    assert native_call(text) == call
    assert native_call(text.replace(': "MainThread"', "")) == call, "a program without `threading`"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"text": NATIVE.format(frame="f (a.so)")}, "not answering, in native code: f (a.so)"),
        ({"text": at(41), "wchan": "poll_schedule_timeout"}, "not answering, in native code: waiting for input"),
        ({"wchan": "hrtimer_nanosleep"}, "not answering, in native code: sleeping"),
        ({}, "not answering, in native code"),
    ],
)
def test_who_does_not_answer_is_in_native_code(more: dict[str, Any], why: str) -> None:
    """It keeps the interpreter's lock: something below Python runs or waits with it."""
    doing = seen(silent=True, **more)
    assert (doing.kind, doing.why) == (ActivityKind.ELSEWHERE, why)
    found = hang(WAITS, doing, WAITS, WAITS)
    assert found.culprits == (1,) and why in found.message and "is (" not in found.message


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (seen(in_collective()), ActivityKind.WAITING),
        (seen(in_collective(), cpu=5.0), ActivityKind.WAITING),  # Gloo and NCCL spin
        (seen(in_collective("init_process_group")), ActivityKind.STARTING),
        (seen(at(3)), ActivityKind.ELSEWHERE),
        (seen(at(3), cpu=4.0), ActivityKind.BUSY),
        (seen(at(3), state="R", cpu=0.1), ActivityKind.ELSEWHERE),
        (seen(at(3), state="R", cpu=0.1, ready=4.0), ActivityKind.BUSY),  # twenty others want the core too
        (seen(in_collective(), state="T"), ActivityKind.STOPPED),
        (seen(at(3), state="D", wchan="rpc_wait_bit_killable"), ActivityKind.BLOCKED),
        (seen("", state="Z"), ActivityKind.GONE),
        (seen("", error="could not look: py-spy is not installed"), ActivityKind.UNKNOWN),
    ],
)
def test_kinds(item: Doing, kind: ActivityKind) -> None:
    assert item.kind is kind


def test_the_public_call_is_named_and_the_programs_own_frame() -> None:
    text = dump((TORCH, 2700, "broadcast"), (TORCH, 3300, "broadcast_object_list"), ("/work/train.py", 7, "main"))
    item = seen(text)
    assert (item.call, str(item.at)) == ("broadcast_object_list", "train.py:7 in main")


def test_waiting_for_gradients() -> None:
    text = dump((f"{SITE}/torch/autograd/graph.py", 829, "_engine_run_backward"),
                (f"{SITE}/torch/autograd/__init__.py", 347, "backward"), ("/work/train.py", 61, "step"))  # fmt: skip
    assert seen(text).call == "backward (gradients)"


@pytest.mark.parametrize(
    ("more", "why"),
    [({"wchan": "hrtimer_nanosleep"}, "sleeping"), ({"wchan": "futex_wait_queue"}, "waiting for a lock"),
     ({"wchan": "pipe_read", "file": "/data/fifo"}, "reading /data/fifo"), ({"wchan": "0"}, "")],
)  # fmt: skip
def test_the_kernels_word(more: dict[str, str], why: str) -> None:
    assert seen(at(3), **more).why == why


WAITS = seen(in_collective())


def test_one_rank_is_elsewhere() -> None:
    found = hang(WAITS, WAITS, seen(at(41), wchan="hrtimer_nanosleep"), WAITS)
    assert (found.cause, found.culprits, found.victims) == (STRAGGLER, (2,), (0, 1, 3))
    assert found.message == (
        "rank 2 on h2 is at data.py:41 in load (sleeping); ranks 0, 1 and 3 wait in all_reduce (train.py:60 in step)"
    )
    assert found.evidence == ("rank 2: data.py:41 in load < train.py:50 in step",)


BARRIER = seen(in_collective("barrier", 70))
ENDED = seen(in_collective())  # its last sample; it is left out


@pytest.mark.parametrize(
    ("ranks", "ended", "cause", "culprits", "says"),
    [
        ([WAITS, seen(at(3)), seen(in_collective(), state="T"), WAITS], (), STRAGGLER, (2,),
         "rank 2 on h2 is stopped at"),  # surer than one that is elsewhere
        ([seen(at(9, "save"), cpu=4.9), WAITS, WAITS, WAITS], (), STRAGGLER, (0,), "busy at data.py:9 in save"),
        ([WAITS, WAITS, WAITS, ENDED], (3,), UNEVEN, (3,),
         "rank 3 on h2 ended with code 0 while ranks 0-2 wait in all_reduce"),
        ([WAITS, WAITS, BARRIER, WAITS], (), MISMATCH, (2,), "rank 2 on h2 in barrier (train.py:70 in step)"),
        ([WAITS, WAITS, BARRIER, BARRIER], (), MISMATCH, (), "ranks wait in different collectives"),
        ([WAITS] * 4, (), "unknown", (), "none is behind"),
        ([WAITS, WAITS, seen("", error="could not look"), WAITS], (), "unknown", (2,), "could not be sampled"),
    ],
)  # fmt: skip
def test_who_keeps_the_others_waiting(
    ranks: list[Doing], ended: tuple[int, ...], cause: str, culprits: tuple[int, ...], says: str
) -> None:
    found = hang(*ranks, ended=ended)
    assert (found.cause, found.culprits) == (cause, culprits) and says in found.message
    assert found.victims == tuple(rank for rank, item in enumerate(ranks) if item in (WAITS, BARRIER)
                                  and rank not in (*culprits, *ended))  # fmt: skip
    assert found.slow == ("busy" in says) and found.remedy


def test_nobody_waits() -> None:
    assert attribute({0: seen(at(1)), 1: seen(at(2))}, (), NAMES) is None


def test_a_rank_that_moves_bytes_is_slow_whatever_it_waits_for_at_the_moment() -> None:
    text = at(9, "save")
    for state in ("S", "D"):
        before, after = StackSample(0, text, state=state, io=5 << 20), StackSample(0, text, state=state, io=9 << 20)
        item = doing(before, after, 5.0)
        assert (item.kind, item.why) == (ActivityKind.BUSY, "it reads or writes")
        assert doing(before, before, 5.0).kind in (ActivityKind.ELSEWHERE, ActivityKind.BLOCKED)
    assert hang(item, WAITS, WAITS, WAITS).slow
