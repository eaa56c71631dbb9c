"""Tensors from the integers of `data`, and the element-by-element comparison. In pieces: payloads may be large."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from . import data

PIECE = 1 << 20
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
}


class Pattern:
    """Integers by place: what a buffer holds, or has to hold."""

    def __init__(self, at: Callable[[torch.Tensor], torch.Tensor], shift: int = 0) -> None:
        self.at, self.shift = at, shift

    def piece(self, start: int, count: int, device: torch.device) -> torch.Tensor:
        first = start + self.shift
        return self.at(torch.arange(first, first + count, dtype=torch.int64, device=device))

    def shifted(self, places: int) -> Pattern:
        """The same from a later place on."""
        return Pattern(self.at, self.shift + places)

    def plus(self, amount: int) -> Pattern:
        return Pattern(lambda index: self.at(index) + amount, self.shift)


def moved(rank: int, turn: int, modulus: int = data.PRIME) -> Pattern:
    """`data.moved` as a pattern."""
    own = data.key(rank, turn, modulus)
    return Pattern(lambda index: 1 + ((index + 1) * own) % modulus)


def repeated(period: list[int]) -> Pattern:
    """A table, again and again."""
    values = torch.tensor(period, dtype=torch.int64)
    return Pattern(lambda index: values.to(index.device)[index % len(period)])


def nothing() -> Pattern:
    return Pattern(torch.zeros_like)


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Start and length of each piece."""
    for start in range(0, count, PIECE):
        yield start, min(PIECE, count - start)


def build(pattern: Pattern, count: int, dtype: str, device: torch.device) -> torch.Tensor:
    """A tensor with a pattern's numbers."""
    made = torch.empty(count, dtype=DTYPES[dtype], device=device)
    for start, length in pieces(count):
        made[start : start + length] = pattern.piece(start, length, device).to(made.dtype)
    return made


def difference(found: torch.Tensor, pattern: Pattern) -> tuple[int, str, str] | None:
    """The first index at which a tensor is not what it must be, with what is due there and what is found."""
    flat = found.reshape(-1)
    for start, length in pieces(flat.numel()):
        due = pattern.piece(start, length, flat.device).to(flat.dtype)
        have = flat[start : start + length]
        if not torch.equal(due, have):
            place = int(torch.ne(due, have).nonzero()[0].item())
            return start + place, say(due[place]), say(have[place])
    return None


def say(element: torch.Tensor) -> str:
    """A number without a needless fraction."""
    value = element.item()
    return str(int(value)) if float(value).is_integer() else repr(value)
