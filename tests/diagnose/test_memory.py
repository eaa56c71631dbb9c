"""Out-of-memory messages in the words of their versions, and which lever comes first."""

import pytest
from tests.diagnose.incidents import rank_end

from allranks.diagnose.incident import Incident
from allranks.diagnose.out_of_memory import (
    GpuMemory,
    MemorySetting,
    gpu_levers,
    host_levers,
    read_gpu,
    read_setting,
    size,
)
from allranks.diagnose.verdict import judge

GIB, MIB = 1 << 30, 1 << 20
# As people have posted them, without the advice at their end. CUDACachingAllocator.cpp of the version words them so.
V1_7 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 4; 31.75 GiB total capacity; 30.29 GiB already allocated; "
    "3.75 MiB free; 30.40 GiB reserved in total by PyTorch)"
)
V2_0 = (
    "CUDA out of memory. Tried to allocate 376.00 MiB (GPU 0; 3.95 GiB total capacity; 1.72 GiB already allocated; "
    "354.88 MiB free; 2.46 GiB reserved in total by PyTorch)"
)
V2_1 = (
    "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacty of 47.53 GiB of which 16.88 MiB is "
    "free. Process 3652628 has 47.51 GiB memory in use. Of the allocated memory 47.14 GiB is allocated by PyTorch, and "
    "57.79 MiB is reserved by PyTorch but unallocated."
)
V2_6 = (
    "CUDA out of memory. Tried to allocate 19.68 GiB. GPU 1 has a total capacity of 23.68 GiB of which 11.88 GiB is "
    "free. Including non-PyTorch memory, this process has 11.79 GiB memory in use. Of the allocated memory 11.44 GiB "
    "is allocated by PyTorch, and 43.59 MiB is reserved by PyTorch but unallocated."
)
V2_6_SHARED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is "
    "free. Process 4242 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 38.05 GiB memory "
    "in use. Of the allocated memory 37.00 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but "
    "unallocated."
)
XPU = (
    "XPU out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 64.00 GiB of which 100.00 MiB is "
    "free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated."
)


def gib(value: float) -> int:
    return int(value * GIB)


@pytest.mark.parametrize(
    ("text", "wanted", "total", "idle", "gpu", "others"),
    [
        (V1_7, 20 * MIB, gib(31.75), gib(30.40) - gib(30.29), 4, 0),
        (V2_0, 376 * MIB, gib(3.95), gib(2.46) - gib(1.72), 0, 0),
        (V2_1, 256 * MIB, gib(47.53), int(57.79 * MIB), 0, 0),
        (V2_6, gib(19.68), gib(23.68), int(43.59 * MIB), 1, 0),
        (V2_6_SHARED, 2 * GIB, gib(79.15), 120 * MIB, 0, gib(40)),
        (XPU, 512 * MIB, 64 * GIB, GIB, 3, 0),
    ],
)
def test_figures(text: str, wanted: int, total: int, idle: int, gpu: int, others: int) -> None:
    found = read_gpu(text)
    assert found is not None
    assert (found.wanted, found.total, found.gpu) == (wanted, total, gpu)
    assert found.idle == idle
    assert abs(found.others - others) < 0.02 * GIB


def test_texts_without_figures() -> None:
    assert read_gpu("CUDA error: out of memory") is None
    assert read_gpu("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`") is None
    assert read_gpu("Tried to allocate " + "9" * 100_000) is None
    assert gpu_levers(None, MemorySetting()).splitlines()[0].startswith("a smaller micro batch")
    assert gpu_levers(GpuMemory(), MemorySetting(batch=3, world=None)).startswith("micro batch 1 instead of 3")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (V1_7, "a smaller micro batch"),
        (V2_0, "758 MiB lie idle"),
        (V2_1, "a smaller micro batch"),
        (V2_6, "a smaller micro batch"),
        (V2_6_SHARED, "other processes hold 40 GiB of 79.1 GiB on GPU 0"),
        ("Tried to allocate 130206.04 GiB. GPU 0 has a total capacity of 23.56 GiB of which 16.57 GiB is free.",
         "one tensor of 127 TiB is larger than GPU 0"),
    ],
)  # fmt: skip
def test_what_the_figures_point_at_comes_first(text: str, first: str) -> None:
    lines = gpu_levers(read_gpu(text), MemorySetting()).splitlines()
    assert lines[0].startswith(first), lines
    assert any("full_shard" in line for line in lines)


def test_expandable_segments_only_where_it_can_help() -> None:
    memory = read_gpu(V1_7)
    assert memory is not None and "113 MiB lie idle" in gpu_levers(memory, MemorySetting()).splitlines()[-1]
    assert "expandable" not in gpu_levers(read_gpu(V2_6), MemorySetting())
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in gpu_levers(read_gpu(V2_0), MemorySetting())


def test_levers_in_order_with_the_runs_figures() -> None:
    words = ["train.py", "--micro-batch-size", "8", "--gradient_accumulation_steps=2", "--seq-length", "4096"]
    setting = read_setting(words, world=16)
    lines = gpu_levers(read_gpu(V2_6), setting).splitlines()
    assert lines[0] == (
        "--micro-batch-size 4 instead of 8, and --gradient_accumulation_steps 4 only to keep the global batch of 256 "
        "(4 x 4 x 16 ranks)"
    )
    begins = ["shorter inputs: --seq-length is 4,096", "activation checkpointing", "shard parameters", "offload"]
    assert [line[: len(begin)] for line, begin in zip(lines[1:5], begins, strict=True)] == begins


