"""What to do when memory ran out: levers in order, with the run's own figures (pure).

Each line is one lever; what the figures rule out is left out, and what they point at comes first.
"""

from __future__ import annotations

from .figures import GpuMemory, HostMemory, size
from .setting import Setting

SHARE = 0.1  # of the GPU: from here on what others hold, or what lies idle, is worth a line
STATE = 16  # bytes a parameter: bf16 weights and gradients, fp32 weights and two Adam moments (ZeRO, section 3.1)
CONF = "PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF)"


def gpu_levers(memory: GpuMemory | None, setting: Setting) -> str:
    """The remedy of a verdict on GPU memory."""
    memory = memory or GpuMemory()
    first, last = _outside(memory)
    levers = [*first, *_of_states(memory, setting), *last]
    return "\n".join(levers)


def _outside(memory: GpuMemory) -> tuple[list[str], list[str]]:
    """Memory that neither the model nor the batch takes: held by others, or idle in torch's own allocator."""
    first: list[str] = []
    last: list[str] = []
    total = memory.total or 0
    wanted = memory.wanted or 0
    idle = memory.idle or 0
    gpu = f"GPU {memory.gpu}" if memory.gpu is not None else "the GPU"
    if total and memory.others >= SHARE * total:
        first.append(
            f"other processes hold {size(memory.others)} of {size(total)} on {gpu}: nvidia-smi shows whose; end what "
            "earlier runs left (allranks clean --orphans), and see that no two ranks share a GPU"
        )
    if total and wanted > total:
        first.append(
            f"one tensor of {size(wanted)} is larger than {gpu} ({size(total)}): look for a wrong shape, or an input "
            "that is not cut to a longest length"
        )
    elif idle >= wanted > 0:
        line = f"{size(idle)} lie idle in torch's allocator and {size(wanted)} were asked for: memory is fragmented; "
        line += f"--env {CONF}"
        (first if not total or idle >= SHARE * total else last).append(line)
    return first, last


def _of_states(memory: GpuMemory, setting: Setting) -> list[str]:
    """Batch, length, checkpointing, sharding, offload; sharding first where no batch could help."""
    activations = [*_batch(setting), _length(setting), CHECKPOINTING]
    sharding, states = _sharding(setting)
    if states and memory.total and states > memory.total:
        return [
            f"{sharding} (no smaller batch helps: this alone is more than {size(memory.total)})",
            OFFLOAD,
            *activations,
        ]
    return [*activations, sharding, OFFLOAD]


CHECKPOINTING = "activation checkpointing (torch.utils.checkpoint; gradient_checkpointing_enable()); a third slower"
OFFLOAD = "offload optimizer states to the host (FSDP CPUOffload, ZeRO-Offload), last: it needs host memory and is slow"


def _batch(setting: Setting) -> list[str]:
    """Accumulation frees nothing: it keeps the global batch when the micro batch shrinks."""
    if setting.batch is None:
        return ["a smaller micro batch a rank, with more gradient accumulation only to keep the global batch"]
    if setting.batch == 1:
        return []
    half = setting.batch // 2
    steps = setting.accumulation or 1
    name = setting.option("batch") or "micro batch"
    more = setting.option("accumulation") or "gradient accumulation"
    line = f"{name} {half} instead of {setting.batch}"
    samples = setting.batch * steps * (setting.world or 1)
    if setting.batch % 2 or not setting.world:
        return [f"{line}, with more {more} only to keep the global batch"]
    sums = f"{half} x {2 * steps} x {setting.world} rank{'s' if setting.world > 1 else ''}"
    return [f"{line}, and {more} {2 * steps} only to keep the global batch of {samples:,} ({sums})"]


def _length(setting: Setting) -> str:
    if setting.length:
        name = setting.option("length") or "sequence length"
        return f"shorter inputs: {name} is {setting.length:,}; activations grow with it, attention with its square"
    if setting.side:
        name = setting.option("side") or "image size"
        half = setting.side // 2
        return f"smaller inputs: {name} is {setting.side:,}; {half:,} takes a quarter of the activations"
    return "smaller inputs: image size or sequence length; batches padded to the longest sample are the usual peak"


def _sharding(setting: Setting) -> tuple[str, float | None]:
    """The lever, and the bytes of the unsharded states where the number of parameters is known."""
    text = "shard parameters, gradients and optimizer states: FSDP full_shard, ZeRO-3"
    if not setting.parameters:
        return text, None
    states = STATE * setting.parameters
    over = ""
    if setting.world and setting.world > 1:
        over = f", {size(states / setting.world)} over {setting.world} ranks"
    figure = f"{setting.parameters / 1e9:.3g} B" if setting.parameters >= 1e9 else f"{setting.parameters / 1e6:.3g} M"
    return f"{text}: {figure} parameters at {STATE} bytes (mixed precision, Adam) are {size(states)}{over}", states


def host_levers(memory: HostMemory, setting: Setting, node: str = "", total: int | None = None) -> str:
    """The remedy of a verdict on host memory."""
    on = f"on {node}: " if node else ""
    figures = []
    if memory.resident:
        figures.append(f"{memory.name or 'it'} held {size(memory.resident)}")
    if memory.limit:
        figures.append(f"the limit of its control group is {size(memory.limit)}")
    if total:
        figures.append(f"the node has {size(total)}")
    look = f"{on}journalctl -k | grep -i 'killed process' says what was ended and how large it was"
    lines = [look + (f" ({', '.join(figures)})" if figures else "")]
    lines.append(_workers(setting))
    lines.append("a smaller micro batch, smaller prefetch_factor, and data read in pieces or memory-mapped, not whole")
    lines.append("no CPU offload (FSDP, ZeRO), no whole checkpoint in every rank: torch.load(mmap=True) or rank 0")
    grow = "raise the limit: --mem of Slurm, resources.limits.memory of the container, systemd's MemoryMax"
    lines.append(grow if memory.limit else f"{grow}, or fewer ranks a node")
    return "\n".join(lines)


def _workers(setting: Setting) -> str:
    if not setting.workers:
        return "fewer data-loader workers: each is a process with its own copy of what the dataset holds"
    name = setting.option("workers") or "loader workers"
    ranks = setting.ranks_here
    here = f" x {ranks} ranks = {setting.workers * ranks} processes" if ranks and ranks > 1 else " a rank"
    return f"fewer data-loader workers: {name} {setting.workers}{here}, each with a copy of what the dataset holds"
