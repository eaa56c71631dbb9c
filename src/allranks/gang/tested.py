"""What the collective tests of an attempt found: their rows, put with what the gang saw (reads files)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allranks.diagnose.causes import CAUSES, exit_code
from allranks.exitcodes import CHECK_FAILED, HANG, PROGRAM_FAILED
from allranks.findings import Finding, Verdict, Where, typed_here
from allranks.protocol.frames import RANK_LOG
from allranks.runs.directory import RunDirectory
from allranks.runs.tests import read_rows

from .roster import Roster

CHECK_NAME = "collectives"
TAIL = 64 << 10
OWN_CAUSES = {
    "collective-hang": "straggler",
    "ports": "node-network-down",
    "node-dead": "node-network-down",
    "link-dead": "node-network-down",
}
OWN_CODES = (CHECK_FAILED, HANG)  # with these the tests end a rank themselves

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tested:
    """`rows` by kind (see `allranks.runs.tests`); `findings`, the first that failed first; `exit` as the design's."""

    rows: Mapping[str, list[Row]]
    findings: tuple[Finding, ...]
    verdict: Verdict | None
    exit: int

    def to_json(self) -> dict[str, Any]:
        """What `test --json` adds to a run's document."""
        end = (self.rows.get("end") or [{}])[-1]
        return {
            "ok": self.exit == 0,
            "findings": [f.to_json() for f in self.findings],
            "collectives": self.rows.get("collective", []),
            "bandwidth": self.rows.get("bandwidth", []),
            "links": self.rows.get("link", []),
            "statement": end.get("statement") or [],
        }


def judge_test(roster: Roster, run: RunDirectory, seen: Verdict | None, quick: bool) -> Tested:
    """`seen` is what the attempt's end says by itself: a node that was lost or a rank that was killed explains what
    the tests saw of it."""
    rows = {} if quick else read_rows(run)
    names = {rank: node.name for node in roster.nodes.values() for rank in node.ranks}
    if rows:
        found = findings_of(rows, names)
    elif seen is not None:
        found = _from_logs(roster, run, names)
    else:
        found = []
    found = [typed_here(finding, roster.cluster.local_names) for finding in found]
    failed = any(e.code != 0 and not e.expected for e in roster.exits)
    if seen is None:
        code = exit_code(None, roster.stop_reason, failed)
        return Tested(rows, tuple(found), None, code)
    if not found or _is_from_outside(roster):
        code = exit_code(seen, roster.stop_reason, failed)
        return Tested(rows, (seen.finding, *found), seen, CHECK_FAILED if code == PROGRAM_FAILED else code)
    first = found[0]
    hung = first.id == "collective-hang"
    return Tested(rows, tuple(found), verdict_of(first, roster.attempt), HANG if hung else CHECK_FAILED)


def verdict_of(finding: Finding, attempt: int = 0) -> Verdict:
    """A test's first finding as the verdict; its cause where the labels have one."""
    cause = finding.id if finding.id in CAUSES else OWN_CAUSES.get(finding.id, "unknown")
    return Verdict(finding, cause, 0.9 if finding.where.node or finding.where.nodes else 0.6, attempt=attempt)


def _is_from_outside(roster: Roster) -> bool:
    """Something else than the tests' own word ended it: no start, a lost node, a killed rank."""
    if roster.lost or roster.faults or roster.plan is None or not roster.exits:
        return True
    first = min((e for e in roster.exits if not e.expected and e.code != 0), key=lambda e: e.t, default=None)
    return first is None or first.signal is not None or first.code not in OWN_CODES


def findings_of(rows: Mapping[str, list[Row]], names: Mapping[int, str]) -> list[Finding]:
    """A finding for each test that failed, and those about links. `names` are nodes by rank."""
    ended = [row for row in rows.get("end", []) if row.get("findings")]
    links = [_link_finding(f) for row in ended[-1:] for f in row["findings"]]
    bad = [row for row in rows.get("collective", []) if row.get("status") in ("fail", "hang")]
    tests = [_hang(row, names) if row["status"] == "hang" else _failure(row, names) for row in bad]
    return [f for f in links if f.status == "fail"] + tests + [f for f in links if f.status != "fail"]


