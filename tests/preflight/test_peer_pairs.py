"""Who tries whom, and who is to blame for what failed."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fabric.analysis.test_schedule import names

from allranks.preflight.peer_pairs import ALL_PAIRS, FEWER, blame, covered, is_lossy, loss_of, peers_of
from allranks.protocol.messages import PeerResult


@pytest.mark.parametrize("count", [1, 2, 3, 4, ALL_PAIRS])
def test_all_pairs_of_few_nodes(count: int) -> None:
    plan = peers_of(names(count))
    assert {(a, b) for a, peers in plan.items() for b in peers} == set(permutations(names(count), 2))
    assert covered(count) == ""


@given(st.integers(ALL_PAIRS + 1, 400))
def test_of_many_every_node_tries_and_is_tried(count: int) -> None:
    plan = peers_of(names(count))
    tried_by: dict[str, set[str]] = {name: set() for name in plan}
    for node, peers in plan.items():
        assert node not in peers and len(set(peers)) == len(peers) == FEWER
        for peer in peers:
            tried_by[peer].add(node)
    assert all(len(found) == FEWER for found in tried_by.values())
    assert all(len(tried_by[n] | set(plan[n])) >= 3 for n in plan)
    assert f"each of {count} nodes" in covered(count)


def blamed(count: int, bad: set[tuple[str, str]]) -> set[tuple[str, str, tuple[str, ...]]]:
    pairs = {pair: {"bad": pair in bad} for pair in permutations(names(count), 2)}
    found = blame(pairs, lambda pair, result: bool(result["bad"]))
    assert {pair for item in found for pair in item.pairs} == bad, "every bad pair is explained, and no other"
    return {(item.kind, item.node, item.others) for item in found}


@given(st.sets(st.sampled_from(sorted(permutations(names(5), 2)))))
def test_every_bad_pair_is_explained(bad: set[tuple[str, str]]) -> None:
    blamed(5, bad)


def test_loss_is_of_what_was_counted() -> None:
    assert loss_of(PeerResult(sent=100, arrived=70)) == pytest.approx(0.3)
    assert loss_of(PeerResult(sent=100)) == loss_of(PeerResult()) == 0.0
    pairs = {("a", "b"): PeerResult(sent=300, arrived=299), ("b", "a"): PeerResult(sent=300, arrived=300)}
    assert not is_lossy(pairs, ("a", "b"))
    pairs[("b", "a")] = PeerResult(sent=300, arrived=280)
    assert is_lossy(pairs, ("a", "b")), "the other way counts: answers come by it"
