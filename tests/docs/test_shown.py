"""What is compared with the pages, and what is not."""

import pytest
from tests.docs.shown import drift, fits, with_figures

PRINTED = [
    "run       run-20261122-223256",
    "nodes     h1, h2",
    "master    h1 10.203.7.1:27379, reached by all 2 nodes in 0.47 s",
    "",
    "VERDICT   rank 1 on h2 raised ValueError (pid 4711)",
    "failed after 53.4 s (exit 1), logs in runs/run-20261122-223256/logs",
]


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED,
        ["run       run-…", "…", "failed after … s (exit 1), logs in runs/run-…/logs"],
        ["…", "VERDICT   rank 1 on h2 raised ValueError (pid 12)", "…"],
        ["run       run-20260101-000000", "…", "master    h1 …, reached by all 2 nodes in 9.9 s", "…"],
        [*PRINTED, "", ""],
        ["…"],
    ],
)
def test_what_agrees(shown: list[str]) -> None:
    assert drift(shown, PRINTED) is None


@pytest.mark.parametrize(
    ("shown", "difference"),
    [
        (["run       run-…", "…", "failed after … s (exit 5), logs in runs/run-…/logs"], "(exit 1)"),
        (["…", "VERDICT   rank 2 on h2 raised ValueError (pid …)", "…"], "rank 1 on h2"),
        (["…", "nodes     h1, h2", "run       run-…", "…"], "run       run-…"),
        (["run       run-…", "nodes     h1, h2"], "failed after"),
        ([*PRINTED, "page runs/run-…/report.html"], "-page runs"),
        ([], "failed after"),
    ],
)
def test_what_differs_is_named(shown: list[str], difference: str) -> None:
    found = drift(shown, PRINTED)
    assert found is not None and difference in found


def test_lines_that_agree_are_no_difference() -> None:
    found = drift(["run       run-…", "nodes     h1, h3", *PRINTED[2:]], PRINTED)
    assert found is not None
    assert [line for line in found.splitlines()[2:] if line[0] in "+-"] == ["-nodes     h1, h3", "+nodes     h1, h2"]


def test_exit_codes_counts_and_names_are_compared() -> None:
    for shown, printed in [("(exit 1)", "(exit 4)"), ("4 ranks", "8 ranks"), ("h1 0", "h2 0"), ("20 s:", "30 s:")]:
        assert fits(shown, shown)
        assert not fits(shown, printed)


def test_a_page_gets_the_figures_that_the_next_run_fits_as_well() -> None:
    shown = [
        "run       run-…",
        "…",
        "master    h1 …, reached by all 2 nodes in … s",
        "…",
        "VERDICT   rank 1 on … (pid …)",
        "…",
    ]
    figures = with_figures(shown, PRINTED)
    assert figures == [PRINTED[0], "…", PRINTED[2], "…", "VERDICT   rank 1 on … (pid …)", "…"]
    later = [line.replace("0.47", "1.3").replace("10.203.7.1:27379", "10.203.2.1:1") for line in PRINTED]
    assert drift(figures, later) is None


def test_figures_of_ranks_keep_the_names_that_the_page_shows() -> None:
    shown = ["[h1 0] step 20 loss …", "[2 ranks] saved"]
    printed = ["[h1 0 +1 rank] step 20 loss 0.4821", "[h1 0] saved"]
    assert with_figures(shown, printed) == ["[h1 0] step 20 loss 0.4821", "[2 ranks] saved"]
