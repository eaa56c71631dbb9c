"""Records become JSON and come back; what is none is refused with its place."""

import enum
import json
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.outcome import outcome

from allranks.protocol.codec import decode, decode_each, decode_parts, encode, omit_empty
from allranks.protocol.jsontext import DecodeError, read_json, write_json


class Kind(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Rank(NamedTuple):
    rank: int
    pid: Optional[int] = None
    words: Tuple[str, ...] = ()


@omit_empty("note")
class Message(NamedTuple):
    node: str
    ranks: Tuple[Rank, ...] = ()
    sizes: Mapping[int, float] = {}
    kind: Kind = Kind.GOOD
    level: Literal["quick", "full"] = "quick"
    note: str = ""
    from_: Union[int, str] = 0
    pair: Tuple[int, str] = (0, "")
    facts: object = None
    names: FrozenSet[str] = frozenset()
    flags: Sequence[bool] = ()


@omit_empty()
@dataclass(frozen=True)
class Document:
    first: str | None = None
    second: tuple[Message, ...] = ()
    third: dict[str, Rank] = field(default_factory=dict)


WHOLE = Message("h1", (Rank(0, 7, ("a", "b")), Rank(1)), {3: 1.5}, Kind.BAD, "full", "x", "y", (1, "z"),
                {"any": [1, None]}, frozenset({"p", "q"}), (True,))  # fmt: skip


def test_a_record_comes_back_as_it_was():
    document = Document("a", (WHOLE, Message("h2")), {"k": Rank(2)})
    text = write_json(encode(document))
    assert decode(Document, read_json(text, 10_000)) == document
    assert encode(Document()) == {}
    assert "note" not in encode(Message("h1"))
    assert encode(WHOLE)["from"] == "y"


def test_any_annotation_is_read_as_what_it_says():
    assert decode(List[Rank], [{"rank": 3}]) == [Rank(3)]
    assert decode(Dict[str, int], {"a": 1}) == {"a": 1}
    assert decode(Sequence[int], [1, 2]) == (1, 2)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "$.node: expected a value, got none"),
        ({"node": 5}, "$.node: expected a text, got 5"),
        ([], "$: expected an object, got []"),
        ({"node": "h", "ranks": [{"rank": 0}, {"rank": "abc"}]}, '$.ranks[1].rank: expected an integer, got "abc"'),
        ({"node": "h", "ranks": [{"rank": True}]}, "$.ranks[0].rank: expected an integer, got true"),
        ({"node": "h", "ranks": [{"rank": 2**63}]}, "$.ranks[0].rank: expected an integer, got 9223372036854775808"),
        ({"node": "h", "sizes": {"x": 1}}, '$.sizes.x: expected a number as its name, got "x"'),
        ({"node": "h", "sizes": {"²": 1}}, "$.sizes.²: expected a number as its name"),
        ({"node": "h", "sizes": {"1": "9"}}, '$.sizes.1: expected a number, got "9"'),
        ({"node": "h", "kind": "odd"}, '$.kind: expected one of good, bad, got "odd"'),
        ({"node": "h", "level": "deep"}, '$.level: expected one of quick, full, got "deep"'),
        ({"node": "h", "pair": [1]}, "$.pair: expected an array of 2, got [1]"),
        ({"node": "h", "from": None}, "$.from: expected a text, got null"),
        ({"node": "h", "names": "pq"}, '$.names: expected an array, got "pq"'),
        ({"node": "h", "flags": [1]}, "$.flags[0]: expected true or false, got 1"),
        ({"node": None}, "$.node: expected a text, got null"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(value, words):
    with pytest.raises(DecodeError) as caught:
        decode(Message, value)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70, b"NaN", b"1e400", b"-Infinity", b"1" * 41, b"1" * 5000, b"\xff",
     b"", b"{'a': 1}", b"[1" + b" " * 2000 + b"]"],
)  # fmt: skip
def test_no_text_that_python_would_take_or_choke_on_gets_in(text):
    with pytest.raises(DecodeError) as caught:
        read_json(text, 1000 if text.endswith(b" ]") else 200_000)
    assert len(str(caught.value)) < 400


def test_json_that_was_cut_off_is_not_called_too_deep():
    with pytest.raises(DecodeError, match=r"^expected JSON$"):
        read_json(b"[" + b'{"a": 1}, ' * 100)


def test_brackets_in_strings_and_many_shallow_ones_are_no_depth():
    value = {"a": ["[" * 200 + '\\"]'], "b": [[]] * 500}
    assert read_json(json.dumps(value).encode(), 100_000) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_any_json_is_a_record_or_a_decode_error(value):
    record = outcome(DecodeError, decode, Message, value)
    if isinstance(record, DecodeError):
        assert str(record).startswith("$")
    else:
        assert decode(Message, encode(record)) == record


@given(JSON)
def test_json_is_read_as_it_was_written(value):
    again = outcome(DecodeError, read_json, write_json(value), 1 << 20)
    if isinstance(again, DecodeError):
        assert "digits" in str(again)
    else:
        assert again == value


def test_what_does_not_fit_is_left_out_where_that_is_asked_for():
    assert decode_each(Rank, [{"rank": 1}, {"rank": "x"}, 3, {"rank": 2, "pid": 4}]) == [Rank(1), Rank(2, 4)]
    assert decode_each(Rank, None) == [] and decode_each(Rank, {"rank": 1}) == []
    parts = {"first": 3, "second": [{"node": "h1"}, {"node": 3}, 7], "third": [], "other": 1}
    assert decode_parts(Document, parts) == Document(second=(Message("h1"),))
    assert decode_parts(Document, None) == Document()
