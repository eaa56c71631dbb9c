"""The memory of nodes: what runs, checks and tests have found of each machine, in the user's state directory (IO).

A line of nodes.jsonl is one node of one run. A machine is known by its hardware or machine-id, hashed; machines that
have the same one (containers of one image, network namespaces) are distinguished by their host names. What is charged
to the program, its settings or allranks itself never counts against a node.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from allranks.diagnose.causes import CAUSES, Charge
from allranks.findings import Finding, Verdict, Where
from allranks.protocol.codec import SCHEMA, decode, document_line
from allranks.protocol.facts import Identity
from allranks.protocol.jsontext import DecodeError, read_object
from allranks.text import count_of, format_ago, join_words

from .known_directories import state_directory
from .regular import append, open_regular, replacing

NAME = "nodes.jsonl"
LIMIT = 4 << 20  # bytes of the ledger; the older half goes where it grows beyond
LINE_LIMIT = 4096
LOCK_SECONDS = 5.0
MOST_MESSAGE = 300  # characters
OK = "ok"
FAILED = "failed"
OTHER = "other"  # the run failed, or was stopped, for another reason
NOT_OF_THE_MACHINE = ("orphan-process",)  # charged to the node, and yet what its users have left there
LINKS = ("slow-link", "mtu-or-packet-loss")  # charged to the network: each end is at fault by half
FORGIVEN_AFTER = 14 * 86400.0  # seconds after which a failure raises no suspicion
FORGIVEN_BY = 3  # runs without a fault that clear a suspicion
SUSPECT = 1.0  # of weight: one fault of a node, two of its links
SURE_ENOUGH = 0.5  # confidence of a verdict that counts


class NodeRecord(NamedTuple):
    """One node of one run, check or test (`kind`). `name` is the list's; `machine` is empty where it is not known.

    `cause` is what counts against it, a cause or a check, and `peer` the other end of a link; `t` in unix seconds.
    """

    t: float
    run: str
    kind: str
    name: str
    hostname: str = ""
    machine: str = ""
    outcome: str = OK
    cause: str = ""
    peer: str = ""
    message: str = ""


# -- what counts -----------------------------------------------------------------------------------------


def machine_of(identity: Identity) -> str:
    """Return a machine's key: the hash of its hardware's UUID, else of its machine-id; empty where neither is known."""
    identifier = identity.hardware or identity.machine_id
    if not identifier:
        return ""
    return hashlib.sha256(f"allranks {identifier}".encode()).hexdigest()[:16]


def counts_against(cause: str, hardware_checks: Collection[str] = ()) -> bool:
    """Tell whether a cause, or a check by its id, is a fault of the machine or of its links."""
    if cause in NOT_OF_THE_MACHINE:
        return False
    row = CAUSES.get(cause)
    if row is None:
        return cause in hardware_checks
    return row.charge is Charge.NODE or (row.charge is Charge.NETWORK and cause in LINKS)


def blame(
    verdicts: Iterable[Verdict], findings: Iterable[Finding], hardware_checks: Collection[str]
) -> dict[str, Finding]:
    """Return what counts against each node, by name: verdicts first, then findings that failed, then slow links."""
    blamed: dict[str, Finding] = {}
    for verdict in verdicts:
        confidence = verdict.confidence or 1.0
        cause = verdict.cause or ""
        if confidence >= SURE_ENOUGH and counts_against(cause):
            _blame(blamed, cause, verdict.finding.where.node, verdict.finding.where.peer, verdict.finding.message)
    for finding in findings:
        is_fault = finding.status == "fail" or (finding.status == "warn" and finding.id in LINKS)
        cause = finding.id if finding.id in CAUSES else finding.check or finding.id
        if is_fault and counts_against(cause, hardware_checks):
            _blame(blamed, cause, finding.where.node, finding.where.peer, finding.message)
    return blamed


def _blame(blamed: dict[str, Finding], cause: str, node: str | None, peer: str | None, message: str) -> None:
    text = message.split("\n")[0][:MOST_MESSAGE]
    if node:
        blamed.setdefault(node, Finding(cause, "fail", text, where=Where(node, peer=peer)))
    if peer and cause in LINKS:
        blamed.setdefault(peer, Finding(cause, "fail", text, where=Where(peer, peer=node)))


def records_of(
    seen: Mapping[str, tuple[str, Identity]], line: NodeRecord, blamed: Mapping[str, Finding]
) -> list[NodeRecord]:
    """Make the lines of one run of a `line` without a node. `seen`: host names and identities by name."""
    records = []
    for name in dict.fromkeys((*seen, *blamed)):
        record = line._replace(name=name)
        if name in seen:
            hostname, identity = seen[name]
            record = record._replace(hostname=hostname, machine=machine_of(identity))
        fault = blamed.get(name)
        if fault is not None:
            record = record._replace(outcome=FAILED, cause=fault.id, message=fault.message, peer=fault.where.peer or "")
        records.append(record)
    return records


# -- what is remembered ----------------------------------------------------------------------------------


@dataclass
class RememberedNode:
    """A machine over all runs, and all `names` that it had. `known_by` says how it is known, `failures` count by cause.

    `clean_runs` are those since the last fault, `suspicion` is the reason, empty without one. Times are unix seconds.
    """

    name: str
    hostname: str
    machine: str
    known_by: str
    runs: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    last_seen: float = 0.0
    last_run: str = ""
    last_failure: float | None = None
    clean_runs: int = 0
    suspicion: str = ""
    names: list[str] = field(default_factory=list)


def remembered(records: Iterable[NodeRecord], now: float) -> list[RememberedNode]:
    """Put the records of each machine together, the one that was seen last first. `now` in unix seconds."""
    in_time = sorted(records, key=lambda record: record.t)
    shared = _shared_machines(in_time)
    holders: dict[str, tuple[str, str]] = {}  # by name: the machine that had it last
    groups: dict[tuple[str, str], list[NodeRecord]] = {}
    for record in in_time:
        hostname = record.hostname or record.name
        if record.machine:
            key = (record.machine, hostname if record.machine in shared else "")
            holders[record.name] = holders[hostname] = key
        else:  # it was not reached: whoever had the name last
            key = holders.get(record.name, ("", hostname))
        groups.setdefault(key, []).append(record)
    nodes = [_remember(key, group, now) for key, group in groups.items()]
    return sorted(nodes, key=lambda node: -node.last_seen)


def _shared_machines(records: Iterable[NodeRecord]) -> set[str]:
    names: dict[tuple[str, float, str], set[str]] = {}
    for record in records:
        names.setdefault((record.run, record.t, record.machine), set()).add(record.hostname or record.name)
    return {machine for (_, _, machine), hostnames in names.items() if len(hostnames) > 1}


def _remember(key: tuple[str, str], records: Sequence[NodeRecord], now: float) -> RememberedNode:
    last = records[-1]
    machine, hostname = key
    known_by = "machine"
    if not machine:
        known_by = "name"
    elif hostname:
        known_by = "machine and host name"
    node = RememberedNode(last.name, last.hostname, machine, known_by, last_seen=last.t, last_run=last.run)
    node.names = list(dict.fromkeys(name for r in records for name in (r.name, r.hostname) if name))
    node.runs = len(records)
    weight = 0.0
    for record in records:
        if record.outcome == FAILED and counts_against(record.cause, (record.cause,)):
            node.failures[record.cause] = node.failures.get(record.cause, 0) + 1
            node.last_failure = record.t
            node.clean_runs = 0
            if now - record.t <= FORGIVEN_AFTER:
                weight += 0.5 if record.peer and record.cause in LINKS else 1.0
        elif record.outcome == OK:
            node.clean_runs += 1
            if node.clean_runs >= FORGIVEN_BY:
                weight = 0.0
    if weight >= SUSPECT and node.last_failure is not None:
        node.suspicion = _reason(node, records, now)
    return node


def _reason(node: RememberedNode, records: Sequence[NodeRecord], now: float) -> str:
    last = next(record for record in reversed(records) if record.outcome == FAILED)
    times = join_words([f"{cause} {count_of(count, 'time')}" for cause, count in node.failures.items()])
    link = f" (link to {last.peer})" if last.peer else ""
    when = f"last {format_ago(now - last.t)} in {last.run}{link}"
    return f"{times}, {when}, then {count_of(node.clean_runs, 'clean run')}"


def suspects(nodes: Iterable[RememberedNode]) -> dict[str, str]:
    """Return the reason by each name that a suspect has. A name stands for the machine that had it last."""
    reasons: dict[str, str] = {}
    taken: set[str] = set()
    for node in nodes:  # the one that was seen last comes first
        for name in node.names:
            if name not in taken:
                taken.add(name)
                if node.suspicion:
                    reasons[name] = node.suspicion
    return reasons


# -- the file --------------------------------------------------------------------------------------------


def ledger_file(environ: Mapping[str, str]) -> Path:
    """Return the ledger of this user, in the state directory; a path that cannot be made where there is none."""
    return (state_directory(environ) or Path(os.devnull)) / NAME


def read_ledger(path: Path) -> list[NodeRecord]:
    """Read all records; lines that are damaged, or of another allranks, are left out."""
    try:
        with open_regular(path) as file:
            data = file.read(2 * LIMIT)
    except OSError:
        return []
    records = []
    for line in data.splitlines():
        with contextlib.suppress(DecodeError):
            records.append(_read_line(line))
    return records


def _read_line(line: bytes) -> NodeRecord:
    fields = dict(read_object(line, LINE_LIMIT))
    if fields.pop("schema", None) != SCHEMA:
        raise DecodeError(f"$.schema: expected {SCHEMA}")
    record = decode(NodeRecord, fields)
    if not 0 < record.t < 1e11 or not record.name:
        raise DecodeError("$: expected a time and a name")
    return record


def _line(record: NodeRecord) -> bytes:
    """Write a record, without its message where that is too long; nothing where no reader would take the line."""
    for kept in (record, record._replace(message="")):
        line = document_line(kept).encode() + b"\n"
        if len(line) <= LINE_LIMIT:
            return line
    return b""


def add_records(path: Path, records: Sequence[NodeRecord]) -> bool:
    """Append to the ledger, and leave the older half out where it has become too large.

    Return False where the disk or another process does not let it: a run never fails by it.
    """
    data = b"".join(_line(record) for record in records)
    try:
        with _locked(path):
            if append(path, data) > LIMIT:
                _replace(path, read_ledger(path)[-(LIMIT // 2 // 256) :])
    except OSError:
        return False
    return True


def forget_records(path: Path, is_forgotten: Callable[[NodeRecord], bool]) -> int:
    """Remove records from the ledger; return how many. Raise OSError."""
    if not path.exists():
        return 0
    with _locked(path):
        records = read_ledger(path)
        kept = [record for record in records if not is_forgotten(record)]
        if len(kept) < len(records):
            _replace(path, kept)
    return len(records) - len(kept)


def _replace(path: Path, records: Iterable[NodeRecord]) -> None:
    with replacing(path) as file:
        file.writelines(_line(record) for record in records)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the ledger for this process; raise OSError where another one holds it for LOCK_SECONDS."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path.with_name(f".{NAME}.lock"), flags, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
