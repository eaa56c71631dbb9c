"""What a round has left on the disk, as records that the judge reads."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tests.forked import call
from tests.reference.validating import directory_faults

from allranks.findings import Verdict
from allranks.protocol.codec import encode
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument
from allranks.runs.judged import judge_run
from bench.chaos.judge import Accused, Printed, TrainedStep
from bench.launch import BOUND, Launch


def accused_of(result: ResultDocument) -> list[Accused]:
    """The verdicts of all attempts, and of the run where its last attempt has none."""
    verdicts = [attempt.verdict for attempt in result.attempts if attempt.verdict is not None]
    if result.verdict is not None and not (result.attempts and result.attempts[-1].verdict is not None):
        verdicts.append(result.verdict)
    return [_accused(verdict) for verdict in verdicts]


def _accused(verdict: Verdict) -> Accused:
    where = verdict.finding.where
    nodes = [name for name in (where.node, where.peer, *where.nodes) if name is not None]
    ranks = {*verdict.culprits, *([where.rank] if where.rank is not None else [])}
    return Accused(verdict.cause or "", tuple(nodes), tuple(sorted(ranks)), verdict.finding.message)


def printed_in(launch: Launch) -> Iterator[Printed]:
    """Each process that has printed, with its lines in the run directory."""
    for path in sorted(launch.work.glob("taken-*")):
        node, attempt, rank, pid = path.name.removeprefix("taken-").rsplit("-", 3)
        data = path.read_bytes()
        taken = struct.unpack("<Q", data)[0] if len(data) == 8 else 0
        numbers = list[int]()
        folder = launch.run_dir / "logs" / (f"attempt_{attempt}" if attempt != "0" else "")
        head = f"L {rank} {attempt} {pid} ".encode()
        line = re.compile(rb"^" + re.escape(head) + rb"(\d+) \.+$", re.M)
        for log in folder.glob(f"node_*_{node}/rank_{int(rank):03d}.log"):
            numbers += [int(number) for number in line.findall(log.read_bytes())]
        yield Printed(node, int(attempt), int(rank), taken, tuple(numbers))


def trained_in(work: Path) -> list[TrainedStep]:
    """The losses that rank 0 has written."""
    with suppress(OSError):
        rows = [line.split() for line in (work / "losses").read_text().splitlines()]
        return [TrainedStep(int(attempt), int(step), loss) for attempt, step, loss in rows]
    return []


def out_of_order_in(launch: Launch) -> list[str]:
    """Messages that came when none of their kind was expected, as the controller has noted."""
    events, _ = RunDirectory(launch.run_dir).read_lines()
    notes = [str(event.get("message", "")) for event in events if event.get("event") == "note"]
    return [note for note in notes if "out of order" in note]


def unreachable_logs(result: ResultDocument) -> list[str]:
    """Nodes whose logs end sooner, as the run says: at its end, or where an attempt ended."""
    cut = [finding.where.node for finding in result.findings if finding.id == "logs-cut" and finding.where.node]
    return [*result.unfetched, *cut]


def dropped_of(result: ResultDocument) -> dict[str, Mapping[int, int]]:
    """Bytes that found no room, by node and rank."""
    return {node: {int(rank): size for rank, size in ranks.items()} for node, ranks in result.dropped.items()}


def unreadable(launch: Launch, result: ResultDocument | None, code: int | None, is_full: bool) -> Iterator[str]:
    """What of the run directory cannot be read, is not as its schema says, or says other things than the run did."""
    run = RunDirectory(launch.run_dir)
    if result is None:
        yield "no result"
        return
    if code is not None and result.exit != code:
        yield f"result.json says exit {result.exit}, and it was {code}"
    yield from directory_faults(launch.run_dir)
    for words in (
        ["status", "--json"],
        ["logs", "--rank", "0"],
        ["report", "--output", str(launch.place / "page.html")],
    ):
        done = call(words, cwd=launch.place, env=launch.env, timeout=BOUND)
        if done.returncode != 0 and not is_full:
            yield f"`allranks {words[0]}` ends with {done.returncode}: {done.stderr.strip()[-200:]}"
    if result.verdict is not None and not is_full:
        again = judge_run(run)
        said = [(v.cause, encode(v.finding.where), v.finding.message) for v in (again, result.verdict)]
        if said[0] != said[1]:
            yield f"judged again: {said[0]}, at the end: {said[1]}"
