"""Who is measured with whom, and what a stage that fails means."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.fabric.analysis.schedule import (
    ALL_PAIRS,
    ENOUGH,
    STAGED_ALL_PAIRS,
    Pair,
    coverage_note,
    packed,
    rounds,
    stages,
)


def names(count: int) -> list[str]:
    return [f"h{i}" for i in range(1, count + 1)]


def unordered(found: list[tuple[Pair, ...]]) -> list[frozenset[str]]:
    return [frozenset(pair) for pairs in found for pair in pairs]


@given(st.integers(2, ALL_PAIRS))
def test_all_pairs_once_in_as_few_rounds_as_there_can_be(count: int) -> None:
    found = rounds(names(count))
    assert len(found) == (count - 1 if count % 2 == 0 else count)
    assert all(len(pairs) == count // 2 for pairs in found)
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in found)
    pairs = unordered(found)
    assert len(pairs) == len(set(pairs)) and set(pairs) == {frozenset(p) for p in combinations(names(count), 2)}
    assert coverage_note(count) == ""


@given(st.integers(ALL_PAIRS + 1, 700))
def test_of_many_nodes_each_meets_enough_others_in_few_rounds(count: int) -> None:
    found = rounds(names(count))
    assert len(found) <= ENOUGH + 1
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in found)
    pairs = unordered(found)
    assert len(pairs) == len(set(pairs))
    met = dict.fromkeys(names(count), 0)
    for pair in pairs:
        for node in pair:
            met[node] += 1
    assert min(met.values()) >= ENOUGH
    assert str(count) in coverage_note(count) and str(ENOUGH) in coverage_note(count)


@given(st.lists(st.sampled_from(list(combinations(names(6), 2))), max_size=40))
def test_packed_keeps_all_and_is_disjoint(pairs: list[Pair]) -> None:
    found = packed(pairs)
    assert sorted(pair for items in found for pair in items) == sorted(pairs)
    assert all(len({node for pair in items for node in pair}) == 2 * len(items) for items in found)
    assert all(found)


@pytest.mark.parametrize(
    ("count", "wanted"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_stages_double(count: int, wanted: list[int]) -> None:
    assert [stage.size for stage in stages(names(count))] == wanted


@given(st.integers(1, 200))
def test_every_stage_covers_every_node_with_disjoint_groups(count: int) -> None:
    for stage in stages(names(count)):
        assert {node for group in stage.groups() for node in group} == set(names(count))
        for groups in stage.rounds:
            nodes = [node for group in groups for node in group]
            assert len(nodes) == len(set(nodes))
        if stage.size > 2:
            assert all(len(group) > 1 for group in stage.groups())
    last = stages(names(count))[-1]
    assert last.has_all_nodes and last.groups()[-1:] == last.groups()


def test_pairs_of_a_small_cluster_are_all_of_a_large_one_few() -> None:
    assert len(stages(names(STAGED_ALL_PAIRS))[1].groups()) == STAGED_ALL_PAIRS * (STAGED_ALL_PAIRS - 1) // 2
    assert 2 <= len(stages(names(64))[1].rounds) <= 3


def meaning(count: int, at: int, *failed: tuple[str, ...]) -> str:
    return stages(names(count))[at].meaning(failed)


def test_what_it_means() -> None:
    assert meaning(4, 0, ("h3",)).startswith("h3 fails alone: the trouble is inside that node")
    assert meaning(4, 0, ("h1",), ("h3",)).startswith("h1, h3 fail alone")
    assert meaning(4, 1, ("h1", "h3")) == (
        "every node passes alone, but h1–h3 fails: the link or the firewall between them, not your training code"
    )
    assert "h1–h3, h2–h4 fail: the links" in meaning(4, 1, ("h1", "h3"), ("h2", "h4"))
    assert "all nodes together fail" in meaning(4, 2, tuple(names(4)))
    assert "h1–h2–h3–h4 fails" in meaning(8, 2, ("h1", "h2", "h3", "h4"))
    assert "h1–h2–…–h8 (8 nodes) fails" in meaning(16, 3, tuple(names(8)))


def test_a_node_that_fails_with_all_its_pairs() -> None:
    pairs = [group for group in stages(names(4))[1].groups() if "h2" in group]
    assert "h2 fails with each of the 3 it was paired with" in meaning(4, 1, *pairs)
    assert "every pair fails" in meaning(4, 1, *stages(names(4))[1].groups())
    assert "h1–h2 fails: the link" in meaning(2, 1, ("h1", "h2"))
