"""What a run was asked to do, as far as its command line, metrics and log show: batch, length, parameters (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..incident import Incident, RankEnd

NAMES = {
    "batch": (
        "batch",
        "batch-size",
        "micro-batch",
        "micro-batch-size",
        "mbs",
        "per-device-train-batch-size",
        "train-micro-batch-size-per-gpu",
        "per-gpu-batch-size",
        "per-gpu-train-batch-size",
        "train-batch-size",
        "local-batch-size",
    ),
    "accumulation": (
        "grad-accum",
        "gradient-accumulation",
        "gradient-accumulation-steps",
        "grad-accum-steps",
        "accumulate-grad-batches",
        "accum",
        "accum-steps",
        "accumulation-steps",
    ),
    "length": (
        "seq-length",
        "seq-len",
        "sequence-length",
        "max-length",
        "max-seq-length",
        "max-seq-len",
        "context",
        "context-length",
        "block-size",
        "model-max-length",
        "cutoff-len",
    ),
    "side": ("image-size", "img-size", "resolution", "input-size", "crop-size"),
    "pixels": ("max-pixels", "image-max-pixels", "video-max-pixels"),
    "stage": ("zero-stage",),
    "workers": ("workers", "num-workers", "dataloader-num-workers"),
}
# Keys below `deepspeed_config:` of accelerate's configuration, and the figure that each sets.
DEEPSPEED = {"zero_stage": "stage", "gradient_accumulation_steps": "accumulation"}
PARAMETERS = ("params", "parameters", "num-params", "num-parameters", "n-params", "model-parameters")
_COUNT = r"(?<![\d,_.])(\d[\d,_]{0,30}(?:\.\d{1,20})?) ?([KMBT]|[mb]illion)?\b"
_IN_LOG = (
    re.compile(rf"all params: {_COUNT}"),
    re.compile(rf"(?<!\w){_COUNT}[ -](?:model |trainable |total )?param(?:eter)?s?\b"),
    re.compile(rf"\b[Pp]aram(?:eter)?s?\b[^\d\n]{{0,24}}{_COUNT}"),
)
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "million": 1e6, "billion": 1e9}
LEAST = 1e5  # a smaller number beside the word is not a model's size


@dataclass(frozen=True)
class MemorySetting:
    """`options`: the words that set the figures, as the user wrote them; None where nothing shows a figure.

    `pixels`: the most of one image; `stage`: what ZeRO shards (1 optimizer states, 2 gradients too, 3 parameters too).
    """

    world: int | None = None
    batch: int | None = None
    accumulation: int | None = None
    length: int | None = None
    side: int | None = None
    pixels: int | None = None
    stage: int | None = None
    workers: int | None = None
    parameters: float | None = None
    ranks_here: int | None = None
    options: Mapping[str, str] | None = None

    def option(self, name: str) -> str:
        """Give the word that sets a figure; empty where it came from elsewhere."""
        return (self.options or {}).get(name, "")


def setting_of(incident: Incident, end: RankEnd) -> MemorySetting:
    """Read the setting of the run in which a rank ended."""
    here = len(incident.ranks_by_node.get(end.node, ()))
    log = f"{end.head}\n{end.tail}"
    return read_setting(incident.command, end.metrics, log, incident.world_size, here or None, incident.deepspeed)


def read_setting(
    command: Sequence[str] = (),
    metrics: Mapping[str, object] | None = None,
    log: str = "",
    world: int | None = None,
    ranks_here: int | None = None,
    deepspeed: Mapping[str, int] | None = None,
) -> MemorySetting:
    """Read the figures: the command line counts first, then accelerate's configuration, the metrics, and the log."""
    values: dict[str, int] = {}
    options: dict[str, str] = {}
    for name, value in _pairs(command):
        for figure, names in NAMES.items():
            if _plain(name) in names and value.isdecimal() and (int(value) > 0 or figure == "stage"):
                values[figure] = int(value)
                options[figure] = name
    for name, number in (deepspeed or {}).items():
        figure = DEEPSPEED.get(name, "")
        if figure and figure not in values:
            values[figure] = number
            options[figure] = f"{name}:"  # as its file has it
    for figure, names in NAMES.items():
        metric = _from(metrics, names)
        if figure not in values and metric is not None and metric >= 1 and metric == int(metric):
            values[figure] = int(metric)
    parameters = _from(metrics, PARAMETERS) or _parameters(log)
    return MemorySetting(world=world, ranks_here=ranks_here, parameters=parameters, options=options, **values)


def _pairs(command: Sequence[str]) -> list[tuple[str, str]]:
    """List names and values of `--name value`, `--name=value` and `name=value` (Hydra)."""
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


def _from(metrics: Mapping[str, object] | None, names: Sequence[str]) -> float | None:
    for key, value in (metrics or {}).items():
        if _plain(str(key)) in names and isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None


def _parameters(log: str) -> float | None:
    """Find the number that the program printed beside the word `parameters`."""
    for pattern in _IN_LOG:
        for match in pattern.finditer(log[:65536]):
            number = float(match[1].replace(",", "").replace("_", "")) * _SCALE[match[2] or ""]
            if number >= LEAST:
                return number
    return None
