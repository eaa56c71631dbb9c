"""What ranks note of their calls at their end, by the runner's own code, and what is read of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import allranks.agent.runner_recorder as recorder
from allranks.diagnose.candidate import Candidate
from allranks.diagnose.hangs.compared import MOST_CALLS, odd_call, read_called
from allranks.protocol.foreign import CALL_KINDS, CalledGroup, ErrorCall, clean_called

ALL_REDUCE = ("gloo:all_reduce", 64, "Float")
BROADCAST = ("gloo:broadcast", 64, "Float")
AS_INTEGERS = ("gloo:broadcast", 64, "Int")


def noted(calls: dict[int, tuple[str, int, str]], group: str = "1/gloo/0/0-3-a") -> tuple[CalledGroup, ...]:
    """A rank's note, through the file and the agent's check of it."""
    return clean_called(json.loads(json.dumps([dict(recorder.shortened(calls), group=group)])))


def steps(last: int, **at: tuple[str, int, str]) -> dict[int, tuple[str, int, str]]:
    calls = dict.fromkeys(range(1, last + 1), ALL_REDUCE)
    return {**calls, **{int(name.removeprefix("number_")): kind for name, kind in at.items()}}


def compared(*ranks: tuple[CalledGroup, ...]) -> Candidate | None:
    return odd_call(read_called(dict(enumerate(ranks))))


def test_the_rank_with_another_type_is_named_with_it() -> None:
    alike = noted(steps(2000, number_700=BROADCAST))
    odd = compared(alike, alike, noted(steps(2000, number_700=AS_INTEGERS)), alike)
    assert odd is not None and odd.culprits == {2} and odd.cause == "collective-shape-mismatch"
    assert odd.message == (
        "ranks 0, 1 and 3 call broadcast #700 of 64 Float elements and "
        "rank 2 calls broadcast #700 of 64 Int elements"
    )  # fmt: skip


def test_ranks_that_called_alike_or_less_are_not_named() -> None:
    alike = noted(steps(2000, number_700=BROADCAST))
    assert compared(alike, alike, alike) is None
    assert compared(alike, noted(steps(1500, number_700=BROADCAST))) is None, "one ended earlier"
    late = {number: kind for number, kind in steps(2000, number_700=BROADCAST).items() if number > 900}
    assert compared(alike, noted(late)) is None, "its recorder does not reach back as far"
    gap = {number: kind for number, kind in steps(2000, number_700=BROADCAST).items() if number != 800}
    assert compared(alike, noted(gap)) is None, "its recorder lacks one"


def test_groups_of_one_name_are_kept_apart() -> None:
    """Pipeline stages make groups of their own, and a group that is made again counts from one again."""
    assert compared(noted(steps(9), "1/gloo/2/0-1-a"), noted({3: BROADCAST}, "1/gloo/2/2-3-b")) is None
    assert compared(noted(steps(9), "1/gloo/0/0-3-a"), noted({3: BROADCAST}, "2/gloo/0/0-3-a")) is None


def test_every_call_comes_back_as_it_was() -> None:
    chance = random.Random(7)
    calls = {number: (f"gloo:{chance.choice('abc')}", chance.randrange(9), "Float") for number in range(50, 3000)}
    of_rank = read_called({0: noted(calls), 1: noted(steps(3))})[0]
    group = "1/gloo/0/0-3-a"
    assert of_rank == [ErrorCall(group, number, *kind) for number, kind in calls.items()]


def test_a_note_is_short() -> None:
    """Two thousand steps of five collectives each."""
    calls = {number: ("gloo:all_reduce", 1000 + number % 5, "Float") for number in range(1, 2001)}
    assert len(json.dumps(recorder.shortened(calls))) < 1000


def test_what_is_kept_is_bounded() -> None:
    many = noted({number: ("gloo:x", number, "Float") for number in range(1, 9000)})
    assert len(many[0].kinds) == CALL_KINDS
    assert [call.seq for call in read_called({0: many, 1: noted(steps(3))})[0]] == list(range(9000 - CALL_KINDS, 9000))
    long = noted(dict.fromkeys(range(1, 9000), ALL_REDUCE))
    assert len(read_called({0: long, 1: noted(steps(3))})[0]) == MOST_CALLS


@pytest.mark.parametrize("sequence", ["", "?", "eJw=", "AAAA", "x" * 5000, "\u00e9"])
def test_a_note_that_cannot_be_read_says_nothing(sequence: str) -> None:
    broken = clean_called([{"group": "1/gloo/0/0-3-a", "first": 1, "kinds": [], "sequence": sequence}])
    assert compared(broken, noted(steps(3)), noted(steps(4))) is None


def test_another_form_is_left_out() -> None:
    for value in (None, 7, {}, [7], [{"group": 3}], [{"kinds": [[1, 2, 3]]}]):
        made: Any = value
        assert clean_called(made) == ()


def test_a_note_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "error.json.calls"
    recorder.note(str(path), [dict(recorder.shortened(steps(3)), group="g")])
    (group,) = clean_called(json.loads(path.read_text()))
    assert (group.group, group.first, len(group.kinds)) == ("g", 1, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
