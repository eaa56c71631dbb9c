"""Each check against its cases: tests/checks/CHECK/CASE.json holds request, facts by node and findings."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from allranks import preflight
from allranks.diagnose.causes import CAUSES
from allranks.preflight import CHECKS, judge_quick

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*/*.json"))


def load(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_case(path: Path) -> None:
    case = load(path)
    found = [f.to_json() for f in CHECKS[path.parent.name](case["request"], case["facts"])]
    for finding in found:
        finding.pop("evidence")
    assert found == case["findings"]


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_a_case_with_and_one_without_findings(name: str) -> None:
    lengths = [len(load(p)["findings"]) for p in CASES if p.parent.name == name]
    assert 0 in lengths
    assert any(lengths)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_without_facts_says_nothing(name: str) -> None:
    failed = {"error": "PermissionError: no"}
    parts = ("workdir", "script", "own_name", "limits", "shm", "disk", "gpus", "logind", "identity", "nccl")
    broken = {"h1": {}, "h2": dict.fromkeys(parts, failed)}
    found = CHECKS[name]({"nproc": 2}, broken)
    assert [f for f in found if f.status == "fail"] == []


def test_ids_are_causes_or_the_checks_own() -> None:
    for path in CASES:
        for finding in load(path)["findings"]:
            assert finding["id"] in CAUSES or finding["id"] == path.parent.name


def test_every_module_is_a_check_with_an_id() -> None:
    names = {p.stem for p in Path(preflight.__file__).parent.glob("*.py")} - {"__init__", "compare"}
    assert names == set(CHECKS)
    for name in names:
        module = getattr(preflight, name)
        assert isinstance(module, ModuleType) and name == module.ID


def test_virtual_nodes_are_one_machine() -> None:
    case = load(HERE / "same_machine" / "with_gpus.json")
    own = {"own_name": {"addresses": ["127.0.1.1"]}, "script": {"path": "/x.py", "exists": False}}
    facts = {n: {**f, **own} for n, f in case["facts"].items()}
    assert {f.id for f in judge_quick({}, facts)} == {
        "duplicate-gpu", "hostname-resolves-to-loopback", "remote-path-missing"
    }  # fmt: skip
    found = judge_quick({"virtual": True}, facts)
    assert [(f.id, f.where.node) for f in found] == [("remote-path-missing", "h0")]
