"""The drawings of a run's progress, from rows that may be damaged."""

import re
from typing import Any

import pytest

from allranks.protocol.codec import decode_each
from allranks.report.progressplot import LEFT, LEVELS, MOST_COLUMNS, MOST_ROWS, WIDTH, progress_plots
from allranks.runs.documents import ProgressRow

T = 1_795_000_000.0


def rows(count: int, ranks: int, slow: int | None = None, since: int = 0) -> list[ProgressRow]:
    """A row each 2 s, 10 steps a row; rank `slow` does 3 from row `since` on."""
    found = []
    steps = [0] * ranks
    for number in range(count):
        found.append(ProgressRow(T + 2 * number, 0, tuple(steps), goodput=number / count))
        steps = [step + (3 if rank == slow and number >= since else 10) for rank, step in enumerate(steps)]
    return found


def test_a_slow_rank_stands_out_from_when_on() -> None:
    plots = progress_plots(rows(11, 4, slow=2, since=5))
    assert plots is not None and plots.heatmap is not None
    heatmap = plots.heatmap
    assert heatmap.median == "200 ms"
    cells = {layer.words: re.findall(r"M([\d.]+) ([\d.]+)h", "".join(layer.path)) for layer in heatmap.layers}
    slow = cells[LEVELS[3][2]]
    assert len(slow) == 5 and len(cells[LEVELS[0][2]]) == 4 * 10 - 5
    assert {float(y) for _, y in slow} == {heatmap.frame.top + 2 * 12}
    assert min(float(x) for x, _ in slow) == pytest.approx(LEFT + WIDTH / 2)
    assert [label.text for label in heatmap.labels] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert plots.goodput is not None and plots.goodput.latest == "91 %"
    assert plots.lateness is None


def test_a_drawing_is_bounded() -> None:
    plots = progress_plots(rows(480, 2000))
    assert plots is not None and plots.heatmap is not None
    assert plots.heatmap.ranks_a_row == 42
    assert sum(len(layer.path) for layer in plots.heatmap.layers) <= MOST_COLUMNS * MOST_ROWS
    assert plots.heatmap.labels[0].text == "ranks 0-41"


def test_another_attempt_is_a_line_and_no_step_time() -> None:
    first = rows(4, 2)
    again = [row._replace(t=row.t + 100, attempt=1) for row in rows(4, 2)]
    plots = progress_plots([*first, *again])
    assert plots is not None and plots.heatmap is not None
    assert len(plots.heatmap.attempts) == 1
    assert sum(len(layer.path) for layer in plots.heatmap.layers) == 2 * 6


def test_lateness_is_that_of_the_latest_rank() -> None:
    found = [row._replace(lateness=(0.001, 0.2, None)) for row in rows(5, 3)]
    plots = progress_plots(found)
    assert plots is not None and plots.lateness is not None
    assert plots.lateness.latest == "200 ms"


@pytest.mark.parametrize(
    "damaged",
    [[], [{}], [{"t": "x"}, {"t": 1}], [{"t": 1.0, "steps": [1]}] * 5,
     [{"t": 1e300, "steps": [1]}, {"t": 2.0, "steps": [True, "x", -1, None]}, {"t": 3.0, "steps": [], "lateness": 7}],
     [{"t": 1.0, "steps": []}, {"t": 2.0, "steps": []}]],
)  # fmt: skip
def test_damaged_rows_draw_nothing(damaged: list[dict[str, Any]]) -> None:
    assert progress_plots(decode_each(ProgressRow, damaged)) is None
