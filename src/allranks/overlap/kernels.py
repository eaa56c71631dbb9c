"""Which collective a kernel or an annotation is: its name, what a rank puts in, its group (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from allranks.protocol.jsontext import Json

Arguments = Mapping[str, Json]

KERNEL = re.compile(r"nccl|rccl|nvshmem|multimem", re.IGNORECASE)
NCCL_NAME = re.compile(r"(?:nccl|rccl|msccl)(?:Dev)?(?:Kernel)?_?([A-Z][A-Za-z]{1,40}?)(?:_|\(|<|RING|TREE|$)")
SUFFIXES = re.compile(r"^_|(?:_(?:base|coalesced|into_tensor|tensor)){1,4}_?$|_$")
NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "send/recv",
}
# Bytes an element, by a part of the type's name: NCCL says BFloat16, Gloo's annotation c10::BFloat16 or `long int`.
TYPES = (
    ("complex<double>", 16),
    ("complexdouble", 16),
    ("complex", 8),
    ("float8", 1),
    ("bfloat16", 2),
    ("half", 2),
    ("double", 8),
    ("float", 4),
    ("long", 8),
    ("short", 2),
    ("char", 1),
    ("byte", 1),
    ("bool", 1),
    ("int8", 1),
    ("int", 4),
)
LARGEST_COUNT = 2**48  # elements of a tensor: beyond, the trace is wrong
NAME_LENGTH = 60  # characters of a kernel's or a group's name


class CollectiveKind(NamedTuple):
    """What distinguishes collectives. `size`: bytes that a rank puts in, None where the trace does not say."""

    name: str
    size: int | None = None
    dtype: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int | None = None


def kernel_kind(kernel: str, arguments: Arguments) -> CollectiveKind | None:
    """Read an NCCL kernel's kind from the arguments that torch writes to it, else from its name.

    None for a kernel that moves no data between ranks."""
    if "Collective name" not in arguments and not KERNEL.search(kernel):
        return None
    match = NCCL_NAME.search(kernel)
    name = match.group(1) if match else kernel[:NAME_LENGTH]
    dtype = str(arguments.get("dtype") or "").lower()
    group = _name(arguments.get("Process Group Description")) or _name(arguments.get("Process Group Name"))
    group_size = arguments.get("Group size")
    return CollectiveKind(
        plain(str(arguments.get("Collective name") or name)),
        _size(arguments.get("In msg nelems") or arguments.get("Out msg nelems"), dtype),
        dtype,
        group,
        ranks_of(arguments.get("Process Group Ranks")),
        group_size if isinstance(group_size, int) else None,
    )


def gloo_kind(name: str, arguments: Arguments) -> CollectiveKind:
    """Read the kind of `gloo:all_reduce`: its tensors are the first input's, where shapes were recorded."""
    dtype = str(_first(arguments.get("Input type")) or "").lower()
    size = _size(elements(_first(arguments.get("Input Dims"))), dtype)
    return CollectiveKind(plain(name.partition(":")[2]), size or None, dtype.removeprefix("c10::"))


def plain(name: str) -> str:
    """Give `_allgather_base`, `AllGather` and `all_gather` one name."""
    short = SUFFIXES.sub("", name.lower())
    return NAMES.get(short.replace("_", ""), short) or "collective"


def elements(shape: Json) -> int:
    """Count the elements of a tensor's shape, or of a list of shapes."""
    if not isinstance(shape, list):
        return 0
    if all(isinstance(length, int) for length in shape):
        return prod(shape)
    return sum(elements(part) for part in shape)


def ranks_of(value: Json) -> tuple[int, ...]:
    """Read `[0, 1]`, a list or a text; empty where it is shortened (`[0, 1, ... 62, 63]`) or something else."""
    if isinstance(value, str) and "..." not in value:
        return tuple(int(digits) for digits in re.findall(r"\d{1,9}", value))
    if isinstance(value, list) and all(isinstance(rank, int) for rank in value):
        return tuple(value)
    return ()


def _size(count: Json, dtype: str) -> int | None:
    for part, width in TYPES:
        if part in dtype and isinstance(count, int) and 0 <= count < LARGEST_COUNT:
            return count * width
    return None


def _first(values: Json) -> Json:
    return values[0] if isinstance(values, list) and values else None


def _name(value: Json) -> str:
    if not isinstance(value, (str, int)) or value == "undefined":
        return ""
    return str(value)[:NAME_LENGTH]
