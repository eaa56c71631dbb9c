"""What ranks contribute and expect, without torch."""

import pytest

from allranks.fabric.ranks import contributions as data


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2, 8, 61])
def test_sums_stay_exact(dtype: str, ranks: int) -> None:
    modulus = data.modulus_of(dtype, ranks)
    assert modulus is not None and all(modulus % divisor for divisor in range(2, 3000) if divisor < modulus)
    assert min(data.shared_table(0, 0, modulus)) >= 1
    assert max(data.reduced(sum, range(ranks), 3, modulus)) <= data.LIMITS[dtype]


def test_no_exact_sum_in_bfloat16_over_many_ranks() -> None:
    assert data.modulus_of("bfloat16", 200) is None


def test_blocks_differ_by_rank_round_and_place_and_are_never_zero() -> None:
    blocks = {(r, t): tuple(data.moved(r, t, i) for i in range(4)) for r in range(64) for t in range(60)}
    assert len(set(blocks.values())) == len(blocks) and all(0 not in block for block in blocks.values())
    assert all(len(set(block)) == len(block) for block in blocks.values())


@pytest.mark.parametrize("turn", [0, 1, 7])
def test_a_wrong_sum_names_the_rank(turn: int) -> None:
    ranks = list(range(16))
    right = data.reduced(sum, ranks, turn, data.PRIME)
    share = {rank: data.shared_table(rank, turn, data.PRIME) for rank in ranks}
    for rank in ranks:
        nothing = [a - b for a, b in zip(right, share[rank], strict=True)]
        assert (data.culprit(nothing, ranks, turn, data.PRIME) or (None,))[0] == rank
        other = (rank + 1) % 16
        swapped = [a - b + c for a, b, c in zip(right, share[rank], share[other], strict=True)]
        words = f"as if rank {rank} had contributed the data of rank {other}"
        assert data.culprit(swapped, ranks, turn, data.PRIME) == (rank, words)
    assert data.culprit([value + 1 for value in right], ranks, turn, data.PRIME) is None
    assert data.culprit([right[0] - share[3][0]], ranks, turn, data.PRIME) is None, "one number proves nothing"


def test_a_shifted_sum_is_the_rest_of_the_whole() -> None:
    twice = data.reduced(sum, [0, 1, 2], 1, data.PRIME) * 2
    assert data.reduced(sum, [0, 1, 2], 1, data.PRIME, shift=100) == twice[100 : 100 + data.PERIOD]


def test_lengths_and_texts_differ_and_are_sometimes_empty() -> None:
    assert len({data.length(rank, 0) for rank in range(12)}) > 8 and 0 in {data.length(r, 0) for r in range(12)}
    assert len({data.text(rank, turn) for rank in range(12) for turn in range(12)}) == 144
