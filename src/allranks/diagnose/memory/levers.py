"""What to do when memory ran out: levers in order, with the run's own figures (pure).

Each line is one lever; what the figures rule out is left out, and what they point at comes first.
"""

from __future__ import annotations

from allranks.text import count_of

from ..worlds import NOWHERE, World, Worlds, tools
from .figures import GpuMemory, size
from .setting import MemorySetting

SHARE = 0.1  # of the GPU: from here on what others hold, or what lies idle, is worth a line
HUGE = 0.5  # of the GPU, for one tensor
STATE = 16  # bytes a parameter: bf16 weights and gradients, fp32 weights and two Adam moments (ZeRO, section 3.1)
SHARDS_ALL = 3  # the stage of ZeRO
CONF = "set --env PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF)"
_CONF = {
    World.ASCEND: "set --env PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
    **dict.fromkeys((World.XPU, World.TPU, World.GAUDI), "use fewer different sizes, such as one padded length"),
}


def gpu_levers(memory: GpuMemory | None, setting: MemorySetting, worlds: Worlds = NOWHERE) -> str:
    """Write the remedy of a verdict on GPU memory, one lever a line."""
    memory = memory or GpuMemory()
    total = memory.total or 0
    wanted = memory.wanted or 0
    idle = memory.idle or 0
    gpu = "the GPU"
    if memory.gpu is not None:
        gpu = f"GPU {memory.gpu}"
    tool = tools(worlds)["smi"]
    levers = _of_states(memory, setting)
    if total and wanted > total:
        line = f"one tensor of {size(wanted)} is larger than {gpu} ({size(total)}). Look for a wrong shape, or an input"
        levers.insert(0, f"{line} that is not cut to a longest length")
    elif total and wanted > HUGE * total:
        line = f"one tensor of {size(wanted)} takes most of {gpu} ({size(total)}): wrap smaller units "
        levers.append(f"{line}(FSDP's auto_wrap_policy), and initialise on the meta device")
    elif idle >= wanted > 0:
        line = f"{size(idle)} lie idle in torch's allocator and {size(wanted)} were asked for: memory is fragmented, so"
        is_much = not total or idle >= SHARE * total
        conf = next((c for world, c in _CONF.items() if world in worlds), CONF)
        levers.insert(0 if is_much else len(levers), f"{line} {conf}")
    if total and memory.others >= SHARE * total:
        levers.insert(
            0,
            f"other processes hold {size(memory.others)} of {size(total)} on {gpu}, and `{tool}` shows whose. "
            "End those of earlier runs (`allranks clean --orphans`), and see that no two ranks share a GPU. Each "
            "takes that "
            "of its LOCAL_RANK before it moves the model",
        )
    return "\n".join(levers)


def _of_states(memory: GpuMemory, setting: MemorySetting) -> list[str]:
    """List batch, length, checkpointing, sharding and offload; sharding first where no batch could help."""
    activations = [*_batch(setting), _length(setting), CHECKPOINTING]
    sharding = _sharding(setting)
    if setting.stage == SHARDS_ALL:
        return [*activations, f"{setting.option('stage') or 'ZeRO stage'} 3 shards all states already, so {OFFLOAD}"]
    if not setting.parameters:
        return [*activations, sharding, OFFLOAD]
    states = STATE * setting.parameters
    count = f"{setting.parameters / 1e6:.3g} M"
    if setting.parameters >= 1e9:
        count = f"{setting.parameters / 1e9:.3g} B"
    sharding += f": {count} parameters at {STATE} bytes (mixed precision, Adam) are {size(states)}"
    if setting.world and setting.world > 1:
        sharding += f", {size(states / setting.world)} over {setting.world} ranks"
    if memory.total and states > memory.total:
        sharding += f" (no smaller batch helps: this alone is more than {size(memory.total)})"
        return [sharding, OFFLOAD, *activations]
    return [*activations, sharding, OFFLOAD]


def _sharding(setting: MemorySetting) -> str:
    """Write the lever on model states; ZeRO's stages 1 and 2 leave parameters whole (DeepSpeed, zero_optimization)."""
    if setting.stage is None:
        return "shard parameters, gradients and optimizer states: FSDP full_shard, ZeRO-3"
    name = setting.option("stage") or "ZeRO stage"
    return f"{name} 3 instead of {setting.stage}, which shards parameters, gradients and optimizer states"


CHECKPOINTING = (
    "activation checkpointing (torch.utils.checkpoint, or gradient_checkpointing_enable()), which is a third slower"
)
OFFLOAD = "offload optimizer states to the host (FSDP CPUOffload, ZeRO-Offload), last: it needs host memory and is slow"


def _batch(setting: MemorySetting) -> list[str]:
    """Write the lever on the micro batch; accumulation only keeps the global batch, it frees nothing."""
    if setting.batch is None:
        return ["a smaller micro batch a rank, with more gradient accumulation only to keep the global batch"]
    if setting.batch == 1:
        return []
    half = setting.batch // 2
    steps = setting.accumulation or 1
    more = setting.option("accumulation") or "gradient accumulation"
    line = f"{setting.option('batch') or 'micro batch'} {half} instead of {setting.batch}"
    if setting.batch % 2 or not setting.world:
        return [f"{line}, with more {more} only to keep the global batch"]
    samples = setting.batch * steps * setting.world
    sums = f"{half} x {2 * steps} x {count_of(setting.world, 'rank')}"
    return [f"{line}, and {more} {2 * steps} only to keep the global batch of {samples:,} ({sums})"]


def _length(setting: MemorySetting) -> str:
    if setting.length:
        name = setting.option("length") or "sequence length"
        return f"shorter inputs: {name} is {setting.length:,}, and activations grow with it, attention with its square"
    if setting.pixels:
        name = setting.option("pixels") or "max_pixels"
        half = f"{setting.pixels // 2:,} takes half of each image's tokens and activations"
        return f"smaller images: {name} is {setting.pixels:,}, and {half}"
    if setting.side:
        name = setting.option("side") or "image size"
        return (
            f"smaller inputs: {name} is {setting.side:,}, and {setting.side // 2:,} takes a quarter of the activations"
        )
    return "smaller inputs: image size or sequence length, as batches padded to the longest sample are the usual peak"


def host_levers(setting: MemorySetting, node: str = "", total: int | None = None) -> str:
    """Write the remedy of a verdict on host memory, one lever a line."""
    first = "`journalctl -k | grep -i 'killed process'` says what was ended and how large it was"
    if node:
        first = f"on {node}: {first}"
    if total:
        first += f" (the node has {size(total)})"
    more = "raise the limit: --mem of Slurm, resources.limits.memory of the container, systemd's MemoryMax"
    lines = (
        first,
        _workers(setting),
        "a smaller micro batch, smaller prefetch_factor, and data read in pieces or memory-mapped",
        "no CPU offload (FSDP, ZeRO), no full checkpoint in every rank: torch.load(mmap=True) or rank 0",
        f"{more}, or fewer ranks a node",
    )
    return "\n".join(lines)


def _workers(setting: MemorySetting) -> str:
    if not setting.workers:
        return "fewer data-loader workers: each is a process with its own copy of what the dataset holds"
    here = " a rank"
    if setting.ranks_here and setting.ranks_here > 1:
        here = f" x {setting.ranks_here} ranks = {setting.workers * setting.ranks_here} processes"
    name = setting.option("workers") or "loader workers"
    return f"fewer data-loader workers: {name} {setting.workers}{here}, each with a copy of what the dataset holds"