def _link_finding(row: Row) -> Finding:
    where = row.get("where") or {}
    place = Where(
        where.get("node"), where.get("peer"), interface=where.get("interface"), nodes=tuple(where.get("nodes") or ())
    )
    return Finding(
        str(row["id"]),
        row.get("status", "fail"),
        str(row.get("message")),
        str(row.get("remedy") or ""),
        place,
        tuple(row.get("evidence") or ()),
        "links",
    )


def _failure(row: Row, names: Mapping[int, str]) -> Finding:
    """A wrong result: the rank whose data is wrong is at fault, else the rank that found it."""
    failures = row.get("failures") or []
    sources = {f["source"] for f in failures if f.get("source") is not None}
    ranks = sorted(sources) if len(sources) == 1 else sorted({f["rank"] for f in failures if "rank" in f})
    where = _where(ranks, names)
    on = f" ({_nodes(ranks, names)})" if ranks else ""
    kind = "collective-wrong" if sources or any("expected" in f for f in failures) else "collective-error"
    return Finding(
        kind, "fail", f"{row['test']}: {row.get('reason')}{on}", FAILED, where, _shown(failures, names), CHECK_NAME
    )


FAILED = (
    "the collective itself gives a wrong result or an error, whatever trains. Look at that node's libraries and "
    "devices (allranks check), and at its links (allranks test --suite pairs)"
)
HUNG = "allranks test --suite pairs says which node or link is slow or dead. The stacks are in the ranks' logs"


def _hang(row: Row, names: Mapping[int, str]) -> Finding:
    hang = row.get("hang") or {}
    ranks = hang.get("silent") or hang.get("missing") or []
    on = f" ({_nodes(ranks, names)})" if ranks else ""
    stacks = hang.get("stacks") or {}
    last = [(int(rank), lines[-1]) for rank, lines in list(stacks.items())[:4] if lines]
    shown = [f"rank {rank} ({names.get(rank, '?')}) was in {line}" for rank, line in last]
    return Finding(
        "collective-hang",
        "fail",
        f"{row['test']}: {row.get('reason')}{on}",
        HUNG,
        _where(ranks, names),
        tuple(shown),
        CHECK_NAME,
    )


def _shown(failures: Iterable[Row], names: Mapping[int, str]) -> tuple[str, ...]:
    lines = []
    for f in list(failures)[:4]:
        place = f"rank {f.get('rank')} ({names.get(int(f.get('rank') or 0), '?')})"
        said = f"expected {f['expected']}, found {f['found']}" if "expected" in f else str(f.get("reason"))
        lines.append(f"{place}: {said}")
    return tuple(lines)


def _nodes(ranks: Iterable[int], names: Mapping[int, str]) -> str:
    return ", ".join(dict.fromkeys(names.get(r, "?") for r in ranks))


def _where(ranks: list[int], names: Mapping[int, str]) -> Where:
    """The one node, or all of them; the rank where it is one."""
    nodes = tuple(dict.fromkeys(names[r] for r in ranks if r in names))
    rank = ranks[0] if len(ranks) == 1 else None
    return Where(node=nodes[0], rank=rank) if len(nodes) == 1 else Where(rank=rank, nodes=nodes)


def _from_logs(roster: Roster, run: RunDirectory, names: Mapping[int, str]) -> list[Finding]:
    """A quick test leaves no rows: the line that says FAIL, of the first rank that has one."""
    for node in roster.nodes.values():
        for rank in node.ranks:
            path = run.log_path(node.index, node.name, RANK_LOG, rank, roster.attempt)
            try:
                text = path.read_bytes()[-TAIL:].decode("utf-8", "replace")
            except OSError:
                continue
            lines = [line for line in text.splitlines() if line.startswith("FAIL ")]
            if lines:
                hung = any(e.code == HANG for e in roster.exits)
                kind = "collective-hang" if hung else "collective-wrong"
                return [
                    Finding(kind, "fail", " ".join(lines[0][5:].split()), HUNG if hung else FAILED, check=CHECK_NAME)
                ]
    return []
