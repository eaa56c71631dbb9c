"""Every fixture tests/diagnose/rules/<rule>/<case>.json: an incident and what its verdict must say.

`expect`: cause, where, culprits and victims (exactly), says / not_says (parts of the message), evidence (parts of its
lines), fix (parts of the remedy), runners_up (their ids), confidence ([low, high]), or null where there must be no
verdict.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests import wording
from tests.diagnose.incidents import read_incident
from tests.diagnose.rules.provoked import CASES

from allranks.diagnose.causes import CAUSES
from allranks.diagnose.rules import FAILURE_RULES, RULES
from allranks.diagnose.verdict import judge
from allranks.protocol.codec import encode

HERE = Path(__file__).parent
FIXTURES = sorted(HERE.glob("*/*.json"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_fixture(path: Path) -> None:
    fixture: dict[str, Any] = json.loads(path.read_text())
    expect = fixture["expect"]
    verdict = judge(read_incident(fixture["incident"]))
    if expect is None:
        assert verdict is None
        return
    assert verdict is not None
    message, evidence = verdict.finding.message, "\n".join(verdict.finding.evidence)
    assert verdict.cause == expect["cause"], message
    assert verdict.cause in CAUSES
    assert "\n" not in message and "{" not in verdict.finding.remedy
    assert wording.faults_of(encode(verdict.finding), is_verdict=True) == []
    assert len(verdict.finding.evidence) <= 3
    if "where" in expect:
        where = encode(verdict.finding.where)
        pid = where.pop("pid", None)  # of the day it was provoked
        assert where == expect["where"], message
        assert pid is None or pid in {e["pid"] for e in fixture["incident"]["exits"] if e["rank"] == where["rank"]}
    if "culprits" in expect:
        assert list(verdict.culprits) == expect["culprits"]
    if "victims" in expect:
        assert list(verdict.victims) == expect["victims"]
    if "runners_up" in expect:
        assert [f.id for f in verdict.runners_up] == expect["runners_up"]
    if "confidence" in expect:
        assert expect["confidence"][0] <= verdict.confidence <= expect["confidence"][1]
    for part in expect.get("says", ()):
        assert part in message
    for part in expect.get("not_says", ()):
        assert part not in message
    for part in expect.get("evidence", ()):
        assert part in evidence
    for part in expect.get("fix", ()):
        assert part in verdict.finding.remedy
    assert verdict.finding.remedy


def test_every_rule_has_a_source_and_a_fixture() -> None:
    assert {name.replace("-", "_") for name in (*RULES, *FAILURE_RULES)} <= {path.parent.name for path in FIXTURES}


def test_every_provoked_case_is_kept() -> None:
    assert [name for name in CASES if not (HERE / f"{name}.json").exists()] == []


def test_fixtures_hold_no_path_of_this_machine() -> None:
    for path in FIXTURES:
        assert not re.search(r"/tmp/provoke|/work/|/root/(?!data)", path.read_text()), path
