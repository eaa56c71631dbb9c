"""Collectives in logs: other calls, other shapes, and time-outs; one rank's view of those proves nothing.

torchrun signals every worker that is still alive when one fails ("Sending process … closing signal"). If only one
failed, no other was signalled and none failed, the others had ended by themselves, with success: they had fewer
steps to do than the rank that waits for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allranks.findings import Where
from allranks.text import plural

from ..candidate import Candidate, Strength
from ..logs.ends import ends
from ..logs.lines import LogLine
from ..logs.sightings import Evidence, Sighting, quoted
from ..signatures.c10d import DTYPES, OP, SHAPE, compare_calls
from ..words import count_ranks, short
from .log_lines import read_candidate

NEAR = 12  # lines that belong to the message of a mismatch
ENOUGH = 2  # ranks that wait alike before an absent one is suspected
MOST_RANKS = 100_000  # of a world size that a log claims
COLLECT = (
    "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 and compare the dumps of all ranks. "
    "Run `py-spy dump` on every rank, and read each rank's log from its beginning. Where a rank prepares data at that "
    "time, do that before init_process_group, or raise the timeout of the process group"
)
# FSDP and ZeRO call these for each layer that runs (torch all_gather_into_tensor, reduce_scatter_tensor).
SHARDED = (
    "Let every rank run the same layers for each batch: FSDP and ZeRO-3 gather a layer on all ranks at once. Look for "
    "a branch on the data, for experts and for frozen parts. DeepSpeed's set_z3_leaf_modules takes experts, and ZeRO-2 "
    "shards no layers"
)
START_ABSENT = (
    "Start the program on every node, with its own NODE_RANK. Under Slurm start it with `srun`, with "
    "--ntasks-per-node as many as devices, and name the number of nodes in the program (`num_nodes` of Lightning)"
)
PREPARE = "Prepare the data before the run, or give the group a longer timeout (`ddp_timeout` in transformers)"
READ_DUMPS = "Copy these files of all ranks into one directory DIR, and run `allranks diagnose DIR`"


def _of_no_rank(evidence: Evidence, sightings: Sequence[Sighting]) -> Candidate:
    """Read what ranks complain of: none of those that say so is at fault."""
    candidate = read_candidate(evidence, sightings)
    return replace(candidate, where=candidate.where._replace(rank=None), culprits=frozenset())


def mismatch(evidence: Evidence) -> list[Candidate]:
    """Read the whole message by which TORCH_DISTRIBUTED_DEBUG=DETAIL names different calls."""
    reports = evidence.weighed_by("collective-mismatch")
    if not reports:
        return []
    head = reports[0].line
    at = next(i for i, line in enumerate(evidence.lines) if line is head)
    text = "\n".join(line.text for line in evidence.lines[at : at + NEAR] if line.file == head.file)
    cause, confidence = compare_calls(text)
    candidate = _of_no_rank(evidence, reports)
    calls = ", ".join(dict.fromkeys(name for names in OP.findall(text) for name in names if name))
    shapes = dict.fromkeys(f"[{s}]" for s in SHAPE.findall(text))
    types = dict.fromkeys(DTYPES.findall(text))
    message = f"ranks call different collectives: {calls} {' against '.join(shapes)}"
    if cause == "collective-shape-mismatch" and len(shapes) == 1 and len(types) > 1:
        message = f"ranks call {calls or 'one collective'} with different types: {' against '.join(types)}"
    elif cause == "collective-shape-mismatch":
        if "_BASE" in calls:
            candidate = replace(candidate, remedy=SHARDED)
        message = f"ranks call {calls or 'one collective'} with different shapes: {' against '.join(shapes)}"
    return [replace(candidate, cause=cause, confidence=confidence, message=short(message))]


# -- time-outs -------------------------------------------------------------------------------------------


# Further lines of a rank whose own collective timed out, where the first is missing (ProcessGroupNCCL.cpp).
_STOPPED = re.compile(r"detected by watchdog at work|Timeout at NCCL work: \d")


@dataclass(frozen=True)
class Wait:
    """What one rank waited for; `size` is that of its input and output, in elements."""

    rank: int
    seq: int | None
    op: str
    size: tuple[int | None, int | None]
    sighting: Sighting


def waits(evidence: Evidence) -> dict[int, Wait]:
    """Give the first time-out of each rank."""
    by_rank: dict[int, Wait] = {}
    for sighting in evidence.of_rows("watchdog"):
        rank = sighting.place.rank
        if rank is not None and rank not in by_rank:
            size = (sighting.number("numel"), sighting.number("out"))
            by_rank[rank] = Wait(rank, sighting.number("seq"), sighting.groups.get("op", ""), size, sighting)
    return by_rank


def timeouts(evidence: Evidence) -> list[Candidate]:
    """Read time-outs: other calls, other sizes, ranks that never came; else unknown."""
    waiting = waits(evidence)
    stopped = [s for s in evidence.of_rows("work-counts") if _STOPPED.search(s.line.text)]
    reports = evidence.of_rows("watchdog") or evidence.of_rows("dump-signal", "watchdog-stuck") or stopped
    if not reports:
        return []
    lines = [w.sighting.line for w in waiting.values()] or [reports[0].line]
    candidate = replace(
        _of_no_rank(evidence, reports[:1]),
        rule="collective-timeout",
        strength=Strength.SYMPTOM,
        evidence=tuple(quoted(line) for line in lines[:3]),
    )
    reading = None
    # each process group counts for itself, and old lines name none
    places = {(s.place.rank, s.number("seq")) for s in evidence.of_rows("watchdog") if s.place.rank is not None}
    if len(places) == len(waiting):  # no rank waited at two
        reading = _compared(list(waiting.values())) or _absent(evidence, waiting)
    if reading is None:
        what = "a rank waited in a collective"
        if waiting:
            what = f"{count_ranks(waiting)} waited {plural(len(waiting), 'in a', 'for the same')} collective"
        silent = f"{what} until it timed out, and what the others did is not in this log"
        suspected = f"{what} until it timed out: another rank may have been late"
        written = [s.groups["path"] for s in evidence.of_rows("dump-written")]
        remedy = COLLECT
        if written and not evidence.recordings:
            remedy = f"the ranks have written what they called last, each on its node (`{written[0]}`). {READ_DUMPS}"
        suspicion = 0.3
        unseen = _unseen(evidence, waiting)
        if unseen:
            suspicion = 0.45
            suspected = f"{what} until it timed out, and {count_ranks(unseen)} did not or is not in this log"
        return [
            replace(candidate, cause="unknown", confidence=0.4, remedy=remedy, message=silent),
            replace(candidate, cause="straggler", confidence=suspicion, message=suspected),
        ]
    rank = min(reading.culprits) if len(reading.culprits) == 1 else None
    read = replace(candidate, cause=reading.cause, confidence=reading.confidence, message=reading.message)
    return [replace(read, where=candidate.where._replace(rank=rank), culprits=reading.culprits)]


def _compared(waiting: Sequence[Wait]) -> Candidate | None:
    """Compare the calls and sizes of ranks at one place in the sequence, else their places."""
    if len(waiting) < ENOUGH:
        return None
    ops = {w.op for w in waiting}
    sizes = {w.size for w in waiting}
    sequence = {w.seq for w in waiting}
    if len(ops) > 1:
        parts = ", ".join(f"rank {w.rank} {w.op}" for w in waiting[:6])
        return Candidate("collective-mismatch", 0.82, f"ranks waited in different collectives: {parts}")
    if len(sequence) == 1 and len(sizes) > 1:
        parts = ", ".join(f"rank {w.rank} {w.size[0]} elements" for w in waiting[:6])
        message = f"ranks waited in the same {waiting[0].op} with different sizes: {parts}"
        return Candidate("collective-shape-mismatch", 0.7, message)
    return None


def _absent(evidence: Evidence, waiting: Mapping[int, Wait]) -> Candidate | None:
    """Blame the ranks that exist and did not wait, while several others did."""
    ended = list(ends(evidence))
    exist = evidence.ranks | {e.rank for e in ended if e.rank is not None}
    aborted = frozenset(e.rank for e in ended if e.rank is not None and e.signal == 6)
    stopped = frozenset(s.line.rank for s in evidence.of_rows("work-counts") if _STOPPED.search(s.line.text))
    late = frozenset(exist - set(waiting) - aborted - stopped)
    if len(waiting) < ENOUGH or not late or len(late) >= len(waiting) + len(aborted - set(waiting)):
        return None
    wait = next(iter(waiting.values()))
    message = f"{count_ranks(late)} did not come to the {wait.op} (number {wait.seq}) in which the others waited"
    return Candidate("straggler", 0.62, message, culprits=late)


def _unseen(evidence: Evidence, waiting: Mapping[int, Wait]) -> frozenset[int]:
    """List the few ranks that must exist, as higher ones do, and of which the logs have no word."""
    seen = evidence.ranks | set(waiting)
    if len(waiting) < ENOUGH or max(seen) > MOST_RANKS or len({wait.seq for wait in waiting.values()}) > 1:
        return frozenset()
    unseen = frozenset(range(max(seen))) - seen
    return unseen if len(unseen) < len(waiting) else frozenset()


def uneven_end(evidence: Evidence) -> list[Candidate]:
    """Blame uneven data where a collective timed out and the launcher had no other rank left to end."""
    waiting = waits(evidence)
    reports = evidence.of_rows("agent-block")
    alone = any("NO_OTHER_FAILURES" in s.line.text for s in reports)
    signalled = any("closing signal" in line.text for line in evidence.lines)
    failed = {e.rank for e in ends(evidence) if e.rank is not None}
    worked = any(int(s.groups["completed"]) > 1 for s in evidence.of_rows("work-counts"))  # no failure of the start
    others = (failed | evidence.ranks) - set(waiting)
    if len(waiting) != 1 or not alone or signalled or others or not worked:
        return []
    wait = next(iter(waiting.values()))
    candidate = read_candidate(evidence, [wait.sighting])
    return [
        replace(
            candidate,
            rule="uneven-end",
            cause="uneven-data",
            strength=Strength.SYMPTOM,
            confidence=0.66,
            message=f"rank {wait.rank} waited in {wait.op} number {wait.seq} for ranks that had already ended without "
            "failure: it had more batches",
            where=candidate.where._replace(rank=wait.rank),
            evidence=(quoted(wait.sighting.line), *(quoted(s.line) for s in reports[:1])),
        )
    ]


# -- who has not come --------------------------------------------------------------------------------------

# transformers training_args.py, accelerate state.py, timm and YOLO programs: one rank prepares data, the others wait.
GAVE_UP = ("nccl-id-awaited", "store-wait", "store-timeout", "gloo-waited")
FIRST_RANK_CALLS = frozenset(("main_process_first", "local_main_process_first", "torch_distributed_zero_first"))


def first_rank(evidence: Evidence) -> list[Candidate]:
    """Say that ranks gave up on the one that prepares the data, from where they stood."""
    gave_up = evidence.of_rows(*GAVE_UP)
    waited = [s for s in gave_up if FIRST_RANK_CALLS & set(s.calls)]
    if not waited:
        return []
    call = next(call for call in waited[0].calls if call in FIRST_RANK_CALLS)
    candidate = replace(_of_no_rank(evidence, waited), rule="first-rank", cause="straggler", remedy=PREPARE)
    message = f"the other ranks waited in {call} until they timed out: the rank that goes first was still at work"
    return [replace(candidate, confidence=0.72, message=message)]


def preparing(evidence: Evidence) -> list[Candidate]:
    """Say that ranks gave up while another still prepared the data, as the last line of its progress tells."""
    progress = evidence.weighed_by("preparing")
    gave_up = evidence.of_rows("watchdog", "dump-signal", "watchdog-stuck", *GAVE_UP)
    if not progress or not gave_up:
        return []
    state = short(progress[-1].line.text.strip().rsplit("\r", 1)[-1], 80)
    if "100%" in state:
        return []
    candidate = replace(_of_no_rank(evidence, gave_up), rule="preparing", cause="straggler", remedy=PREPARE)
    message = f"ranks waited until it timed out, while another still prepared the data ({state})"
    return [replace(candidate, strength=Strength.SYMPTOM, confidence=0.6, message=message)]


def ranks_announced(evidence: Evidence) -> list[Candidate]:
    """Compare the ranks that announce themselves with the world size: some twice and others never."""
    announced = evidence.weighed_by("ranks-announced")
    worlds = {int(s.groups["world"]) for s in announced}
    counts = Counter(int(s.groups["announced"]) for s in announced)
    if len(worlds) != 1 or not counts:
        return []
    world = worlds.pop()
    absent = frozenset(range(min(world, MOST_RANKS))) - set(counts)
    if not absent:
        return []
    candidate = replace(_of_no_rank(evidence, announced), rule="ranks-announced")
    if min(counts.values()) < ENOUGH:
        message = f"{count_ranks(absent)} of {world} never announced themselves: not started, or on nodes without a log"
        absent_ranks = replace(candidate, cause="rendezvous-timeout", strength=Strength.SYMPTOM)
        return [replace(absent_ranks, confidence=0.4, message=message, remedy=START_ABSENT)]
    message = (
        f"{count_ranks(counts)} of {world} announced themselves more than once and {count_ranks(absent)} never: "
        "nodes count as the same node"
    )
    remedy = (
        "Give every node its own --node-rank (0 … nnodes-1). Under Slurm start the ranks with `srun`, and with as "
        "many tasks a node as devices (--ntasks-per-node)"
    )
    return [replace(candidate, strength=Strength.ROOT, confidence=0.8, message=message, remedy=remedy)]


_SAID = re.compile(
    r"\b[Rr]ank[ =:]{0,2}(?P<rank>\d{1,5})\b(?P<words>[^\d\[]{1,80})"
    r"(?P<size>\d{1,15}(?= elements\b)|\[\d[\d, ]{0,60}\])"
)


def sizes_said(evidence: Evidence) -> list[Candidate]:
    """Compare the sizes of tensors that ranks print in equal words, where their collective then ended in a crash."""
    crashed = evidence.of_rows("segfault", "watchdog", "comm-aborted")
    said: dict[str, dict[int, tuple[str, LogLine]]] = {}
    for line in evidence.tail if crashed else ():
        match = _SAID.search(line.text)
        if match is not None:
            said.setdefault(match["words"].strip(), {})[int(match["rank"])] = (match["size"], line)
    for words, by_rank in said.items():
        sizes = {size for size, _ in by_rank.values()}
        if len(by_rank) == 1 or len(sizes) != len(by_rank):
            continue
        listed = ", ".join(f"rank {rank} {size}" for rank, (size, _) in sorted(by_rank.items()))
        return [
            replace(
                _of_no_rank(evidence, crashed[:1]),
                rule="sizes-said",
                cause="collective-shape-mismatch",
                strength=Strength.ROOT,
                confidence=0.6,
                message=short(f"ranks print different sizes before a crash in their collective ({words}): {listed}"),
                evidence=tuple(quoted(line) for _, line in by_rank.values()),
                where=Where(),
            )
        ]
    return []


RULES = {
    "preparing": ("datasets arrow_dataset.py: the bar of its progress", preparing),
    "first-rank": ("transformers training_args.py main_process_first, accelerate state.py", first_rank),
    "ranks-announced": ("Lightning fabric/utilities/distributed.py (_init_dist_connection)", ranks_announced),
    "sizes-said": ("the program's own words, nccl.h ncclAllReduce: the same count on all ranks", sizes_said),
    "collective-mismatch": ("torch ProcessGroupWrapper.cpp (CollectiveFingerPrint)", mismatch),
    "collective-timeout": ("torch ProcessGroupNCCL.cpp (checkTimeout, pg_status, heartbeatMonitor)", timeouts),
    "uneven-end": ("torch elastic/multiprocessing/api.py (PContext.close), errors/__init__.py", uneven_end),
}
