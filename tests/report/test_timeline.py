"""States of nodes and ranks from events, the axis, and what is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples
from tests.run_directories import T, event, events

from allranks.findings import Where
from allranks.protocol.run_facts import Fact, NodeReplaced, Stamped, read_line
from allranks.report.page import render
from allranks.report.timeline import Timeline, choose_rows, timeline
from allranks.report.timeplot import LEFT, WIDTH, Scale, TimelinePlot, timeline_plot
from allranks.runs.documents import NodeEntry, NodeStatus, RankStatus, RunDocument, StatusDocument

NODES = {"h1": [0, 1], "h2": [2, 3]}

NOWHERE = Where()  # no rank is at fault


def fold(
    told: Iterable[dict[str, Any] | Stamped[Fact]], nodes: Mapping[str, Sequence[int]], aliases: Mapping[str, str]
) -> Timeline:
    """A timeline of lines as they stand in events.jsonl, or of facts."""
    facts = (read_line(one) if isinstance(one, dict) else one for one in told)
    names = {name: address for address, name in aliases.items()}
    run = RunDocument(nodes=tuple(NodeEntry(name, address=names.get(name)) for name in nodes))
    placed = [NodeStatus(name, ranks=tuple(map(RankStatus, ranks))) for name, ranks in nodes.items()]
    return timeline((stamped for stamped in facts if stamped is not None), run, StatusDocument(nodes=tuple(placed)))


def plot_of(line: Timeline, culprit: Where = NOWHERE) -> TimelinePlot:
    plot = timeline_plot(line, culprit)
    assert plot is not None
    return plot


def states(line: Timeline, name: str | int) -> list[tuple[str, float, float]]:
    [row] = [r for r in line.rows if (r.rank if isinstance(name, int) else r.rank is None and r.node) == name]
    return [(s.state, round(s.start - T, 3), round(s.end - T, 3)) for s in row.spans]


def test_nodes_and_ranks_of_a_run_that_fails() -> None:
    line = fold(events(NODES), NODES, {})
    assert [(r.node, r.rank) for r in line.rows] == [
        ("h1", None), ("h1", 0), ("h1", 1), ("h2", None), ("h2", 2), ("h2", 3),
    ]  # fmt: skip
    assert states(line, "h1") == [
        ("connecting", 0.1, 0.6), ("ready", 0.6, 1.0), ("rendezvous", 1.0, 1.2), ("running", 1.2, 10.0),
    ]  # fmt: skip
    assert states(line, 1) == [("started", 1.2, 2.0), ("initialised", 2.0, 9.0)]
    assert states(line, 0) == [("started", 1.2, 2.0), ("initialised", 2.0, 10.0)]
    assert {r.rank: [m.kind for m in r.moments] for r in line.rows if r.rank is not None} == {
        0: ["ended"], 1: ["failed"], 2: ["ended"], 3: ["ended"],
    }  # fmt: skip
    assert [(m.text, round(m.t - T, 2)) for m in line.moments] == [
        ("master reached", 1.1), ("all initialised", 2.0), ("first step", 3.0), ("attempt 0 failed", 10.0),
    ]  # fmt: skip


def test_every_node_that_gave_its_place_is_a_moment_of_the_run() -> None:
    told = [event(0, "attempt-start", attempt=1), Stamped("h1", T + 2, 1, NodeReplaced("h4"))]
    assert [(m.kind, m.text, m.t - T) for m in fold(told, NODES, {}).moments][1:] == [
        ("node-replaced", "node replaced", 2.0)
    ]


def test_silent_and_lost_nodes_attempts_and_a_rank_that_never_started() -> None:
    told = [
        event(0, "attempt-start", attempt=0), event(0.1, "node-connecting", node="10.0.0.1"),
        event(1, "node-ready", node="h1"), event(2, "rank-started", node="h1", rank=0),
        event(5, "node-silent", node="h1"), event(6, "node-back", node="h1"), event(7, "node-silent", node="h1"),
        event(9, "node-lost", node="h1"), event(10, "attempt-end", attempt=0, outcome="failed"),
        event(11, "attempt-start", attempt=1), event(12, "rank-started", node="h1", rank=0, attempt=1),
        event(12, "rank-exit", node="h1", rank=0, attempt=1, code=0, expected=False),
    ]  # fmt: skip
    line = fold(told, {"h1": [0, 1]}, {"10.0.0.1": "h1"})
    assert states(line, "h1")[:6] == [("connecting", 0.1, 1), ("ready", 1, 2), ("running", 2, 5), ("silent", 5, 6),
                                      ("running", 6, 7), ("silent", 7, 9)]  # fmt: skip
    assert states(line, "h1")[6] == ("lost", 9, 10)
    assert states(line, 0) == [("started", 2, 10), ("started", 12, 12)]  # the second came and went at once
    assert states(line, 1) == []
    assert [m.text for m in line.moments] == ["attempt 0 failed", "attempt 1"]
    plot = plot_of(line, Where(rank=1))
    drawn = ElementTree.fromstring(render("timeline.html", plot=plot))
    titles = [t.text for t in drawn.iter("title")]
    assert "rank 1 never started" in titles and plot.rows_left_out == 0
    assert "rank 0 ended with code 0, +12.0 s" in titles


def test_many_rows_are_chosen_from() -> None:
    nodes = {f"n{i:03d}": [2 * i, 2 * i + 1] for i in range(200)}
    line = fold(events(nodes, failing=301), nodes, {})
    rows, left_out = choose_rows(line, Where(rank=301), 100)
    assert len(rows) == 100 and left_out == 500
    assert 301 in [r.rank for r in rows]
    plot = plot_of(line, Where(rank=301))
    assert plot.rows_left_out == 600 - 160 and "rank 301" in render("timeline.html", plot=plot)


def test_the_axis_is_linear_for_short_runs_and_gives_long_gaps_less_room() -> None:
    short = Scale([0, 1, 10])
    assert (short.at(0), short.at(5), short.at(10)) == (LEFT, LEFT + WIDTH / 2, LEFT + WIDTH) and short.gaps == []
    long = Scale([0, 1, 2, 36_000, 36_001])
    assert long.gaps == [(2, 36_000)]
    assert long.at(2) - long.at(1) > 15 and long.at(36_001) == LEFT + WIDTH
    assert long.at(-5) == LEFT and long.at(10**9) == LEFT + WIDTH
    assert Scale([]).at(3) >= LEFT and Scale([5.0]).at(5.0) == LEFT


@settings(max_examples=examples(40))
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30))
def test_the_axis_never_goes_back(times: list[float]) -> None:
    scale = Scale(times)
    places = [scale.at(t) for t in sorted(times)]
    assert places == sorted(places) and all(LEFT <= p <= LEFT + WIDTH + 1e-6 for p in places)


JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3), max_leaves=3)  # fmt: skip
MORE = {"node-silent", "node-back", "node-lost", "node-clean", "hang", "other"}
NAMES = sorted({e["event"] for e in events(NODES)} | MORE)


@settings(max_examples=examples(60))
@given(st.lists(st.fixed_dictionaries({"event": st.sampled_from(NAMES), "t": JUNK | st.floats(T, T + 99)},
       optional={k: JUNK | st.sampled_from(["h1", 0, 1]) for k in
                 ("node", "rank", "attempt", "code", "signal", "left", "seconds", "reason", "outcome", "expected")}),
       max_size=12))  # fmt: skip
def test_whatever_the_events_say_a_plot_is_well_formed(told: list[dict[str, Any]]) -> None:
    svg = render("timeline.html", plot=plot_of(fold(told, {"h1": [0]}, {})))
    text = "".join(c if c.isprintable() else "?" for c in svg.replace("\n", " "))
    assert ElementTree.fromstring(text).tag == "svg"


def test_names_are_escaped_and_cut() -> None:
    evil = '<script>alert(1)</script>"' + "x" * 300
    svg = render("timeline.html", plot=plot_of(fold(events({evil: [0, 1]}), {evil: [0, 1]}, {})))
    ElementTree.fromstring(svg)
    assert "<script" not in svg and len(svg) < 20_000
