"""The screen of `allranks top`: what it shows in how much room."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.facts import fact

from allranks.findings import Finding, Verdict
from allranks.protocol.samples import NodeUsage
from allranks.report.nodetable import grouped, table_lines
from allranks.report.terminal import shown_length
from allranks.report.topview import LATE, ON_TIME, UNKNOWN, VERY_LATE, TopSnapshot, cell_of, grid_lines, top_lines
from allranks.runs.documents import Master, NodeStatus, RankStatus

T = 1_795_000_000.0
EVENTS = [fact({"event": "note", "t": T, "message": f"remark {number}"}) for number in range(30)]


def rank(number: int, **more: Any) -> RankStatus:
    return RankStatus(**{"rank": number, "state": "initialised", "step": 40, "rate": 2.0, "last_output": T, **more})


def nodes(count: int, each: int) -> tuple[NodeStatus, ...]:
    made = []
    for number in range(count):
        ranks = tuple(rank(number * each + local) for local in range(each))
        made.append(NodeStatus(f"h{number}", number, None, "running", ranks))
    return tuple(made)


def snapshot(places: tuple[NodeStatus, ...], **more: Any) -> TopSnapshot:
    given = {
        "run": "pretrain-1", "directory": "runs/pretrain-1", "state": "running", "t": T, "attempt": 1,
        "elapsed": 65.0, "loss": 0.125, "goodput": 0.914,
        "master": Master("10.0.0.1", 29500), "world_size": sum(len(node.ranks) for node in places), "verdict": None,
        "warnings": (), "nodes": places, **more,
    }  # fmt: skip
    return TopSnapshot(**given)


def test_a_run_at_a_glance() -> None:
    warning = "rank 5 on h1 arrives 180 ms late at every all_reduce since step 400"
    lines = top_lines(snapshot(nodes(2, 4), warnings=(warning,)), EVENTS, 100, 24, footer="q ends this view")
    assert lines[0] == "pretrain-1  running  attempt 1  8 ranks on 2 nodes  master 10.0.0.1:29500"
    assert lines[1] == "step 40  2.00 steps/s  loss 0.125  after 1 min 5 s, goodput 91 %"
    assert lines[2] == f"warning: {warning}"
    assert "0 ▪▪▪▪ ▪▪▪▪" in lines
    assert [line.split()[0] for line in lines if re.match("(h\\d|total) ", line)] == ["h0", "h1", "total"]
    assert lines[-1] == "q ends this view"
    assert lines[-2].endswith("note: remark 29")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60), (20, 5)])
@pytest.mark.parametrize(("count", "each"), [(1, 1), (32, 8), (250, 8), (1, 500), (0, 0)])
@pytest.mark.parametrize("colour", [False, True])
def test_it_fits_every_window(width: int, height: int, count: int, each: int, colour: bool) -> None:
    full = snapshot(
        nodes(count, each), warnings=("w" * 300, "x " * 300), verdict=Verdict(Finding(message="m" * 500), "c")
    )
    lines = top_lines(full, EVENTS, width, height, colour, footer="q ends this view, the run goes on")
    assert len(lines) <= height
    assert max(map(shown_length, lines)) <= width


def test_256_ranks_have_a_cell_each_and_2000_one_a_node() -> None:
    lines = grid_lines(nodes(32, 8), 80, 8, colour=False)
    assert "".join(lines[1:]).count("▪") == 256
    lines = grid_lines(nodes(250, 8), 80, 8, colour=False)
    assert lines[0].startswith("nodes, each with its worst rank")
    assert "".join(lines[1:]).count("▪") == 250


def test_of_too_many_nodes_those_with_the_worst_ranks_are_shown() -> None:
    places = list(nodes(100, 2))
    failed = rank(150, state="failed")
    places[75] = NodeStatus("h75", 75, None, "running", (failed, rank(151)))
    shown = top_lines(snapshot(tuple(places)), [], 100, 24)
    assert any(line.startswith("h75 ") for line in shown)
    assert any(re.fullmatch(r"… and \d+ more nodes", line) for line in shown)


@pytest.mark.parametrize(
    ("lateness", "rate", "cell"),
    [(None, 2.0, UNKNOWN), (0.0, 2.0, ON_TIME), (0.02, 2.0, ON_TIME), (0.03, 2.0, LATE), (0.1, 2.0, VERY_LATE),
     (0.01, None, ON_TIME), (0.02, None, LATE), (0.2, None, VERY_LATE)],
)  # fmt: skip
def test_lateness_is_measured_by_the_step(lateness: float | None, rate: float | None, cell: object) -> None:
    assert cell_of(rank(0, rate=rate, lateness_s=lateness)) == cell


def test_the_machines_have_columns_where_they_are_known() -> None:
    first, second = nodes(2, 2)
    usage = NodeUsage(T, 5.0, 8, cpu_used=6.31, memory_used=3 << 30, memory_total=4 << 30, received=1e6, sent=2e6)
    late = replace(first.ranks[1], lateness_s=0.18)
    lines = top_lines(snapshot((replace(first, usage=usage, ranks=(first.ranks[0], late)), second)), [], 140, 24)
    (head,) = [line for line in lines if line.startswith("node ")]
    (known,) = [line for line in lines if line.startswith("h0 ")]
    assert re.split(r"  +", head)[-4:] == ["comes last", "cores used", "memory used", "in and out"]
    assert known.split("ago")[1].split() == ["1,", "180", "ms", "6.3", "of", "8", "75", "%", "3", "MB/s"]
    assert "cores" not in "\n".join(top_lines(snapshot((first, second)), [], 140, 24))


def test_words_of_others_stay_in_their_line() -> None:
    hostile = "boom \x1b]0;title\x07 \x1b[2J\nsecond"
    node = NodeStatus("h\x1b[1m1\x9b", 0, None, "running", (rank(0),))
    lines = top_lines(
        snapshot((node,), run="r\x07un", warnings=(hostile,), verdict=Verdict(Finding(message=hostile), "c")),
        [fact({"event": "note", "t": T, "message": hostile})], 100, 30,
    )  # fmt: skip
    assert not set("\x1b\x07\x9b\n") & set("".join(lines))


@pytest.mark.parametrize("count", [300, 4096])
def test_of_thousands_of_nodes_each_cell_is_the_worst_of_several(count: int) -> None:
    places = list(nodes(count, 8))
    places[count // 2] = replace(places[count // 2], ranks=(rank(0, state="failed"),))
    lines = grid_lines(places, 80, 8, colour=False)
    assert len(lines) <= 8 and "more line" not in lines[-1]
    assert "".join(lines[1:]).count("✗") == 1


def test_nodes_that_are_alike_have_one_line_where_there_are_too_many() -> None:
    places = list(nodes(4096, 8))
    places[7] = replace(places[7], state="silent")
    places[9] = replace(places[9], ranks=(rank(72, state="failed"), *places[9].ranks[1:]))
    lines = table_lines(snapshot(tuple(places)), T, 120, most=20)
    assert [line.split()[0] for line in lines[2:]] == ["h7", "h9", "4,094", "total"]
    assert "4,094 nodes  running     32752 initialised" in lines[4]
    assert all(len(group) == 1 for group in grouped(places[:20], 20))
    states = [replace(node, state=f"s{number}") for number, node in enumerate(places[:100])]
    assert [len(group) for group in grouped(states, 10)] == [1] * 9 + [91]
