"""What all ranks' verdicts come to, rates, payloads."""

from dataclasses import replace

import pytest
from tests.fabric.analysis.test_judgement import GOOD

from allranks.fabric.analysis import payloads, rates
from allranks.fabric.analysis.agreement import (
    END,
    NOWHERE,
    RankVerdict,
    agree,
    describe_hang,
    silent_ranks,
    split_arrived,
)
from allranks.fabric.analysis.rates import NominalLink, bandwidth_row, compare_with_link
from allranks.fabric.metric_rows import CollectiveRow, LateRank, LinkRow, RankError, SuiteHang, SuitePlace, WrongElement
from allranks.protocol.codec import decode, encode, read_json, write_json

PASS = RankVerdict("pass", seconds=0.1)


# -- verdicts ------------------------------------------------------------------------------------------


def test_errors_are_written_with_their_ranks() -> None:
    lost = RankVerdict("error", reason="RuntimeError: Connection closed by peer [10.0.0.2]")
    row = agree("gather", [lost, PASS, lost, RankVerdict("error", reason="RuntimeError: other")])
    assert row.status == "fail" and row.broken
    assert row.reason == ("on ranks 0,2: RuntimeError: Connection closed by peer [10.0.0.2]; "
                          "on rank 3: RuntimeError: other")  # fmt: skip
    assert [failure.rank for failure in row.failures] == [0, 2, 3]


def test_a_wrong_result_breaks_nothing_and_the_one_with_a_source_is_described() -> None:
    plain = WrongElement(1, 1, "float32", 2, "5", "0")
    telling = replace(plain, rank=2, source=3)
    bad = [RankVerdict("fail", difference=difference) for difference in (plain, telling)]
    row = agree("gather", [PASS, *bad, PASS])
    assert (row.status, row.broken) == ("fail", False)
    assert row.reason == "on ranks 1-2: round 1 float32 element 2 of rank 3's block: expected 5, found 0"


def test_skipped_on_some_ranks_is_no_skip() -> None:
    skip = RankVerdict("skip", reason="why")
    assert (agree("x", [skip, skip]).status, agree("x", [skip, skip]).reason) == ("skip", "why")
    row = agree("x", [skip, PASS])
    assert row.status == "fail" and row.broken and "on rank 0: why" in row.reason


def test_who_had_not_arrived() -> None:
    before = {0: SuitePlace(3, 2, 5), 1: SuitePlace(3, 0, 5), 2: SuitePlace(2, END, 5), 3: NOWHERE}
    assert split_arrived(before, 3) == ([0, 1], [2, 3])
    after = {rank: replace(place, beat=place.beat + (rank < 2)) for rank, place in before.items()}
    assert silent_ranks(before, after) == [2, 3]
    assert describe_hang("no end", before, 3, [3]) == (
        "no end: ranks 2-3 had not arrived; rank 1 in round 0; rank 0 in round 2, "
        "no sign of life from rank 3 (ended or stopped)"
    )


def test_rows_survive_json() -> None:
    hang = SuiteHang("x", "text", (0,), (1,), (1,), {0: ("f:1 g",)})
    failures = (WrongElement(1, 1, "float32", 2, "5", "0"), RankError(2, "RuntimeError: no"))
    row = CollectiveRow("x", "hang", hang=hang, late=LateRank(1, 2.0), failures=failures, ranks=3)
    document = encode(row)
    assert document["hang"]["missing"] == [1] and document["schema"] == 1 and "broken" not in document
    assert decode(CollectiveRow, read_json(write_json(document), 1 << 20)) == row
    measured = LinkRow("a", "b", 3, GOOD, replace(GOOD, tail=None), "", again=True)
    for link in (measured, LinkRow("a", "b", 0, dead="timed out")):
        assert decode(LinkRow, read_json(write_json(encode(link)), 1 << 20)) == link
    assert decode(LinkRow, {"a": "a", "b": "b", "round": 1}) == LinkRow("a", "b", 1)


# -- payloads, rates -----------------------------------------------------------------------------------


def test_memory() -> None:
    free = 10 << 30
    largest = payloads.largest_fitting(1 << 30, 8, free)
    assert largest == 1 << 28 and payloads.fits(largest, 8, free) and not payloads.fits(2 * largest, 8, free)
    assert payloads.largest_fitting(1 << 30, 8, None) == 1 << 30
    assert payloads.within_group(100, "max\n", "5\n") == 100 and payloads.within_group(100, "60\n", "50\n") == 10
    assert payloads.within_group(None, "60", "70") == 0
    assert payloads.available_memory("MemFree: 1 kB\nMemAvailable:   2048 kB\n") == 2 << 20
    assert payloads.refusal(1 << 30, 1, 5 << 20, "h1") == (
        "1GB refused: 1 rank needs 3GB of memory on h1, which has 5MB available")  # fmt: skip


def test_rates() -> None:
    row = bandwidth_row("all_reduce", 1000, 4, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (row.q1, row.median, row.q3, row.rounds) == (2.0, 3.0, 4.0, 5)
    assert (row.algbw, row.busbw) == (1000 / 3, pytest.approx(1000 / 3 * 1.5))
    assert rates.busbw_factor("all_gather", 4) == 0.75 and rates.busbw_factor("sendrecv", 4) == 1.0


def test_the_slowest_link_is_compared() -> None:
    links = [NominalLink("lo", 0.0), NominalLink("eth0", 1.25e9), NominalLink("eth0", 12.5e9)]
    best = replace(bandwidth_row("all_reduce", 64 << 20, 2, [1.0]), busbw=0.625e9)
    assert "50% of the nominal 1.25 GB/s of eth0" in compare_with_link(best, links, [0, 1, 2])
    assert "without a link between nodes" in compare_with_link(best, links, [0, 0, 0])
    unknown = [links[1], NominalLink("eth0 says -1", 0.0)]
    assert "without a nominal rate" in compare_with_link(best, unknown, [0, 1])