def test_of_a_batch_of_one_nothing_is_said() -> None:
    lines = gpu_levers(read_gpu(V2_1), read_setting(["train.py", "training.batch_size=1"], world=8)).splitlines()
    assert not any("micro batch" in line for line in lines)


def test_what_is_no_number_or_another_option_gives_no_figure() -> None:
    found = read_setting(["train.py", "--batch", "4", "--batch-sizes", "9"])
    assert (found.batch, found.option("batch"), found.workers) == (4, "--batch", None)
    assert read_setting(["train.py", "--batch-size", "many"]).batch is None
    assert read_setting(["train.py", "--length", "500"]).length is None, "of a dataset, perhaps"
    assert read_setting(["train.py", "--max_seq_len", "500"]).length == 500


@pytest.mark.parametrize(
    ("words", "says", "not_says"),
    [
        (["--max_pixels", "1003520"], "--max_pixels is 1,003,520, and 501,760 takes half", "sequence length"),
        (["--zero_stage", "2"], "--zero_stage 3 instead of 2, which shards parameters", "ZeRO-3"),
        (["--zero_stage=0"], "--zero_stage 3 instead of 0, which shards parameters", "ZeRO-3"),
        (["--zero_stage", "3"], "--zero_stage 3 shards all states already, so offload optimizer states", "full_shard"),
    ],
)
def test_levers_know_pixels_and_what_zero_shards(words: list[str], says: str, not_says: str) -> None:
    """accelerate's own option, and the most pixels of an image as vision-language models name it."""
    levers = gpu_levers(read_gpu(V2_6), read_setting(["accelerate", "launch", *words, "train.py"], world=8))
    assert says in levers
    assert not_says not in levers


def test_levers_know_what_accelerates_configuration_says_of_zero() -> None:
    """Its words are the file's; an option of the command line counts before it."""
    of_file = {"zero_stage": 2, "gradient_accumulation_steps": 4}
    launch = ["accelerate", "launch", "--config_file", "ds.yaml", "train.py", "--batch-size", "8"]
    levers = gpu_levers(read_gpu(V2_6), read_setting(launch, world=8, deepspeed=of_file))
    assert "zero_stage: 3 instead of 2, which shards parameters" in levers
    assert "gradient_accumulation_steps: 8 only to keep the global batch of 256" in levers
    asked = read_setting([*launch[:2], "--zero_stage", "3", *launch[2:]], deepspeed=of_file)
    assert (asked.stage, asked.option("stage")) == (3, "--zero_stage")


def test_levers_of_host_memory() -> None:
    """The node, its memory, and as many workers as all of its ranks have."""
    setting = MemorySetting(workers=8, ranks_here=8, options={"workers": "--workers"})
    lines = host_levers(setting, "h2", 8 * GIB).splitlines()
    assert lines[0].startswith("on h2:") and lines[0].endswith("(the node has 8 GiB)")
    assert "--workers 8 x 8 ranks = 64 processes" in lines[1]
    assert lines[-1].startswith("raise the limit")


def test_sizes() -> None:
    assert [size(n) for n in (5, 2048, 20 * MIB, gib(79.15), 200 * GIB)] == [
        "5 bytes", "2 KiB", "20 MiB", "79.1 GiB", "200 GiB",
    ]  # fmt: skip


def incident(**end: object) -> Incident:
    record = rank_end(**{"rank": 1, "node": "h2", "code": 1, "signal": None, "t": 5.0, "expected": False, **end})
    return Incident(0, 4, {"h1": (0,), "h2": (1,)}, (record,), detected_t=5.1,
                    command=("train.py", "--batch", "6", "--workers", "2"), memory={"h2": 64 * GIB})  # fmt: skip


def test_the_verdict_of_a_run_has_the_levers() -> None:
    error = {"allranks": {"type": "OutOfMemoryError", "text": V2_6_SHARED, "file": "train.py", "line": 3}}
    found = judge(incident(error=error))
    assert found is not None and found.cause == "cuda-out-of-memory"
    lines = found.finding.remedy.splitlines()
    assert lines[0].startswith("other processes hold 40 GiB")
    assert lines[1] == "--batch 3 instead of 6, and gradient accumulation 2 only to keep the global batch of 24 " \
                       "(3 x 2 x 4 ranks)"  # fmt: skip
    killed = judge(incident(code=None, signal=9, oom_kills=1))
    assert killed is not None and killed.cause == "host-out-of-memory"
    assert "the node has 64 GiB" in killed.finding.remedy and "--workers 2 a rank" in killed.finding.remedy


def test_torch_that_names_this_process_by_its_pid_alone() -> None:
    """torch 2.1 to 2.3: the largest is taken for this process, and others hold the rest."""
    found = read_gpu(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0 bytes is "
        "free. Process 4711 has 30.00 GiB memory in use. Process 4712 has 50.00 GiB memory in use."
    )
    assert found is not None and found.others == 30 * GIB


def test_of_a_process_without_memory_all_that_is_not_free_is_held_by_others() -> None:
    """0 bytes are a figure, not one that the message lacks."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0 bytes is "
        "free. Process 4711 has 79.00 GiB memory in use. Including non-PyTorch memory, this process has 0 bytes memory "
        "in use."
    )
    found = read_gpu(text)
    assert found is not None
    assert found.others == 80 * GIB
