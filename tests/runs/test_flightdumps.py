"""Flight recorders as torch writes them, beside logs: `allranks diagnose DIR`."""

import datetime
import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.cli.main import run_verb
from allranks.diagnose.verdict import judge_logs
from allranks.protocol.jsontext import DecodeError
from allranks.runs import pickled
from allranks.runs.logdiagnosis import find_logs, read_dumps, read_logs
from allranks.runs.pickled import read_pickle

FRAMES = [{"name": "c10d::work", "filename": "/pytorch/c10d.cpp", "line": 5},
          {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/distributed_c10d.py", "line": 2810},
          {"name": "step", "filename": "/work/train.py", "line": 88}]  # fmt: skip


def entry(number: int, group: str = "7", state: str = "scheduled", what: str = "nccl:all_reduce") -> dict[str, Any]:
    return {"record_id": number, "pg_id": 3, "process_group": (group, "dp"), "collective_seq_id": number,
            "p2p_seq_id": 0, "op_id": number, "profiling_name": what, "time_created_ns": 1758610505947721376,
            "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]],
            "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None, "retired": False,
            "timeout_ms": 600000, "is_p2p": False, "frames": FRAMES}  # fmt: skip


def dump(*entries: dict[str, Any], ranks: str = "[0, 1, 2, 3]") -> dict[str, Any]:
    config = {"7": {"name": "7", "desc": "dp", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "nccl_version": "2.27", "entries": list(entries)}


WAITS, BEHIND = dump(entry(16, state="completed"), entry(17)), dump(entry(16, state="completed"))


def write(directory: Path, documents: Mapping[str, Any], protocol: int = 2) -> Path:
    for name, document in documents.items():
        data = json.dumps(document).encode() if name.endswith(".json") else pickle.dumps(document, protocol)
        (directory / name).write_bytes(data)
    return directory


def diagnosed(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run_verb("diagnose", [str(directory), "--json"]) == 0
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)
    return verdict


@pytest.mark.parametrize("name", ["_dump_{}", "nccl_trace_rank_{}", "comm_lib_trace_rank_{}", "trace_rank_{}.json"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_dumps_of_a_directory_name_the_culprit(
    name: str, protocol: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = {name.format(rank): BEHIND if rank == 2 else WAITS for rank in range(4)}
    verdict = diagnosed(write(tmp_path, documents, protocol), capsys)
    assert (verdict["cause"], verdict["culprits"], verdict["victims"]) == ("straggler", [2], [0, 1, 3])
    assert "rank 2 has not called it" in verdict["message"]
    assert verdict["evidence"][0] == "ranks 0, 1 and 3 stand at train.py:88 in step"


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        (entry(17, what="nccl:_all_gather_base"), "collective-mismatch"),
        ({**entry(17), "input_sizes": [[1000, 1024]]}, "collective-shape-mismatch"),
        ({**entry(17), "input_dtypes": ["BFloat16"]}, "collective-shape-mismatch"),
    ],
)
def test_kinds_of_mismatch(
    odd: dict[str, Any], cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {**{f"_dump_{rank}": WAITS for rank in range(3)}, "_dump_3": dump(odd)})
    verdict = diagnosed(tmp_path, capsys)
    assert (verdict["cause"], verdict["culprits"]) == (cause, [3])


def test_what_a_log_explains_comes_before_who_was_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {f"_dump_{rank}": BEHIND if rank == 2 else WAITS for rank in range(4)})
    (tmp_path / "rank2.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    verdict = diagnosed(tmp_path, capsys)
    assert verdict["cause"] == "cuda-out-of-memory"
    assert verdict["runners_up"][0]["id"] == "straggler"


def test_a_rank_without_a_dump_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path, {f"_dump_{rank}": WAITS for rank in (0, 1, 3)})
    assert judge_logs(read_logs(find_logs([str(tmp_path)]))).culprits == (2,)
    (tmp_path / "_dump_2").write_bytes(b"\x80\x02}q\x00(")
    assert judge_logs(read_logs(find_logs([str(tmp_path)]))).culprits == (), "of a damaged one nothing follows"


def test_a_damaged_dump_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {f"_dump_{rank}": WAITS for rank in (0, 1, 3)})
    (tmp_path / "_dump_2").write_bytes(pickle.dumps(datetime.date.today(), 2))
    assert run_verb("diagnose", [str(tmp_path)]) == 0
    assert f"note: {tmp_path}/_dump_2: expected a pickle of plain values" in capsys.readouterr().err


def test_a_log_that_announces_a_dump_says_where_it_is(tmp_path: Path) -> None:
    lines = [
        "[rank0]:[E1102 12:00:01.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600021 ms",
        "[rank0]:[I1102 12:00:02.1 FlightRecorder.cpp:60] Finished writing Flight Recorder debug info to "
        "/tmp/nccl_trace_rank_0",
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    remedy = judge_logs(read_logs([tmp_path / "train.log"])).finding.remedy
    assert "`/tmp/nccl_trace_rank_0`" in remedy and "allranks diagnose DIR" in remedy


def test_json_lines_that_are_no_dump_stay_a_log(tmp_path: Path) -> None:
    text = '{"msg": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}\n'
    (tmp_path / "trace_rank_3.json").write_text(text * 2)
    assert read_dumps(find_logs([str(tmp_path)])) == ([], {})


PROGRAM = """
import os, pickle, sys, time, torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=3)
odd = dist.new_group([0, 2])
ones = torch.ones(4)
dist.all_reduce(ones)
dist.broadcast(ones, 1)
dist.reduce(ones, 2)
dist.all_gather([torch.ones(4) for _ in range(3)], ones)
dist.all_gather_into_tensor(torch.ones(12), ones)
dist.reduce_scatter_tensor(torch.ones(4), torch.ones(12))
dist.gather(ones, [torch.ones(4) for _ in range(3)] if rank == 1 else None, 1)
dist.scatter(torch.ones(4), [torch.ones(4) for _ in range(3)] if rank == 1 else None, 1)
dist.all_to_all_single(torch.ones(6), torch.ones(6))
dist.all_gather_object([None] * 3, "x" * rank)
dist.broadcast_object_list([rank], 0)
dist.all_reduce(torch.ones(4, dtype=torch.complex64))
dist.barrier()
if rank == 0:
    dist.all_reduce(torch.ones(4), group=odd, async_op=True)

def going_on():
    entries = pickle.loads(c10d._dump_fr_trace(includeStackTraces=False))["entries"]
    return sum(not entry["retired"] for entry in entries)

while going_on() > (rank == 0):  # Gloo's threads note the end of a collective after it has returned
    time.sleep(0.05)
store = dist.distributed_c10d._get_default_store()
store.set(f"at-{rank}", "1")
store.wait([f"at-{other}" for other in range(3)])
open(f"{sys.argv[2]}/_dump_{rank}", "wb").write(c10d._dump_fr_trace(includeStackTraces=False))
store.set(f"done-{rank}", "1")
if rank == 0:
    store.wait([f"done-{other}" for other in range(3)])
os._exit(0)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_dumps_of_a_real_torch(tmp_path: Path) -> None:
    """Gloo's recorder of torch 2.13 does not say which ranks a group has."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "TORCH_FR_BUFFER_SIZE": "2000"}  # fmt: skip
    command = [sys.executable, "-c", PROGRAM]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment) for rank in range(3)]
    try:
        assert [rank.wait(BOUND) for rank in ranks] == [0, 0, 0]
    finally:
        for rank_process in ranks:
            rank_process.kill()
    verdict = judge_logs(read_logs(find_logs([str(tmp_path)])))
    assert "rank 0 is in all_reduce #1" in verdict.finding.message


