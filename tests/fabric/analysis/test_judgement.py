"""Which node or link is at fault: plain cases, cases that mislead, and 800 simulated clusters."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign import examples
from tests.fabric.analysis.test_schedule import names
from tests.fabric.simulator import Cluster, Fault, accuracy, answer

from allranks.fabric.analysis.blame import explain
from allranks.fabric.analysis.heatmap import heatmap
from allranks.fabric.analysis.judgement import NO_FLOORS, TIMES, Judgement, judge, retest
from allranks.fabric.analysis.norms import Floors
from allranks.fabric.analysis.schedule import packed, rounds
from allranks.fabric.metric_rows import Measurement, Way
from allranks.findings import Finding

GOOD = Way(125e6, 100e-6, 400e-6)
SLOW = Way(6e6, 100e-6, 400e-6)
LATE = Way(80e6, 50e-3, 60e-3)


def measured(count: int, bad: dict[tuple[str, str], Way | str], good: Way = GOOD) -> list[Measurement]:
    """All pairs of quiet nodes; `bad` by (from, to), or (a, b): a reason for a dead link."""
    found = []
    for number, pairs in enumerate(rounds(names(count))):
        for a, b in pairs:
            dead = next((r for r in (bad.get((a, b)), bad.get((b, a))) if isinstance(r, str)), "")
            ways = [bad.get(pair, good) for pair in ((a, b), (b, a))]
            there, back = (way if isinstance(way, Way) else good for way in ways)
            found.append(Measurement(a, b, number, there, back, dead))
    return found


def both(pairs: Iterable[tuple[str, str]], way: Way | str) -> dict[tuple[str, str], Way | str]:
    return {pair: way for a, b in pairs for pair in ((a, b), (b, a))}


def steady(first: list[Measurement], floors: Floors = NO_FLOORS) -> Judgement:
    """The judgement where the re-test finds what the first pass found."""
    pairs = {frozenset(pair) for pair in retest(first, floors)}
    again = [m for m in first if {m.a, m.b} in pairs] * TIMES
    return judge(first, again, floors)


def only(judgement: Judgement) -> Finding:
    assert len(judgement.findings) == 1, [f.message for f in judgement.findings]
    return judgement.findings[0]


# -- plain cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 8, 9])
def test_nothing_is_at_fault(count: int) -> None:
    first = measured(count, {})
    assert retest(first) == [] and judge(first).findings == judge(first).remarks == []


@pytest.mark.parametrize("count", [3, 4, 5, 8])
@pytest.mark.parametrize(("way", "what"), [(SLOW, "slow"), (LATE, "slow"), ("timed out after 10 s", "dead")])
def test_a_node(count: int, way: Way | str, what: str) -> None:
    item = only(steady(measured(count, both([("h2", h) for h in names(count) if h != "h2"], way))))
    assert (item.id, item.status, item.where.node, item.where.peer) == (f"node-{what}", "fail", "h2", None)
    assert f"with {count - 1} of {count - 1} peers" in item.message
    assert "ssh h2 '" in item.remedy and f"--hosts {','.join(h for h in names(count) if h != 'h2')}" in item.remedy
    assert item.evidence and item.check == "pairs"


@pytest.mark.parametrize("count", [3, 4, 5, 8])
@pytest.mark.parametrize(("way", "what"), [(SLOW, "slow"), (LATE, "slow"), ("connection refused", "dead")])
def test_a_link(count: int, way: Way | str, what: str) -> None:
    item = only(steady(measured(count, both([("h1", "h3")], way))))
    assert (item.id, item.where.node, item.where.peer) == (f"link-{what}", "h1", "h3")
    assert "Both nodes pass with all others" in item.message
    assert "ssh h1 '" in item.remedy and "ssh h3 '" in item.remedy


def test_the_figures_and_the_cluster_s_median_are_in_the_message() -> None:
    assert only(steady(measured(8, both([("h1", "h3")], SLOW)))).message == (
        "the link h1–h3 is slow: 48 Mbit/s (the cluster's median is 1 Gbit/s). Both nodes pass with all others"
    )
    late = only(steady(measured(8, both([("h2", h) for h in names(8) if h != "h2"], LATE)))).message
    assert late.startswith("h2 is slow with 7 of 7 peers: round trip 50 ms (the cluster's median is 100 µs)")


def test_a_node_that_is_slow_one_way() -> None:
    others = [h for h in names(8) if h != "h5"]
    sending = only(steady(measured(8, {("h5", h): SLOW for h in others})))
    receiving = only(steady(measured(8, {(h, "h5"): SLOW for h in others})))
    assert sending.where.node == receiving.where.node == "h5"
    assert "48 Mbit/s sending" in sending.message and "48 Mbit/s receiving" in receiving.message
    assert "from h1" in only(steady(measured(8, {("h1", "h2"): SLOW}))).message


def test_losses_show_in_the_tail() -> None:
    lossy = Way(100e6, 100e-6, 205e-3)
    item = only(steady(measured(4, both([("h1", "h4")], lossy))))
    assert item.id == "link-slow" and "205 ms, as when packets are lost" in item.message


def test_with_two_nodes_only_the_link_can_be_named() -> None:
    item = only(steady(measured(2, {("h1", "h2"): SLOW})))
    assert (item.id, item.where.node, item.where.peer) == ("link-slow", "h1", "h2")
    assert "do not show which end" in item.message and "from h1" in item.message
    dead = only(steady(measured(2, {("h1", "h2"): "timed out"})))
    assert dead.id == "link-dead"
    quiet = measured(2, both([("h1", "h2")], SLOW))
    assert judge(quiet).findings == [], "nothing to compare with, and no floor was asked for"


def test_several_culprits() -> None:
    bad = both([(n, h) for n in ("h2", "h7") for h in names(8) if h != n], SLOW) | both([("h1", "h4")], "timed out")
    found = answer(steady(measured(8, bad)).findings)
    assert found == {("node-slow", "h2"), ("node-slow", "h7"), ("link-dead", "h1", "h4")}


def all_links(count: int, *slow_nodes: str) -> list[tuple[str, str]]:
    return [(node, other) for node in slow_nodes for other in names(count) if other != node]


@pytest.mark.parametrize(
    "way", [Way(42e6, 100e-6, 400e-6), Way(5e6, 50e-3, 60e-3), Way(25e6, 100e-6, 205e-3), "timed out"]
)
def test_the_link_between_two_bad_nodes_is_explained_by_them(way: Way | str) -> None:
    """The lower of two rates; delays that add up; losses that multiply; dead on both sides."""
    between = way
    if isinstance(way, Way) and way.latency == 50e-3:
        between = Way(2.5e6, 100e-3, 120e-3)
    elif isinstance(way, Way) and way.tail == 205e-3:
        between = Way(5e6, 100e-6, 410e-3)
    found = steady(measured(8, both(all_links(8, "h1", "h2"), way) | both([("h1", "h2")], between)))
    assert {item.where.peer for item in found.findings} == {None} and len(found.findings) == 2


def test_a_node_that_is_dead_with_some_and_slow_with_others_is_one_fault() -> None:
    dead = [("h1", "h2"), ("h1", "h5"), ("h1", "h8")]
    item = only(steady(measured(8, both(all_links(8, "h1"), SLOW) | both(dead, "timed out"))))
    assert (item.id, item.where.node) == ("node-slow", "h1") and "3 more are dead" in item.message


def test_nothing_passes_anywhere() -> None:
    item = only(steady(measured(5, both([(a, b) for a in names(5) for b in names(5) if a < b], "timed out"))))
    assert item.id == "network-dead" and item.where.nodes == tuple(item.where.nodes) and len(item.where.nodes) == 5


def test_half_the_rate_is_seen_in_a_quiet_cluster() -> None:
    half = Way(62e6, 100e-6, 400e-6)
    item = only(steady(measured(8, both([("h3", h) for h in names(8) if h != "h3"], half))))
    assert (item.id, item.where.node) == ("node-slow", "h3")


# -- floors ----------------------------------------------------------------------------------------


def test_floors() -> None:
    first = measured(4, {})
    assert steady(first, {"bandwidth": 100e6, "latency": 1e-3}).findings == []
    item = only(steady(first, {"bandwidth": 200e6}))
    assert item.id == "network-slow" and "asked for 1.6 Gbit/s" in item.message
    assert only(steady(measured(2, {}), {"latency": 50e-6})).id == "link-slow"
    a_bit = Way(110e6, 100e-6, 400e-6)
    item = only(steady(measured(4, both([("h1", "h2")], a_bit)), {"bandwidth": 120e6}))
    assert (item.where.node, item.where.peer) == ("h1", "h2")


# -- the re-test -----------------------------------------------------------------------------------


def test_one_noisy_sample_is_no_alarm() -> None:
    first = measured(8, both([("h1", "h3")], SLOW) | both([("h2", "h6")], "timed out"))
    pairs = retest(first)
    assert pairs.count(("h1", "h3")) == TIMES and pairs.count(("h2", "h6")) == TIMES
    again = [Measurement(a, b, 9, GOOD, GOOD) for a, b in pairs]
    found = judge(first, again)
    assert found.findings == [] and len(found.remarks) == 2 and "passed when measured again" in found.remarks[0]


def test_what_passed_at_first_is_not_blamed_for_being_a_control() -> None:
    first = measured(8, both([("h1", "h3")], SLOW))
    again = [Measurement(a, b, 9, SLOW, SLOW) for a, b in retest(first)]
    assert answer(judge(first, again).findings) == {("link-slow", "h1", "h3")}


def test_suspects_are_measured_against_nodes_that_passed() -> None:
    pairs = set(retest(measured(8, both([("h1", "h3")], SLOW))))
    assert any("h1" in p and "h3" not in p for p in pairs) and any("h3" in p and "h1" not in p for p in pairs)
    node = set(retest(measured(8, both([(n, h) for n in ("h1", "h2") for h in names(8) if h != n], SLOW))))
    assert all(len({"h1", "h2"} & set(pair)) == 1 for pair in node) and len(node) == 6


def test_a_suspect_that_was_not_measured_again_is_unknown() -> None:
    item = only(judge(measured(8, both([("h1", "h3")], SLOW))))
    assert item.status == "unknown" and "may be chance" in item.message


def test_a_node_whose_re_test_passes_is_not_blamed_for_the_rest() -> None:
    first = measured(16, both([("h2", h) for h in names(16) if h != "h2"], SLOW))
    again = [Measurement(a, b, 20, GOOD, GOOD) for a, b in retest(first)]
    assert judge(first, again).findings == []


# -- simulated clusters ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_accuracy_over_simulated_faults_and_as_many_clean_clusters(count: int) -> None:
    """Thresholds were frozen on seeds below 20 000 (8 hosts); these are others. Aim: 97 % right, no false alarm."""
    right, alarms, wrong = accuracy(range(50_000, 50_000 + count))
    assert right >= 0.98 * count and alarms <= 0.01 * count, wrong
    right, alarms, wrong = accuracy(range(60_000, 60_000 + count), clean=True)
    assert (right, alarms) == (count, 0), wrong


@pytest.mark.parametrize("count", [3, 4, 5])
def test_accuracy_with_few_nodes(count: int) -> None:
    right, _, wrong = accuracy(range(60), count)
    assert right >= 58, wrong
    assert accuracy(range(60), count, clean=True)[:2] == (60, 0)


@pytest.mark.parametrize("what", ["limit", "delay", "loss"])
def test_accuracy_with_two_nodes_of_one_fault(what: str) -> None:
    """The link between them is worse than their others and no fault of its own."""
    clusters = [Cluster(seed, names(8), [Fault(what, ("h1",)), Fault(what, ("h2",))]) for seed in range(30)]
    found = [answer(cluster.judged().findings) for cluster in clusters]
    assert sum(item == {("node-slow", "h1"), ("node-slow", "h2")} for item in found) >= 29


@settings(max_examples=examples(40))
@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(0.01, 100))
def test_order_and_unit_do_not_matter(seed: int, count: int, factor: float) -> None:
    cluster = Cluster(seed, names(count), [Fault("limit", ("h1",))])
    first = cluster.measure(rounds(cluster.nodes))
    again = cluster.measure(packed(retest(first)), len(first))

    def scaled(way: Way) -> Way:
        return Way(way.bandwidth * factor if way.bandwidth else None, way.latency, way.tail)

    turned = [Measurement(m.b, m.a, m.round, scaled(m.back), scaled(m.there), m.dead) for m in reversed(first)]
    redone = [Measurement(m.b, m.a, m.round, scaled(m.back), scaled(m.there), m.dead) for m in reversed(again)]
    assert answer(judge(first, again).findings) == answer(judge(turned, redone).findings)


@given(st.sets(st.sampled_from([(a, b) for a in names(7) for b in names(7) if a < b])))
def test_every_bad_cell_is_explained_once(bad: set[tuple[str, str]]) -> None:
    cells = [(a, b) for a in names(7) for b in names(7) if a < b]
    found = explain(cells, sorted(bad))
    assert sorted(cell for culprit in found for cell in culprit.cells) == sorted(bad)


# -- records, figures, heatmap ---------------------------------------------------------------------


def test_a_figure_that_is_missing_or_absurd_is_left_out() -> None:
    for way in (Way(), Way(0.0, 0.0, 0.0), Way(float("inf"), float("nan"), -1.0)):
        assert judge(measured(4, both([("h1", "h2")], way))).findings == []


def test_heatmap() -> None:
    judged = steady(measured(4, {("h1", "h3"): SLOW} | both([("h2", "h4")], "timed out")))
    text = heatmap(judged.cells, judged.norms, names(4))
    assert text.splitlines() == [
        "bandwidth, row sends to column, median 1 Gbit/s",
        "      1  2  3  4",
        "h1 1    ░░ ██ ░░",
        "h2 2 ░░    ░░ ××",
        "h3 3 ░░ ░░    ░░",
        "h4 4 ░░ ×× ░░   ",
        "░░ 70 % or more of the median   ██ less than 20 %   ×× dead",
    ]


def test_heatmap_of_many_shows_the_worst() -> None:
    first = measured(60, both([("h50", "h59")], SLOW))
    judged = steady(first)
    text = heatmap(judged.cells, judged.norms, names(60))
    assert "h50" in text and "h59" in text and "32 of 60 nodes" in text
