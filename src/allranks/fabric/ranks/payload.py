"""Tensors from the integers of `data`, and the element-by-element comparison. In pieces: payloads may be large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Callable

import torch

from . import contributions as data

PIECE = 1 << 20


Pattern = Callable[[torch.Tensor], torch.Tensor]  # integers by place: what a buffer holds, or has to hold
ZEROS: Pattern = torch.zeros_like


def moved(rank: int, turn: int, modulus: int = data.PRIME, shift: int = 0) -> Pattern:
    """Make `data.moved` a pattern, from a place on."""
    return lambda index: data.moved(rank, turn, index + shift, modulus)


def repeated(period: Sequence[int]) -> Pattern:
    """Repeat a table."""
    values = torch.tensor(period, dtype=torch.int64)
    return lambda index: values.to(index.device)[index % len(period)]


def pieces(pattern: Pattern, count: int, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
    """Give the places of each piece and the numbers there."""
    for start in range(0, count, PIECE):
        places = slice(start, min(start + PIECE, count))
        yield places, pattern(torch.arange(places.start, places.stop, dtype=torch.int64, device=device))


def dtype_of(name: str) -> torch.dtype:
    """Find torch's type by its name: `float32`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def build(pattern: Pattern, count: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Make a tensor with a pattern's numbers."""
    tensor = torch.empty(count, dtype=dtype_of(dtype), device=device)
    for places, numbers in pieces(pattern, count, device):
        tensor[places] = numbers.to(tensor.dtype)
    return tensor


def difference(result: torch.Tensor, pattern: Pattern) -> tuple[int, str, str] | None:
    """Find the first index at which a tensor is wrong, with the number expected there and the one in the tensor."""
    flat = result.reshape(-1)
    for places, numbers in pieces(pattern, flat.numel(), flat.device):
        expected = numbers.to(flat.dtype)
        actual = flat[places]
        if not torch.equal(expected, actual):
            place = int(torch.ne(expected, actual).nonzero()[0].item())
            return places.start + place, format_element(expected[place]), format_element(actual[place])
    return None


def format_element(element: torch.Tensor) -> str:
    """Write a number without a needless fraction."""
    value = element.item()
    return str(int(value)) if float(value).is_integer() else repr(value)
