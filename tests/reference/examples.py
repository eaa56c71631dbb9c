"""Examples of the reference pages, out of the cases that the tests prove: verdicts by cause, findings by check."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.diagnose.incidents import read_incident
from tests.diagnose.test_cases import CASES, judged
from tests.diagnose.test_signatures import OF_LOGS

from allranks.diagnose.verdict import judge
from allranks.findings import Finding
from allranks.protocol.codec import decode
from allranks.report.sentences import finding_line, verdict_lines

TESTS = Path(__file__).parents[1]
MOST_SENTENCES = 4


@dataclass(frozen=True)
class Example:
    """What the terminal shows, and what it was made from."""

    lines: tuple[str, ...]
    source: str
    log: tuple[str, ...] = ()  # the lines that `diagnose` read
    is_warning: bool = False  # the run went on


def example_of(cause: str) -> Example | None:
    """A provoked run, else a log, another run, or a line: the verdict as `run` and `diagnose` print it.

    Where no run has failed of it, the warning of one that went on.
    """
    kinds = (_of_real_runs, _of_logs, _of_runs, _of_lines, _of_warnings)
    return next((example for kind in kinds for example in kind(cause)), None)


def _of_real_runs(cause: str) -> Iterator[Example]:
    return _of_runs(cause, "real processes")


@functools.cache
def _runs() -> dict[Path, dict[str, Any]]:
    paths = sorted((TESTS / "diagnose" / "rules").glob("*/*.json"))
    return {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}


_judged = functools.cache(judged)


def _of_runs(cause: str, source: str = "") -> Iterator[Example]:
    for path, case in _runs().items():
        if not case["expect"] or case["expect"]["cause"] != cause or source not in case["source"]:
            continue
        verdict = judge(read_incident(case["incident"]))
        assert verdict is not None
        lines = tuple(verdict_lines(verdict))
        yield Example(lines, f"tests/diagnose/rules/{path.parent.name}/{path.name}")


def _of_logs(cause: str) -> Iterator[Example]:
    for case in CASES:
        if case.expect["cause"] == cause:
            lines = tuple(verdict_lines(judged(case.log)))
            source = f"tests/diagnose/cases/{case.name.partition(': ')[0]}.txt"
            yield Example(lines, source, tuple(case.log.strip("\n").split("\n")))


def _of_lines(cause: str) -> Iterator[Example]:
    for _, text in OF_LOGS:
        verdict = _judged(text)
        if verdict.cause == cause:
            yield Example(tuple(verdict_lines(verdict)), "tests/diagnose/examples.txt", (text,))


def _of_warnings(cause: str) -> Iterator[Example]:
    for path, case in _runs().items():
        for finding in case["incident"].get("findings", ()):
            if finding["id"] == cause and finding["status"] == "warn" and "real processes" in case["source"]:
                lines = finding_line(decode(Finding, finding)).split("\n")
                yield Example(tuple(lines), f"tests/diagnose/rules/{path.parent.name}/{path.name}", is_warning=True)


@functools.cache
def _findings() -> dict[str, list[Finding]]:
    """Every finding that the cases of a check prove, by the check."""
    found: dict[str, list[Finding]] = {}
    for path in sorted((TESTS / "preflight" / "checks").glob("*/*.json")):
        said = json.loads(path.read_text(encoding="utf-8"))["findings"]
        found.setdefault(path.parent.name, []).extend(decode(Finding, finding) for finding in said)
    return found


def sentences_of(check: str) -> list[Finding]:
    """A few findings of a check that differ in cause or status, the failures first."""
    chosen: dict[tuple[str, str, str], Finding] = {}
    for said in _findings().get(check, ()):
        chosen.setdefault((said.id, said.status, said.remedy.partition(" ")[0]), said)
    return sorted(chosen.values(), key=lambda said: said.status != "fail")[:MOST_SENTENCES]


def checks_that_find(cause: str) -> list[str]:
    return sorted(check for check, found in _findings().items() if any(said.id == cause for said in found))
