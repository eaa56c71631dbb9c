"""Reading events out of text that comes in pieces; sets of moments."""

import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.overlap.stream import BrokenTrace, Reader
from allranks.overlap.trace import Spans, intersection, union

DOCUMENT: dict[str, Any] = {
    "schemaVersion": 1, "distributedInfo": {"rank": 3, "ranks": [0, 1]}, "empty": [], "text": "a \"quoted\" } ] text",
    "traceEvents": [{"ts": 1.25, "args": {"deep": [{"x": [1, 2]}]}}, {"name": "ü\n"}, {}, 7, {"ts": 123456}],
    "after": -12.5e3, "traceName": "/tmp/x",
}  # fmt: skip


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10000])
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_of_any_size_give_the_same_events(size: int, indent: int | None) -> None:
    reader = Reader(cut(json.dumps(DOCUMENT, indent=indent), size))
    events = [e for e in DOCUMENT["traceEvents"] if isinstance(e, dict)]
    assert list(reader.events()) == events
    assert reader.head == {k: v for k, v in DOCUMENT.items() if k != "traceEvents"}


def test_a_bare_list_is_a_trace_too() -> None:
    assert list(Reader(cut('[ {"ts": 1} ,\n{"ts": 2}]', 5)).events()) == [{"ts": 1}, {"ts": 2}]


def test_what_stands_before_the_break_is_read() -> None:
    text = json.dumps(DOCUMENT)
    got: list[object] = []
    with pytest.raises(BrokenTrace, match="ends before"):
        got.extend(Reader(cut(text[: text.index('{"ts": 123456')], 11)).events())
    assert got == [e for e in DOCUMENT["traceEvents"] if isinstance(e, dict)][:3]


@pytest.mark.parametrize("text", ["", "   ", "hello", '"text"', '{"traceEvents": [{"ts": }]}', '{"a" 1}', "{", "["])
def test_what_is_no_trace_is_said_so(text: str) -> None:
    with pytest.raises(BrokenTrace):
        list(Reader([text]).events())


def test_memory_does_not_grow_with_the_trace() -> None:
    one = json.dumps({"ph": "X", "name": "aten::mm", "ts": 1.5, "dur": 2.5, "args": {"dims": [[64, 64]] * 20}}) + ",\n"
    count = 10_000

    def pieces():
        yield '{"traceEvents": ['
        for _ in range(count // 100):
            yield one * 100
        yield '{"ph": "M"}]}'

    tracemalloc.start()
    try:
        assert sum(1 for _ in Reader(pieces()).events()) == count + 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(one) * count > 2e6
    assert peak < 4e5


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=12)


def moments(pairs) -> set[int]:
    return {at for start, end in pairs for at in range(int(start), int(end))}


@given(INTERVALS)
@settings(max_examples=examples(50))
def test_a_union_holds_every_moment_once(pairs) -> None:
    found = Spans(pairs).intervals()
    assert moments(found) == moments(pairs)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(INTERVALS, INTERVALS, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=examples(50))
def test_cover_counts_moments(one, other, start, end) -> None:
    first, second = Spans(one), Spans(other)
    inside = moments([(start, end)])
    assert first.within(start, end) == len(moments(one) & inside)
    assert intersection(first, second).within(start, end) == len(moments(one) & moments(other) & inside)
    assert moments(union((first, second)).intervals()) == moments(one) | moments(other)


def test_many_intervals_out_of_order_are_merged_on_the_way(monkeypatch) -> None:
    monkeypatch.setattr("allranks.overlap.trace.COMPACT", 10)
    spans = Spans()
    for at in range(5000):
        spans.add(at % 20, at % 20 + 0.5)
    assert len(spans.starts) <= 41
    assert len(spans.intervals()) == 20