# -- pickles -------------------------------------------------------------------------------------------


class Command:
    """What a pickle can do to who reads it."""

    def __reduce__(self) -> Any:
        return os.system, ("echo pickled",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_pickle_makes_anything_but_plain_values(protocol: int) -> None:
    for value in (Command(), datetime.date.today(), {1, 2}, Path("/")):
        with pytest.raises(DecodeError):
            read_pickle(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read(protocol: int) -> None:
    value = {"a": [1, -2, 300, 70000, 2**40, 1.5, None, True, False, "ü"], "b": {"c": [[]]}, 5: ["x" * 300]}
    read = read_pickle(pickle.dumps({**value, "t": (1, (2, 3), (), (1, 2, 3, 4))}, protocol))
    assert read == {**{str(key): item for key, item in value.items()}, "t": [1, [2, 3], [], [1, 2, 3, 4]]}


def test_every_beginning_of_a_pickle_is_refused_or_read() -> None:
    whole = pickle.dumps(WAITS, 2)
    for end in range(len(whole)):
        with pytest.raises(DecodeError):
            read_pickle(whole[:end])


def test_a_small_pickle_builds_little() -> None:
    """One of 27 KB had 20 million lists copied, in 3.7 GB."""
    lists = b"\x80\x02](" + b"]" * 12_000 + b"eq\x00" + b"]("  # the list of many, then one of it again and again
    data = lists + b"h\x00" * 7_000 + b"e."
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="too large"):
            read_pickle(data)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_frames_that_all_entries_share_are_read() -> None:
    """As torch writes them: each frame once, and then from the memo."""
    frames = [{"name": f"f{n}", "filename": "train.py", "line": n} for n in range(30)]
    value = {"entries": [{"seq": n, "frames": frames[:]} for n in range(500)]}
    assert read_pickle(pickle.dumps(value, 2)) == value


def doubling(times: int) -> bytes:
    """A list that holds the memo's list twice, again and again: 2 ** times items of some bytes each."""
    steps = b"".join(b"]q" + bytes([at + 1]) + b"(h" + bytes([at]) + b"h" + bytes([at]) + b"e" for at in range(times))
    return b"\x80\x02]q\x00" + steps + b"."


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(doubling(100), id="doubling"),
        pytest.param(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", id="deep"),
        pytest.param(b"\x80\x02" + b")" + b"\x85" * 100_000 + b".", id="deep tuples"),
        pytest.param(b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"abc.", id="a text that is not there"),
        pytest.param(b"\x80\x02\x8b" + struct.pack("<I", 1 << 20) + b"\x7f" * (1 << 20) + b".", id="a huge number"),
        pytest.param(b"\x80\x02(.", id="a mark"),
        pytest.param(b"\x80\x02(" + b"K\x01" * 3 + b"d.", id="an odd mapping"),
        pytest.param(b"\x80\x02}]K\x01s.", id="a list as a name"),
    ],
)
def test_a_hostile_pickle_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST", 200_000)
    with pytest.raises(DecodeError):
        read_pickle(data)
