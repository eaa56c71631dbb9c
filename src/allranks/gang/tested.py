"""What the collective tests of an attempt found: their rows, put with what the gang saw (reads files)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from allranks.diagnose.causes import CAUSES, exit_code
from allranks.exitcodes import CHECK_FAILED, HANG, PROGRAM_FAILED
from allranks.fabric.metric_rows import CollectiveRow, Failure, SuiteEndRow, WrongElement
from allranks.findings import Finding, Verdict, place_of, typed_here
from allranks.protocol.codec import decode_each
from allranks.protocol.frames import RANK_LOG
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, SuiteResult, suite_result
from allranks.runs.regular import read_end
from allranks.runs.tests import Row, read_rows

from .roster import Roster

CHECK_NAME = "collectives"
TAIL = 64 << 10
SHOWN = 4  # ranks in a finding's evidence
CAUSES_OF_TESTS = {
    "collective-hang": "straggler",
    "ports": "node-network-down",
    "node-dead": "node-network-down",
    "link-dead": "node-network-down",
}
CODES_OF_TESTS = (CHECK_FAILED, HANG)  # with these the tests end a rank themselves
FAILED = (
    "the collective itself gives a wrong result or an error, whatever trains. Look at that node's libraries and "
    "devices (allranks check), and at its links (allranks test --suite pairs)"
)
HUNG = "allranks test --suite pairs says which node or link is slow or dead. The stacks are in the ranks' logs"


@dataclass(frozen=True)
class Tested:
    """`rows` by kind (see `allranks.runs.tests`); `findings`, the first that failed first; `exit` as the design's."""

    rows: Mapping[str, list[Row]]
    findings: tuple[Finding, ...]
    verdict: Verdict | None
    exit: int

    def add_to(self, result: ResultDocument) -> SuiteResult:
        """Add what the tests found to a run's result."""
        ends = decode_each(SuiteEndRow, self.rows.get("end"))
        return dataclasses.replace(
            suite_result(result),
            findings=self.findings,
            ok=self.exit == 0,
            collectives=tuple(self.rows.get("collective", ())),
            bandwidth=tuple(self.rows.get("bandwidth", ())),
            links=tuple(self.rows.get("link", ())),
            statement=tuple(ends[-1].statement) if ends else (),
        )


def judge_test(roster: Roster, run: RunDirectory, ended: Verdict | None, quick: bool) -> Tested:
    """Judge the tests of an attempt.

    `ended` is the verdict on its end alone: a node that was lost or a rank that was killed explains the rest.
    """
    rows = {} if quick else read_rows(run)
    findings: list[Finding] = []
    if rows:
        findings = findings_of(rows, roster.node_of_rank())
    elif ended is not None:
        findings = _from_logs(roster, run)
    findings = [typed_here(finding, roster.logins) for finding in findings]
    failed = any(end.fact.failed_by_itself for end in roster.exits)
    if ended is None:
        return Tested(rows, tuple(findings), None, exit_code(None, roster.stop_reason, failed))
    if not findings or _is_from_outside(roster):
        code = exit_code(ended, roster.stop_reason, failed)
        return Tested(rows, (ended.finding, *findings), ended, CHECK_FAILED if code == PROGRAM_FAILED else code)
    first = findings[0]
    code = HANG if first.id == "collective-hang" else CHECK_FAILED
    return Tested(rows, tuple(findings), verdict_of(first, roster.attempt), code)


def verdict_of(finding: Finding, attempt: int = 0) -> Verdict:
    """Make the verdict of a test's first finding; its cause where the labels have one."""
    cause = finding.id if finding.id in CAUSES else CAUSES_OF_TESTS.get(finding.id, "unknown")
    return Verdict(finding, cause, 0.9 if finding.where.node or finding.where.nodes else 0.6, attempt=attempt)


def _is_from_outside(roster: Roster) -> bool:
    if roster.lost or roster.faults or roster.plan is None or not roster.exits:
        return True
    failed = (end for end in roster.exits if end.fact.failed_by_itself)
    first = min(failed, key=lambda end: end.t, default=None)
    return first is None or first.fact.signal is not None or first.fact.code not in CODES_OF_TESTS


def findings_of(rows: Mapping[str, Sequence[Row]], names: Mapping[int, str]) -> list[Finding]:
    """Make a finding for each test that failed, and add those about links. `names` are nodes by rank."""
    links: list[Finding] = []
    for end in decode_each(SuiteEndRow, rows.get("end")):
        if end.findings:
            links = [link._replace(check="links") for link in end.findings]
    tests = []
    for row in decode_each(CollectiveRow, rows.get("collective")):
        if row.status == "hang":
            tests.append(_hang(row, names))
        elif row.status == "fail":
            tests.append(_failure(row, names))
    return [f for f in links if f.status == "fail"] + tests + [f for f in links if f.status != "fail"]


def _failure(row: CollectiveRow, names: Mapping[int, str]) -> Finding:
    differences = [failure for failure in row.failures if isinstance(failure, WrongElement)]
    ranks = {difference.source for difference in differences if difference.source is not None}
    if len(ranks) != 1:
        ranks = {failure.rank for failure in row.failures}
    kind = "collective-wrong" if differences else "collective-error"
    return _finding(kind, row, sorted(ranks), names, FAILED, _shown(row.failures, names))


def _hang(row: CollectiveRow, names: Mapping[int, str]) -> Finding:
    if row.hang is None:
        return _finding("collective-hang", row, [], names, HUNG, [])
    shown = []
    for rank, lines in list(row.hang.stacks.items())[:SHOWN]:
        if lines:
            shown.append(f"rank {rank} ({names.get(rank, '?')}) was in {lines[-1]}")
    return _finding("collective-hang", row, row.hang.silent or row.hang.missing, names, HUNG, shown)


def _finding(
    kind: str, row: CollectiveRow, ranks: Sequence[int], names: Mapping[int, str], remedy: str, evidence: Sequence[str]
) -> Finding:
    nodes = tuple(dict.fromkeys(names.get(rank, "?") for rank in ranks))
    message = f"{row.test}: {row.reason}" + (f" ({', '.join(nodes)})" if nodes else "")
    where = place_of([node for node in nodes if node != "?"], ranks)
    return Finding(kind, "fail", message, remedy, where=where, evidence=tuple(evidence), check=CHECK_NAME)


def _shown(failures: Iterable[Failure], names: Mapping[int, str]) -> list[str]:
    lines = []
    for failure in list(failures)[:SHOWN]:
        if isinstance(failure, WrongElement):
            what = f"expected {failure.expected}, found {failure.found}"
        else:
            what = failure.reason
        lines.append(f"rank {failure.rank} ({names.get(failure.rank, '?')}): {what}")
    return lines


def _from_logs(roster: Roster, run: RunDirectory) -> list[Finding]:
    """Make the finding of a quick test, which leaves no rows: of the first rank's line that says FAIL."""
    has_hung = any(end.fact.code == HANG for end in roster.exits)
    kind = "collective-hang" if has_hung else "collective-wrong"
    for node in roster.nodes.values():
        for rank in node.ranks:
            path = run.log_path(node.index, node.name, RANK_LOG, rank, roster.attempt)
            for line in read_end(path, TAIL).splitlines():
                if line.startswith("FAIL "):
                    message = " ".join(line.split()[1:])
                    return [Finding(kind, "fail", message, HUNG if has_hung else FAILED, check=CHECK_NAME)]
    return []
