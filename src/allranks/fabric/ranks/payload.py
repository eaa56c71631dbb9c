"""Tensors from the integers of `data`, and the element-by-element comparison. In pieces: payloads may be large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from . import contributions as data

PIECE = 1 << 20


@dataclass(frozen=True)
class Pattern:
    """Integers by place: what a buffer holds, or has to hold. `at` makes them from a tensor of places."""

    at: Callable[[torch.Tensor], torch.Tensor]
    shift: int = 0

    def piece(self, start: int, count: int, device: torch.device) -> torch.Tensor:
        """Give the numbers of some places."""
        first = start + self.shift
        return self.at(torch.arange(first, first + count, dtype=torch.int64, device=device))

    def shifted(self, places: int) -> Pattern:
        """Give the same from a later place on."""
        return Pattern(self.at, self.shift + places)

    def plus(self, amount: int) -> Pattern:
        """Add a number everywhere."""
        return Pattern(lambda index: self.at(index) + amount, self.shift)


ZEROS = Pattern(torch.zeros_like)


def moved(rank: int, turn: int, modulus: int = data.PRIME) -> Pattern:
    """Make `data.moved` a pattern."""
    return Pattern(lambda index: data.moved(rank, turn, index, modulus))


def repeated(period: Sequence[int]) -> Pattern:
    """Repeat a table."""
    values = torch.tensor(period, dtype=torch.int64)
    return Pattern(lambda index: values.to(index.device)[index % len(period)])


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Give start and length of each piece."""
    for start in range(0, count, PIECE):
        yield start, min(PIECE, count - start)


def dtype_of(name: str) -> torch.dtype:
    """Find torch's type by its name: `float32`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def build(pattern: Pattern, count: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Make a tensor with a pattern's numbers."""
    tensor = torch.empty(count, dtype=dtype_of(dtype), device=device)
    for start, length in pieces(count):
        tensor[start : start + length] = pattern.piece(start, length, device).to(tensor.dtype)
    return tensor


def difference(result: torch.Tensor, pattern: Pattern) -> tuple[int, str, str] | None:
    """Find the first index at which a tensor is wrong, with the number expected there and the one in the tensor."""
    flat = result.reshape(-1)
    for start, length in pieces(flat.numel()):
        expected = pattern.piece(start, length, flat.device).to(flat.dtype)
        actual = flat[start : start + length]
        if not torch.equal(expected, actual):
            place = int(torch.ne(expected, actual).nonzero()[0].item())
            return start + place, format_element(expected[place]), format_element(actual[place])
    return None


def format_element(element: torch.Tensor) -> str:
    """Write a number without a needless fraction."""
    value = element.item()
    return str(int(value)) if float(value).is_integer() else repr(value)
