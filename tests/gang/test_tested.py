"""What rows of the collective tests become: findings, the rank and node at fault, evidence."""

from allranks.fabric.metric_rows import CollectiveRow, RankError, SuiteEndRow, SuiteHang, WrongElement
from allranks.findings import Finding, Where
from allranks.gang.tested import findings_of, verdict_of
from allranks.protocol.codec import encode

NAMES = {0: "h1", 1: "h1", 2: "h2", 3: "h2"}
WRONG = WrongElement(0, 1, "value", 7, "3.0", "4.0", source=2)


def rows(*tests: CollectiveRow, end: SuiteEndRow | None = None) -> dict[str, list[object]]:
    ends = [encode(end)] if end is not None else []
    return {"collective": [encode(test) for test in tests], "end": ends}


def test_the_rank_whose_data_is_wrong_is_at_fault() -> None:
    test = CollectiveRow("all_reduce", "fail", reason="wrong result", failures=(WRONG,))
    (finding,) = findings_of(rows(test), NAMES)
    assert (finding.id, finding.where) == ("collective-wrong", Where(node="h2", rank=2))
    assert finding.message == "all_reduce: wrong result (h2)"
    assert finding.evidence == ("rank 0 (h1): expected 3.0, found 4.0",)


def test_errors_of_several_ranks_name_their_nodes() -> None:
    failures = tuple(RankError(rank, f"error {rank}") for rank in (1, 2))
    (finding,) = findings_of(rows(CollectiveRow("barrier", "fail", reason="raised", failures=failures)), NAMES)
    assert (finding.id, finding.where) == ("collective-error", Where(nodes=("h1", "h2")))
    assert finding.evidence == ("rank 1 (h1): error 1", "rank 2 (h2): error 2")


def test_a_hang_names_the_silent_rank_and_its_stack() -> None:
    hang = SuiteHang("broadcast", "", (0,), (1, 3), (3,), {3: ("outer", "inner")})
    (finding,) = findings_of(rows(CollectiveRow("broadcast", "hang", reason="not done", hang=hang)), NAMES)
    assert (finding.id, finding.where) == ("collective-hang", Where(node="h2", rank=3))
    assert finding.evidence == ("rank 3 (h2) was in inner",)
    assert verdict_of(finding).cause == "straggler"


def test_dead_links_go_before_tests_and_slow_ones_after() -> None:
    links = tuple(Finding(name, status, name) for name, status in (("slow", "warn"), ("link-dead", "fail")))
    tests = rows(CollectiveRow("barrier", "fail", reason="raised"), end=SuiteEndRow("sync", False, 3, findings=links))
    findings = findings_of(tests, NAMES)
    assert [f.id for f in findings] == ["link-dead", "collective-error", "slow"]
    assert [f.check for f in findings] == ["links", "collectives", "links"]


def test_rows_that_are_none_are_left_out() -> None:
    assert findings_of({"collective": [{"test": 3}, "x"], "end": [{"suite": "sync"}]}, NAMES) == []
