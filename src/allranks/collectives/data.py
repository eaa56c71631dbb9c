"""What each rank contributes in a round, and what every collective must yield from it. Pure: integers only.

Two kinds of data. `moved` is for collectives that carry blocks: every element tells rank, round and place, so that
zeros, another rank's block, an old round or a shifted block differ. `shared` is for sums and maxima: it repeats
every PERIOD elements, so that the right result of any number of ranks is one short table, exact in the type used.
Only numbers that the type holds exactly occur, in the sum too.
"""

from __future__ import annotations

from collections.abc import Callable

PRIME = 8388593  # below 2**23: exact in float32; products of two such numbers fit 64 bits
PERIOD = 509  # a prime: no block of a power of two starts where another one starts
ROUND_STEP = 1009
SEARCHED = 64  # ranks among which one with another's data is looked for
ENOUGH = 16  # numbers of a sum that tell whose share is wrong
LIMITS = {
    "float64": 1 << 53,
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "int64": 1 << 62,
    "int32": (1 << 31) - 1,
    "uint8": 255,
}


def key(rank: int, turn: int, modulus: int) -> int:
    """What makes a rank's data in a round its own: 1 … modulus-1."""
    return 1 + (rank + ROUND_STEP * turn) % (modulus - 1)


def moved(rank: int, turn: int, index: int, modulus: int = PRIME) -> int:
    """The element that a rank puts at an index in a round: 1 … modulus, never 0."""
    return 1 + ((index + 1) * key(rank, turn, modulus)) % modulus


def share_key(rank: int, turn: int, modulus: int) -> int:
    """The same for what is summed. Fifth powers: the difference of two keys tells which two ranks they are of."""
    return 1 + (rank + 1 + ROUND_STEP * turn) ** 5 % (modulus - 1)


def shared(rank: int, turn: int, index: int, modulus: int = PRIME) -> int:
    """What is summed or compared: 1 … modulus, repeats every PERIOD elements."""
    return 1 + ((index % PERIOD + 1) * share_key(rank, turn, modulus)) % modulus


def modulus_of(dtype: str, ranks_added: int = 1) -> int | None:
    """The largest prime for which a sum over so many ranks is exact in the type; None where there is none."""
    top = min(LIMITS[dtype] // ranks_added, PRIME)
    while top >= 3:
        if is_prime(top):
            return top
        top -= 1
    return None


def is_prime(number: int) -> bool:
    """By trial: the numbers are small."""
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return number > 1


def table(rank: int, turn: int, modulus: int, shift: int = 0) -> list[int]:
    """One period of what a rank contributes to a reduction, from a place on."""
    return [shared(rank, turn, index, modulus) for index in range(shift, shift + PERIOD)]


def reduced(operation: str, ranks: list[int], turn: int, modulus: int, shift: int = 0) -> list[int]:
    """One period of the sum (`sum`) or maximum (`max`) over these ranks, from a place on."""
    join: dict[str, Callable[[tuple[int, ...]], int]] = {"sum": sum, "max": max}
    columns = zip(*(table(rank, turn, modulus, shift) for rank in ranks))  # noqa: B905  (Python 3.9)
    return [join[operation](column) for column in columns]


def culprit(found: list[int], ranks: list[int], turn: int, modulus: int, shift: int = 0) -> tuple[int, str] | None:
    """The one rank whose missing or wrong share explains a whole wrong sum, with the words.

    None where none does, or where several might, as with few numbers.
    """
    if len(found) < ENOUGH:
        return None
    right = reduced("sum", ranks, turn, modulus, shift)[: len(found)]
    gap = [due - got for due, got in zip(right, found)]  # noqa: B905
    shares = {rank: table(rank, turn, modulus, shift)[: len(found)] for rank in ranks}
    silent = [(rank, f"as if rank {rank} had contributed nothing") for rank in ranks if gap == shares[rank]]
    swapped = [
        (rank, f"as if rank {rank} had contributed the data of rank {other}")
        for rank in ranks[:SEARCHED]
        for other in ranks[:SEARCHED]
        if other != rank and all(g == a - b for g, a, b in zip(gap, shares[rank], shares[other]))  # noqa: B905
    ]
    found_out = silent or swapped
    return found_out[0] if len(found_out) == 1 else None


def text(rank: int, turn: int) -> str:
    """A string whose length and letters depend on rank and round; now and then an empty one."""
    number = key(rank, turn, PRIME)
    length = number * 37 % 211 if (rank + turn) % 5 != 4 else 0
    return f"r{rank}·t{turn}:" + "".join(chr(0x61 + (number + place * 7) % 26) for place in range(length))


def length(rank: int, turn: int) -> int:
    """How many tokens a rank generated in a round: differs by rank, and is sometimes 0."""
    return (rank * 13 + turn * 7) % 97 if (rank + turn) % 7 != 6 else 0


def roots(world: int) -> list[int]:
    """Which ranks are a root in turn: all of up to 8; of more, the ends and some between."""
    if world <= 8:
        return list(range(world))
    return sorted({world * part // 7 for part in range(7)} | {world - 1})
