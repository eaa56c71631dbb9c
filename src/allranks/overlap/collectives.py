"""Which collective a kernel or an annotation is: its name, what a rank puts in, its group (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

KERNEL = re.compile(r"nccl|rccl|nvshmem|multimem", re.IGNORECASE)
NCCL_NAME = re.compile(r"(?:nccl|rccl|msccl)(?:Dev)?(?:Kernel)?_?([A-Z][A-Za-z]{1,40}?)(?:_|\(|<|RING|TREE|$)")
NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
         "alltoall": "all_to_all", "alltoallv": "all_to_all", "sendrecv": "send/recv"}  # fmt: skip
# Bytes an element, by a part of the type's name: NCCL says BFloat16, Gloo's annotation c10::BFloat16 or `long int`.
TYPES = (("complex<double>", 16), ("complexdouble", 16), ("complex", 8), ("float8", 1), ("bfloat16", 2), ("half", 2),
         ("double", 8), ("float", 4), ("long", 8), ("short", 2), ("char", 1), ("byte", 1), ("bool", 1), ("int8", 1),
         ("int", 4))  # fmt: skip


class Kind(NamedTuple):
    """What tells collectives apart. `size`: bytes that a rank puts in, None where the trace doesn't say."""

    name: str
    size: int | None = None
    dtype: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int | None = None


def is_communication(name: str, args: Mapping[str, Any]) -> bool:
    """Whether a kernel moves data between ranks."""
    return "Collective name" in args or KERNEL.search(name) is not None


def kernel_kind(name: str, args: Mapping[str, Any]) -> Kind:
    """Of an NCCL kernel: from the arguments torch writes to it, else from its name."""
    found = NCCL_NAME.search(name)
    said = args.get("Collective name") or (found.group(1) if found else name[:60])
    dtype = str(args.get("dtype") or "")
    count = args.get("In msg nelems") or args.get("Out msg nelems")
    width = bytes_of(dtype)
    size = int(count) * width if isinstance(count, int) and width else None
    group_size = args.get("Group size")
    return Kind(
        plain(str(said)), size, dtype.lower(),
        _text(args.get("Process Group Description")) or _text(args.get("Process Group Name")),
        ranks_of(args.get("Process Group Ranks")), group_size if isinstance(group_size, int) else None,
    )  # fmt: skip


def gloo_kind(name: str, args: Mapping[str, Any]) -> Kind:
    """Of `gloo:all_reduce`: its tensors are the first input's, where shapes were recorded."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    said = str(types[0]) if isinstance(types, list) and types else ""
    width = bytes_of(said)
    size = elements(shapes[0]) * width if isinstance(shapes, list) and shapes and width else None
    return Kind(plain(name.partition(":")[2]), size or None, said.removeprefix("c10::").lower())


def plain(name: str) -> str:
    """`_allgather_base`, `AllGather` and `all_gather` are one."""
    short = re.sub(r"^_|(?:_(?:base|coalesced|into_tensor|tensor)){1,4}_?$|_$", "", name.lower())
    return NAMES.get(short.replace("_", ""), short) or "collective"


def bytes_of(dtype: str) -> int:
    """Of one element; 0 where the type is unknown."""
    return next((width for part, width in TYPES if part in dtype.lower()), 0)


def elements(shape: object) -> int:
    """Of a tensor's shape, or of a list of these."""
    if not isinstance(shape, list):
        return 0
    if all(isinstance(n, int) for n in shape):
        count = 1
        for n in shape:
            count *= n
        return count
    return sum(elements(part) for part in shape)


def ranks_of(value: object) -> tuple[int, ...]:
    """`[0, 1]`, as a list or as text; empty where it is shortened (`[0, 1, ... 62, 63]`) or no such thing."""
    if isinstance(value, str):
        value = [int(n) for n in re.findall(r"\d+", value)] if "..." not in value else None
    if not isinstance(value, list) or not all(isinstance(n, int) for n in value):
        return ()
    return tuple(value)


def _text(value: object) -> str:
    return str(value)[:60] if isinstance(value, (str, int)) and value not in ("", "undefined") else ""
