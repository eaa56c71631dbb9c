"""The judgement across nodes: who is odd against the majority, and how it is said."""

import pytest

from allranks.preflight.compare import by_odd_nodes, differences, split


def nodes(*values: object) -> dict[str, object]:
    return {f"h{i}": value for i, value in enumerate(values)}


@pytest.mark.parametrize("values", [(), ("a",), ("a", "a"), (None, None), ("a", "a", "a")])
def test_where_all_agree_nothing_is_said(values: tuple[object, ...]) -> None:
    assert split(nodes(*values)) == []
    assert differences("torch", nodes(*values)) == []


MAY_USE = {"one": "may use", "many": "may use", "phrase": "{value} {what}"}
IS_AT = {"one": "is at", "many": "are at"}
RUNS_AT = {"one": "runs at", "many": "run at", "subject": "eth0"}


@pytest.mark.parametrize(
    ("values", "words", "messages"),
    [
        (("2.13", "2.13", "2.13", "2.6"), {}, ["h3 has X 2.6 (the other 3 have 2.13)"]),
        (("1", "2", "2", "1", "2"), {}, ["h0 and h3 have X 1 (the other 3 have 2)"]),
        (("1", "2", "2", "3", "2"), {}, ["h0 has X 1 (3 of 5 nodes have 2)", "h3 has X 3 (3 of 5 nodes have 2)"]),
        ((None, "2", "2"), {}, ["h0 has no X (the other 2 have 2)"]),
        (("0.1", None, None), {}, ["h0 has X 0.1 (the other 2 have none)"]),
        (("a", "a", "1"), IS_AT, ["h2 is at X 1 (the other 2 are at a)"]),
        ((None, "a", "a"), IS_AT, ["h0 has no X (the other 2 are at a)"]),
        ((8, 16, 16), MAY_USE, ["h0 may use 8 X (the other 2 may use 16)"]),
        ((10, 100, 100), RUNS_AT, ["eth0 on h0 runs at 10 (the other 2 run at 100)"]),
    ],
)
def test_the_odd_nodes_are_named_with_both_values(
    values: tuple[object, ...], words: dict[str, str], messages: list[str]
) -> None:
    assert [odd.message for odd in differences("X", nodes(*values), **words)] == messages  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("1", "2"), "h0 and h1 differ in torch: 1 and 2"),
        ((None, "2"), "h0 and h1 differ in torch: none and 2"),
        (("1", "2", "3"), "h0, h1 and h2 differ in torch: 1, 2 and 3"),
        (("1", "1", "2", "2"), "no majority for torch: 1 (h0 and h1) and 2 (h2 and h3)"),
        (("1", "1", "2", "3"), "no majority for torch: 1 (h0 and h1), 2 (h2) and 3 (h3)"),
    ],
)
def test_without_a_majority_all_values_are_said(values: tuple[object, ...], message: str) -> None:
    (found,) = differences("torch", nodes(*values))
    assert found.message == message
    assert (found.nodes, found.norm) == (list(nodes(*values)), None)
    assert [odd.fine for odd in split(nodes(*values))] == [[]]


def test_very_many_values_are_cut() -> None:
    (found,) = differences("torch", nodes(*range(40)))
    assert found.message.endswith("7 (h7) and 32 more")


def test_differences_of_the_same_nodes_stand_together() -> None:
    versions = {"h0": {"a": "1", "b": "1"}, "h1": {"a": "2", "b": "2", "c": "1"}, "h2": {"a": "2", "b": "2"}}
    odds = by_odd_nodes(["a", "b", "c"], versions)
    assert [[(d.what, d.nodes, d.value, d.norm) for d in group] for group in odds] == [
        [("a", ["h0"], "1", "2"), ("b", ["h0"], "1", "2")],
        [("c", ["h1"], "1", None)],
    ]
