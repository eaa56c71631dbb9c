"""What each rank contributes in a round, and what every collective must yield from it (pure): integers only.

Two kinds of data. `moved` is for collectives that carry blocks: every element tells rank, round and place, so that
zeros, another rank's block, an old round or a shifted block differ. `shared` is for sums and maxima: it repeats
every PERIOD elements, so that the right result of any number of ranks is one short table, exact in the type used.
Only numbers that the type holds exactly occur, in the sum too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

PRIME = 8388593  # below 2**23: exact in float32; products of two such numbers fit 64 bits
PERIOD = 509  # a prime: no block of a power of two starts where another one starts
ROUND_STEP = 1009
SEARCHED = 64  # ranks among which one with another's data is looked for
ENOUGH = 16  # numbers of a sum that tell whose share is wrong
LIMITS = {
    "float32": 1 << 24,
    "bfloat16": 1 << 8,
    "int64": 1 << 62,
}

Index = TypeVar("Index", int, "torch.Tensor")


def moved_key(rank: int, turn: int, modulus: int) -> int:
    """Tell a rank's data in a round from all others: 1 … modulus-1."""
    return 1 + (rank + ROUND_STEP * turn) % (modulus - 1)


def moved(rank: int, turn: int, index: Index, modulus: int = PRIME) -> Index:
    """Give the element that a rank puts at an index (or a tensor of them) in a round: 1 … modulus, never 0."""
    return 1 + ((index + 1) * moved_key(rank, turn, modulus)) % modulus


def shared_table(rank: int, turn: int, modulus: int, shift: int = 0) -> list[int]:
    """Give one period of what a rank contributes to a reduction, from a place on: 1 … modulus.

    By fifth powers: the difference of two keys tells which two ranks they are of.
    """
    key = 1 + (rank + 1 + ROUND_STEP * turn) ** 5 % (modulus - 1)
    return [1 + ((index % PERIOD + 1) * key) % modulus for index in range(shift, shift + PERIOD)]


def modulus_of(dtype: str, ranks_added: int = 1) -> int | None:
    """Find the largest prime for which a sum over so many ranks is exact in the type; None where there is none."""
    for number in range(min(LIMITS[dtype] // ranks_added, PRIME), 2, -1):
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            return number
    return None


def reduced(
    reduction: Callable[[tuple[int, ...]], int], ranks: Sequence[int], turn: int, modulus: int, shift: int = 0
) -> list[int]:
    """Give one period of the `sum` or `max` over these ranks, from a place on."""
    return [reduction(column) for column in zip(*(shared_table(rank, turn, modulus, shift) for rank in ranks))]


def culprit(sums: list[int], ranks: list[int], turn: int, modulus: int, shift: int = 0) -> tuple[int, str] | None:
    """Find the one rank whose missing or wrong share explains wrong sums, with the words.

    None where no rank does, or where several might, as with few numbers.
    """
    if len(sums) < ENOUGH:
        return None
    expected = reduced(sum, ranks, turn, modulus, shift)
    gaps = [right - wrong for right, wrong in zip(expected, sums)]
    shares = {rank: shared_table(rank, turn, modulus, shift)[: len(sums)] for rank in ranks}
    explanations = [(rank, f"as if rank {rank} had contributed nothing") for rank in ranks if gaps == shares[rank]]
    if not explanations:
        for rank in ranks[:SEARCHED]:
            contributed = [right - gap for right, gap in zip(shares[rank], gaps)]
            others = [other for other in ranks[:SEARCHED] if other != rank and shares[other] == contributed]
            explanations += [(rank, f"as if rank {rank} had contributed the data of rank {other}") for other in others]
    if len(explanations) != 1:
        return None
    return explanations[0]


def text(rank: int, turn: int) -> str:
    """Make a string whose length and letters depend on rank and round; now and then an empty one."""
    number = moved_key(rank, turn, PRIME)
    letters = number * 37 % 211
    if (rank + turn) % 5 == 4:
        letters = 0
    return f"r{rank}·t{turn}:" + "".join(chr(0x61 + (number + place * 7) % 26) for place in range(letters))


def length(rank: int, turn: int) -> int:
    """Tell how many tokens a rank generated in a round: differs by rank, and is sometimes 0."""
    if (rank + turn) % 7 == 6:
        return 0
    return (rank * 13 + turn * 7) % 97


def roots(world: int) -> list[int]:
    """List the ranks that are a root in turn: all of up to 8; of more, the ends and some between."""
    if world <= 8:
        return list(range(world))
    return sorted({world * part // 7 for part in range(7)} | {world - 1})
