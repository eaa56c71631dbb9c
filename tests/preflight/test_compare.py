"""The judgement across nodes: who is odd against the majority, and how it is said."""

from types import SimpleNamespace

import pytest

from allranks.preflight.check import read_check
from allranks.preflight.compare import by_odd_nodes, differences, some, split
from allranks.preflight.typed_facts import Request


def nodes(*values: object) -> dict[str, object]:
    return {f"h{i}": value for i, value in enumerate(values)}


def said(what: str, *values: object) -> list[str]:
    return [d.message for d in differences(what, nodes(*values))]


@pytest.mark.parametrize("values", [(), ("a",), ("a", "a"), (None, None), ("a", "a", "a")])
def test_where_all_agree_nothing_is_said(values: tuple[object, ...]) -> None:
    assert split(nodes(*values)) == []
    assert said("torch", *values) == []


def test_the_odd_node_is_named_with_both_values() -> None:
    assert said("torch", "2.13.0", "2.13.0", "2.13.0", "2.6.0") == ["h3 has torch 2.6.0 (the other 3 have 2.13.0)"]
    found = differences("torch", nodes("2.6.0", "2.13.0", "2.13.0"))
    assert [(d.nodes, d.value, d.norm) for d in found] == [(["h0"], "2.6.0", "2.13.0")]


def test_several_odd_nodes_of_one_value() -> None:
    assert said("torch", "1", "2", "2", "1", "2") == ["h0 and h3 have torch 1 (the other 3 have 2)"]


def test_several_odd_values() -> None:
    assert said("torch", "1", "2", "2", "3", "2") == [
        "h0 has torch 1 (3 of 5 nodes have 2)", "h3 has torch 3 (3 of 5 nodes have 2)"
    ]  # fmt: skip


def test_nothing_is_a_value_too() -> None:
    assert said("torch", None, "2", "2") == ["h0 has no torch (the other 2 have 2)"]
    assert said("apex", "0.1", None, None) == ["h0 has apex 0.1 (the other 2 have none)"]


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
    (message,) = said("torch", *range(40))
    assert message.endswith("7 (h7) and 32 more")


def test_verb_and_form_of_the_value() -> None:
    found = differences("commit", nodes("abcdef", "abcdef", "123456"), lambda v: str(v)[:3], "is at", "are at")
    assert [d.message for d in found] == ["h2 is at commit 123 (the other 2 are at abc)"]


def test_what_stands_behind_the_verb_may_hold_the_value_in_its_middle() -> None:
    odd = differences("CPUs", nodes(8, 16, 16), one="may use", many="may use", phrase="{value} {what}")
    assert [d.message for d in odd] == ["h0 may use 8 CPUs (the other 2 may use 16)"]
    assert said("CPUs", 8, 16) == ["h0 and h1 differ in CPUs: 8 and 16"]


def test_a_value_that_is_absent_has_the_plain_verb() -> None:
    odd = differences("commit", nodes(None, "a", "a"), one="is at", many="are at")
    assert [d.message for d in odd] == ["h0 has no commit (the other 2 are at a)"]


def test_differences_of_the_same_nodes_stand_together() -> None:
    versions = {"h0": {"a": "1", "b": "1"}, "h1": {"a": "2", "b": "2", "c": "1"}, "h2": {"a": "2", "b": "2"}}
    odds = by_odd_nodes(["a", "b", "c"], versions)
    assert [[(d.what, d.nodes, d.value, d.norm) for d in group] for group in odds] == [
        [("a", ["h0"], "1", "2"), ("b", ["h0"], "1", "2")],
        [("c", ["h1"], "1", None)],
    ]


def test_target_is_what_the_user_gave() -> None:
    assert Request({"target": "--slurm"}).target == "--slurm"
    assert Request({}).target == "--hosts HOSTS"


def test_a_module_without_a_judge_is_refused() -> None:
    with pytest.raises(ValueError, match="judge"):
        read_check(SimpleNamespace(ID="driver", GROUP="host", LEVEL="quick"))


def test_a_sentence_about_a_part_of_the_nodes() -> None:
    odd = differences("speed of eth0", nodes(10, 100, 100), str, "runs at", "run at", subject="eth0")
    assert [d.message for d in odd] == ["eth0 on h0 runs at 10 (the other 2 run at 100)"]


def test_lists() -> None:
    assert [some(["a", "b"], 2), some(["a", "b", "c"], 2)] == ["a, b", "a, b and 1 more"]
