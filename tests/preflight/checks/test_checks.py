"""Each check against its cases.

tests/preflight/checks/CHECK/CASE.json holds the request, what nodes have, and findings.

"facts" are by node, as `collect` leaves them; "hosts" are recordings (see `recorded`), from which the check
collects by itself; {"like": "h1"} is the same again. `python -m tests.preflight.checks.test_checks` writes findings.
A test takes all cases of one check and names each case that fails, with the sentences that differ.
"""

import difflib
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests import wording
from tests.agent.test_node_check import PARTS
from tests.preflight.checks.recorded import RecordedHost

from allranks.agent import checks as node_checks
from allranks.diagnose.causes import CAUSES
from allranks.gang.plugins import built_in
from allranks.preflight import checks as package
from allranks.preflight.host import CouldNotLook
from allranks.preflight.judge import judge
from allranks.protocol.codec import encode

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*/*.json"))
CHECKS = built_in()
WORDS = ("id", "status", "where", "message", "remedy")  # parts of a finding that `sentences_of` shows
REWRITE = "right as it is now? python -m tests.preflight.checks.test_checks"


@functools.cache
def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@functools.cache
def facts_of(path: Path) -> dict[str, Any]:
    """Facts by node: those of the case, or what the check collects from its recordings."""
    case = load(path)
    if "hosts" not in case:
        return case["facts"]
    check, facts = CHECKS[path.parent.name], {}
    assert check.collect is not None, "a case with hosts needs a check that collects"
    for node, recording in case["hosts"].items():
        recording = case["hosts"][recording["like"]] if "like" in recording else recording
        host = RecordedHost(case["request"], recording, path.parent)
        results = {check.name: encode(node_checks.collected(check, host))}
        facts[node] = {**recording.get("facts", {}), **json.loads(json.dumps(results))}
    return facts


def findings_of(path: Path, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the evidence, which may be long."""
    found = [encode(f) for f in judge(case["request"], facts_of(path), [CHECKS[path.parent.name]])]
    return [{k: v for k, v in f.items() if k not in ("evidence", "check")} for f in found]


def sentences_of(findings: list[dict[str, Any]]) -> list[str]:
    """Findings as a person reads them, a line each for place, message and fix."""
    lines = []
    for finding in findings:
        place = " ".join(f"{key}={value}" for key, value in finding["where"].items())
        rest = {key: value for key, value in finding.items() if key not in WORDS}
        lines.append(f"{finding['status']} {finding['id']} {place}".rstrip() + (f" {rest}" if rest else ""))
        lines.append(f"  {finding['message']}")
        if finding.get("remedy"):
            lines.append(f"  fix: {finding['remedy']}")
    return lines


def difference(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> str:
    """What changed, sentence by sentence: empty where nothing did."""
    if expected == actual:
        return ""
    lines = difflib.ndiff(sentences_of(expected), sentences_of(actual))
    changed = [line.rstrip("\n") for line in lines if not line.startswith("?")]
    return "\n".join(changed) if any(line[0] in "+-" for line in changed) else f"{expected} is not {actual}"


def cases_of(name: str) -> dict[Path, dict[str, Any]]:
    """The cases of a check, decoded."""
    return {path: load(path) for path in CASES if path.parent.name == name}


def failures(name: str, failure_of: Callable[[Path, dict[str, Any]], str]) -> Iterator[str]:
    """What is wrong with cases of a check, under the name of the case."""
    for path, case in cases_of(name).items():
        text = failure_of(path, case)
        if text:
            yield f"{name}/{path.stem}:\n{text}"


@pytest.mark.parametrize("name", CHECKS)
def test_cases(name: str) -> None:
    assert cases_of(name), "a check without a case"
    changed = list(failures(name, lambda path, case: difference(case["findings"], findings_of(path, case))))
    changed += [text for case in cases_of(name).values() for one in case["findings"] for text in wording.faults_of(one)]
    if changed:
        pytest.fail("\n\n".join(changed) + "\n\n" + REWRITE, pytrace=False)


@pytest.mark.parametrize("name", CHECKS)
def test_no_check_says_ssh_for_a_node_of_this_machine(name: str) -> None:
    """Each case of each check, as if all its nodes were this machine."""

    def failure_of(path: Path, case: dict[str, Any]) -> str:
        facts = facts_of(path)
        remedies = [f.remedy for f in judge({**case["request"], "local": list(facts)}, facts, [CHECKS[name]])]
        return "\n".join(text for text in remedies if any(f"ssh {node}" in text for node in facts))

    assert list(failures(name, failure_of)) == []


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_has_a_case_with_and_one_without_findings(name: str) -> None:
    lengths = [len(case["findings"]) for case in cases_of(name).values()]
    assert 0 in lengths
    assert any(lengths)


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.collect is not None])
def test_a_check_that_collects_has_a_recording(name: str) -> None:
    assert any("hosts" in case for case in cases_of(name).values())


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_without_facts_says_nothing(name: str) -> None:
    failed = {"error": "PermissionError: no"}
    parts = ("workdir", "script", "own_name", "shm", "disk", "gpus", "logind", "identity", "nccl")
    own = {name: failed} if CHECKS[name].collect is not None else {}
    broken = {"h1": {}, "h2": {**dict.fromkeys(parts, failed), **own}, "h3": own and {name: None}}
    found = judge({"nproc": 2}, broken, [CHECKS[name]])
    assert [f for f in found if f.status not in ("unknown", "warn")] == []


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.collect is not None])
def test_a_bare_host_is_no_failure(name: str) -> None:
    """Nothing is installed and no file is there: a check may not be able to look, and says no more."""
    check = CHECKS[name]
    host = RecordedHost({"workdir": "/w", "command": []}, {}, HERE)
    results = {name: encode(node_checks.collected(check, host))}
    found = judge({}, {"h1": results, "h2": results}, [check])
    assert [f for f in found if f.status == "fail"] == []
    error = (results[name] or {}).get("error", "") if isinstance(results[name], dict) else ""
    assert not error.partition(":")[0].endswith(("Error", "Exception")), "an absent file is no bug: " + error


def test_ids_are_causes_or_the_checks_own() -> None:
    for name in CHECKS:
        ids = {finding["id"] for case in cases_of(name).values() for finding in case["findings"]}
        assert ids and ids <= {*CAUSES, name}


def test_a_failure_has_a_cause() -> None:
    """Else a run that is refused for it ends with "cause unknown"."""
    for path in CASES:
        without = [f for f in load(path)["findings"] if f["status"] == "fail" and f["id"] not in CAUSES]
        assert without == [], path.parent.name


def test_every_module_is_a_check_with_an_id() -> None:
    names = {p.stem for p in Path(package.__file__).parent.glob("*.py")} - {"__init__"}
    assert names == set(CHECKS)
    for name in names:
        module = getattr(package, name)
        assert isinstance(module, ModuleType) and name == module.ID


def test_collecting_checks_have_names_of_their_own_among_the_facts() -> None:
    assert {c.name for c in CHECKS.values() if c.collect is not None} & PARTS == set()


def test_could_not_look_is_unknown_with_the_reason() -> None:
    def refuse(host: Any) -> Any:
        raise CouldNotLook("dmesg is restricted")

    check = next(c for c in CHECKS.values() if c.collect is None)
    check = type(check)(check.name, check.group, check.level, check.title, lambda request, nodes: [], refuse)
    results = {check.name: encode(node_checks.collected(check, RecordedHost({}, {}, HERE)))}
    found = judge({}, {"h1": results, "h2": results, "h3": {check.name: 1}}, [check])
    assert [(f.status, f.where.nodes, f.check) for f in found] == [("unknown", ("h1", "h2"), check.name)]
    assert found[0].message == "could not look at h1 and h2: dmesg is restricted"


def test_virtual_nodes_are_one_machine() -> None:
    case = load(HERE / "same_machine" / "with_gpus.json")
    own = {"own_name": {"addresses": ["127.0.1.1"]}, "script": {"path": "/x.py", "exists": False}}
    facts = {n: {**f, **own} for n, f in case["facts"].items()}
    chosen = [CHECKS[n] for n in ("same_machine", "own_name", "script")]
    assert {f.id for f in judge({}, facts, chosen)} == {
        "duplicate-gpu", "hostname-resolves-to-loopback", "remote-path-missing"
    }  # fmt: skip
    found = judge({"virtual": True}, facts, chosen)
    assert [(f.id, f.where.node) for f in found] == [("remote-path-missing", "h0")]


def test_what_is_allowed_is_a_warning() -> None:
    case = load(HERE / "same_machine" / "with_gpus.json")
    chosen = [CHECKS["same_machine"]]
    assert {f.status for f in judge({}, case["facts"], chosen)} == {"fail"}
    for allowed in ("same_machine", "duplicate-gpu"):
        assert {f.status for f in judge({}, case["facts"], chosen, [allowed])} == {"warn"}


def main() -> None:
    """Write the findings of all cases, or of those of the named checks, and print the sentences that changed."""
    for path in CASES:
        if not sys.argv[1:] or path.parent.name in sys.argv[1:]:
            case = load(path)
            findings = findings_of(path, case)
            changed = difference(case["findings"], findings)
            if changed:
                print(f"{path.parent.name}/{path.stem}:\n{changed}\n")
            case["findings"] = findings
            path.write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
