"""Which events of a run are worth a notification, and what it says."""

import pytest
from tests.facts import fact

from allranks.findings import Finding, Verdict, Where
from allranks.report.notifier import LONGEST, notice_of_end, notice_of_event
from allranks.runs.documents import Document, ResultDocument, Timing

RUNS = "login1:/home/me/runs"
TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
MESSAGE = f"rank 3 on h2 raised ValueError: \x1b[31mtoken={TOKEN}\x1b[0m"
RAISED = Finding(status="fail", message=MESSAGE, where=Where(node="h2", rank=3), remedy="look at train.py:7")
VERDICT = Verdict(RAISED, "program-exception", 0.95)
FINDING: Document = {"event": "finding", "status": "warn", "id": "slow-link", "message": "h1-h2 is slow", "where": {}}
RETRY = {"event": "retry", "reason": "node lost", "verdict": {"message": "h2 was lost", "cause": "node-lost"}}


def test_the_end_of_a_run_says_cause_fix_and_place_without_secrets() -> None:
    result = ResultDocument("run-1", "/runs/run-1", 1, verdict=VERDICT, timing=Timing(12.0))
    notice = notice_of_end(result, RUNS)
    assert notice is not None
    assert (notice.title, notice.kind) == ("allranks run-1: failed (program-exception)", "failure")
    assert "rank 3 on h2 raised ValueError" in notice.body and "look at train.py:7" in notice.body
    assert notice.body.endswith("\nlogin1:/home/me/runs/run-1")
    assert "ghp_" not in notice.body and "\x1b" not in notice.body


@pytest.mark.parametrize(("code", "kind"), [(0, "success"), (4, "failure"), (130, None), (143, None)])
def test_who_ends_a_run_needs_no_notification(code: int, kind: str | None) -> None:
    notice = notice_of_end(ResultDocument("run-1", "/runs/run-1", code), RUNS)
    assert (notice.kind if notice is not None else None) == kind


@pytest.mark.parametrize(
    ("event", "title"),
    [
        (FINDING, "allranks run-1: slow-link"),
        ({**FINDING, "status": "fail"}, None),
        ({**FINDING, "id": "own_name"}, None),
        ({"event": "rank-started", "node": "h1", "rank": 0, "pid": 3}, None),
        (RETRY, "allranks run-1: retry"),
    ],
)
def test_events_that_people_have_to_hear_of(event: Document, title: str | None) -> None:
    notice = notice_of_event(fact(event), "run-1", RUNS, 2)
    assert (notice.title if notice is not None else None) == title


def test_a_notification_is_not_longer_than_services_take() -> None:
    notice = notice_of_event(fact({**FINDING, "message": "long " * 5000}), "run-1", RUNS, 2)
    assert notice is not None
    assert len(notice.body) <= LONGEST + len(RUNS) + 7
