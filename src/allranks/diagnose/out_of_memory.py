"""Out of memory: what a log says of it, by which settings, and the levers that lower it (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allranks.text import count_of

from .incident import Incident, RankEnd
from .worlds import NOWHERE, World, Worlds, tools

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(?<![\d.])(\d{1,20}(?:\.\d{1,20})?) (bytes|[KMGT]iB)"  # bounded: else a wall of digits takes seconds
_TEXTS = {
    "wanted": (rf"Tried to allocate (?:more than )?{_SIZE}",),
    "total": (rf"total capac(?:i)?ty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "ours": (rf"this process has {_SIZE} memory in use",),
    "allocated": (rf"allocated memory {_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated"),
    "idle": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "reserved": (rf"{_SIZE} reserved in total by PyTorch",),
}
_FIGURES = {name: tuple(map(re.compile, texts)) for name, texts in _TEXTS.items()}
_GPU = re.compile(r"\bGPU (\d{1,4})\b")
_OTHER = re.compile(rf"Process \d{{1,9}} has {_SIZE} memory in use")


@dataclass(frozen=True)
class GpuMemory:
    """Bytes, None where the message does not say. `idle`: reserved by torch's allocator, and in no tensor."""

    wanted: int | None = None
    total: int | None = None
    idle: int | None = None
    gpu: int | None = None
    others: int = 0  # held by other processes


def read_gpu(text: str) -> GpuMemory | None:
    """Read the figures of a message; None where it has not even the size that was asked for."""
    text = text[:8192]
    figures = {name: _first(patterns, text) for name, patterns in _FIGURES.items()}
    if figures["wanted"] is None:
        return None
    idle = figures["idle"]
    if idle is None and figures["reserved"] is not None and figures["allocated"] is not None:
        idle = max(0, figures["reserved"] - figures["allocated"])
    gpu = _GPU.search(text)
    named = [_bytes(size, unit) for size, unit in _OTHER.findall(text)]
    total = figures["total"]
    free = figures["free"]
    others = 0
    ours = figures["ours"]
    if ours is None and named:  # torch 2.1 to 2.3 name this process by its pid alone: the largest is taken for it
        ours = max(named)
    if total is not None and free is not None and ours is not None:
        others = max(0, total - free - ours)
    return GpuMemory(
        figures["wanted"],
        total,
        idle=idle,
        gpu=int(gpu[1]) if gpu else None,
        others=others,
    )


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            return _bytes(match[1], match[2])
    return None


def _bytes(size: str, unit: str) -> int:
    return int(float(size) * UNITS[unit])


def size(count: float) -> str:
    """Write bytes as torch does, shorter: `20 MiB`, `79.2 GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= UNITS[unit]:
            value = count / UNITS[unit]
            if value >= 100 or value == int(value):
                return f"{value:.0f} {unit}"
            return f"{value:.1f} {unit}"
    return f"{count:.0f} bytes"


# Names of options and Hydra's keys, in small letters and with hyphens.
_NAMES = {
    "batch": r"(?:local-|(?:per-(?:device|gpu)-)?(?:train-)?(?:micro-)?)batch(?:-size)?|mbs|"
    r"train-micro-batch-size-per-gpu",
    "accumulation": r"(?:grad(?:ient)?-)?accum(?:ulation)?(?:-steps)?|accumulate-grad-batches",
    "length": r"(?:max-|(?:max-)?seq(?:uence)?-)len(?:gth)?|context(?:-length)?|block-size|model-max-length|cutoff-len",
    "pixels": r"(?:image-|video-)?max-pixels",
    "stage": r"zero-stage",
    "workers": r"(?:dataloader-)?(?:num-)?workers",
}
NAMES = {figure: re.compile(names) for figure, names in _NAMES.items()}
# Keys below `deepspeed_config:` of accelerate's configuration, and the figure that each sets.
DEEPSPEED = {"zero_stage": "stage", "gradient_accumulation_steps": "accumulation"}


@dataclass(frozen=True)
class MemorySetting:
    """`options`: the words that set the figures, as the user wrote them; None where nothing shows a figure.

    `pixels`: the most of one image; `stage`: what ZeRO shards (1 optimizer states, 2 gradients too, 3 parameters too).
    """

    world: int | None = None
    batch: int | None = None
    accumulation: int | None = None
    length: int | None = None
    pixels: int | None = None
    stage: int | None = None
    workers: int | None = None
    ranks_here: int | None = None
    options: Mapping[str, str] | None = None

    def option(self, name: str) -> str:
        """Give the word that sets a figure; empty where it came from elsewhere."""
        return (self.options or {}).get(name, "")


def setting_of(incident: Incident, end: RankEnd) -> MemorySetting:
    """Read the setting of the run in which a rank ended."""
    here = len(incident.ranks_by_node.get(end.node, ()))
    return read_setting(incident.command, incident.world_size, here or None, incident.deepspeed)


def read_setting(
    command: Sequence[str] = (),
    world: int | None = None,
    ranks_here: int | None = None,
    deepspeed: Mapping[str, int] | None = None,
) -> MemorySetting:
    """Read the figures: the command line counts before accelerate's configuration."""
    values: dict[str, int] = {}
    options: dict[str, str] = {}
    for name, value in _pairs(command):
        for figure, names in NAMES.items():
            if names.fullmatch(_plain(name)) and value.isdecimal() and (int(value) > 0 or figure == "stage"):
                values[figure] = int(value)
                options[figure] = name
    for name, number in (deepspeed or {}).items():
        figure = DEEPSPEED.get(name, "")
        if figure and figure not in values:
            values[figure] = number
            options[figure] = f"{name}:"  # as its file has it
    return MemorySetting(world=world, ranks_here=ranks_here, options=options, **values)


def _pairs(command: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for at, word in enumerate(command):
        name, mark, value = word.partition("=")
        if mark and re.fullmatch(r"-{0,2}[A-Za-z][\w.-]*", name):
            pairs.append((name, value))
        elif word.startswith("-") and at + 1 < len(command):
            pairs.append((word, command[at + 1]))
    return pairs


def _plain(name: str) -> str:
    return name.lstrip("-").lower().replace("_", "-").rsplit(".", 1)[-1]


SHARE = 0.1  # of the GPU: from here on what others hold, or what lies idle, is worth a line
HUGE = 0.5  # of the GPU, for one tensor
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
    levers = _of_states(setting)
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


def _of_states(setting: MemorySetting) -> list[str]:
    activations = [*_batch(setting), _length(setting), CHECKPOINTING]
    if setting.stage == SHARDS_ALL:
        return [*activations, f"{setting.option('stage') or 'ZeRO stage'} 3 shards all states already, so {OFFLOAD}"]
    return [*activations, _sharding(setting), OFFLOAD]


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
