"""preempt: 50 seeded preemptions on a real Slurm: does every rank save the same step before the end, and go on from it?

Each round is a job of its own on 2 to 4 nodes, which Slurm itself takes back or warns. A round adds a line to
bench/out/preempt-SEED.jsonl. One that has its line is not played again, so a call goes on where the last one ended.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.hosts.bed import BedError
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed, missing
from tests.slurm.bed.config import GRACE_TIME, KILL_WAIT
from tests.slurm.jobs import SlurmLaunch

from allranks.text import join_words
from bench.launch import PROGRAMS, ground
from bench.table import OUT, Report, Sample

NODES = 4
SEED = 16
STOP_GRACE = 20  # more than KillWait and GraceTime: what Slurm gives is what there is
BOUND = 300.0  # seconds for a part of a round: a start, a way through the queue, an end
WARNING = 10.0  # seconds in which all must have saved after a signal that ends nothing
LONGEST_DELAY = 3.0
WITH_TORCH = 0.2  # of the rounds


class Kind(NamedTuple):
    """What Slurm does: `grace` is seconds from its word to its SIGKILL, `source` the option that they come from."""

    name: str
    what: str
    rounds: int
    partition: str
    grace: float
    source: str
    is_end: bool = True
    is_requeue: bool = False


KINDS = (
    Kind("warned", "`scancel --signal=USR1`: to the steps, the script, or both", 18, "main", WARNING, "", is_end=False),
    Kind("requeued", "`scontrol requeue`", 13, "main", KILL_WAIT, "KillWait", is_requeue=True),
    Kind("preempted", "preempted by a higher partition after `--signal`, and requeued", 9, "low", GRACE_TIME,
         "GraceTime", is_requeue=True),
    Kind("unwarned", "preempted by a higher partition by SIGTERM, and requeued", 4, "low", GRACE_TIME, "GraceTime",
         is_requeue=True),
    Kind("taken", "preempted by a higher partition for good", 4, "spot", GRACE_TIME, "GraceTime"),
    Kind("limit", "the time limit", 2, "short", STOP_GRACE, "--signal"),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}
WAYS = (("--signal=USR1",), ("--full", "--signal=USR1"), ("--batch", "--signal=USR1"))


class Round(NamedTuple):
    """What a round does. `delay` is seconds from the first step of all ranks to the preemption."""

    number: int
    kind: str
    nodes: int
    nproc: int
    delay: float
    pause: float
    saving: float
    way: int
    with_torch: bool

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.nodes * self.nproc


class Word(NamedTuple):
    """What a rank wrote down: its first step of an attempt, or a step that it saved. `t` is unix seconds."""

    event: str
    rank: int
    attempt: int
    step: int
    t: float


class Seen(NamedTuple):
    """What a round came to. `told_t`: when Slurm's word had reached the controller. `said`: what the run says."""

    words: tuple[Word, ...]
    told_t: float
    said_step: int | None
    said_ranks: int
    said_of: int
    exit: int
    message: str
    evidence: tuple[str, ...]
    restarts: int
    left: tuple[str, ...]


def draw(seed: int, quick: bool) -> list[Round]:
    """The rounds in a random order; one of each kind with `quick`."""
    dice = random.Random(seed)
    kinds = [kind.name for kind in KINDS for _ in range(1 if quick else kind.rounds)]
    dice.shuffle(kinds)
    rounds = []
    for number, kind in enumerate(kinds):
        nodes = dice.randint(2, NODES)
        rounds.append(
            Round(
                number=number,
                kind=kind,
                nodes=nodes,
                nproc=dice.randint(1, 2) if nodes < NODES else 1,
                delay=round(dice.uniform(0.0, LONGEST_DELAY), 3),
                pause=round(dice.uniform(0.002, 0.05), 4),
                saving=round(dice.uniform(0.0, 1.0), 3),
                way=dice.randrange(len(WAYS)),
                with_torch=dice.random() < WITH_TORCH,
            )
        )
    return rounds


def judge(round_: Round, seen: Seen) -> list[str]:
    """What did not hold. Each rank has saved once, all at one step, in time, and went on from there."""
    kind = BY_NAME[round_.kind]
    saves = [word for word in seen.words if word.event == "saved"]
    counted = Counter(word.rank for word in saves)
    steps = sorted({word.step for word in saves})
    faults = [f"left: {process}" for process in seen.left]
    for rank in range(round_.world_size):
        if counted[rank] != 1:
            faults.append(f"rank {rank} saved {counted[rank]} times")
    if len(steps) > 1:
        faults.append(f"ranks saved steps {join_words([str(step) for step in steps])}")
    late = [word.rank for word in saves if word.t > seen.told_t + kind.grace]
    if late:
        faults.append(f"ranks {late} saved after the {kind.grace:g} s were over")
    if steps and (seen.said_step, seen.said_ranks, seen.said_of) != (steps[-1], round_.world_size, round_.world_size):
        faults.append(f"the run says step {seen.said_step} on {seen.said_ranks} of {seen.said_of} ranks")
    if kind.is_requeue:
        faults += _resumed(round_, seen, steps)
    right = 0 if kind.is_requeue or not kind.is_end else 4
    if seen.exit != right:
        faults.append(f"exit {seen.exit}, not {right}")
    if kind.source and not any(kind.source in line for line in (seen.message, *seen.evidence)):
        faults.append(f"the verdict does not say that {kind.source} gave the time: {seen.message}")
    return faults


def _resumed(round_: Round, seen: Seen, steps: Sequence[int]) -> list[str]:
    if seen.restarts < 1:
        return [f"Slurm started the job {seen.restarts} times again"]
    firsts = {word.rank: word.step for word in seen.words if word.event == "first" and word.attempt == 1}
    wanted = {rank: step + 1 for step in steps[-1:] for rank in range(round_.world_size)}
    if firsts != wanted:
        return [f"after the requeue the first steps are {firsts}"]
    return []


class Play:
    """A round in progress; `place` is its own directory."""

    def __init__(self, bed: SlurmBed, place: Path, round_: Round) -> None:
        self.bed = bed
        self.place = place
        self.round = round_
        self.kind = BY_NAME[round_.kind]
        self.launch = SlurmLaunch(bed, place)
        self.job = ""

    def words(self) -> tuple[Word, ...]:
        """What the ranks have written down so far."""
        lines = [line for path in self.place.glob("words-*.jsonl") for line in path.read_text().splitlines()]
        return tuple(Word(**json.loads(line)) for line in lines if line.endswith("}"))

    def has(self, event: str, attempt: int) -> bool:
        """Whether each rank has written it down in this attempt."""
        ranks = {word.rank for word in self.words() if (word.event, word.attempt) == (event, attempt)}
        return len(ranks) == self.round.world_size

    def play(self) -> Seen:
        """Start the job, take it back, see it end."""
        self.start()
        time.sleep(self.round.delay)
        self.take_back()
        return self.end()

    def start(self) -> None:
        """Submit the job, and wait until all ranks train."""
        round_ = self.round
        words = [str(self.place), str(round_.pause), str(round_.saving), *(["torch"] if round_.with_torch else [])]
        directives = [
            f"--nodes={round_.nodes}",
            f"--partition={self.kind.partition}",
            "--requeue",
            "--open-mode=append",
        ]
        if self.kind.name != "unwarned":
            directives.append(f"--signal=B:XCPU@{STOP_GRACE + 15}")
        options = ("--nproc", str(round_.nproc), "--stop-grace", f"{STOP_GRACE}s", "--output-dir", f"{self.place}/out")
        self.job = self.launch.script([str(PROGRAMS / "preempt.py"), *words], *options, directives=directives)
        wait_until(lambda: self.has("first", 0), BOUND, "all ranks train")

    def end(self) -> Seen:
        """Wait until all have saved, and until the job is over, after a requeue in its second attempt."""
        wait_until(lambda: self.has("saved", 0) or self.is_over(), BOUND, "all ranks have saved")
        if self.kind.is_requeue:
            wait_until(lambda: self.has("first", 1) or self.is_over(), BOUND, "it goes on after the requeue")
        if self.kind.is_requeue or not self.kind.is_end:
            (self.place / "go").touch()
        wait_until(self.is_over, BOUND, "the job ends")
        return self.look()

    def take_back(self) -> None:
        """What Slurm is asked to do; a time limit comes without it."""
        if self.kind.name == "warned":
            self.bed.call("scancel", *WAYS[self.round.way], self.job)
        if self.kind.name == "requeued":
            self.bed.scontrol("requeue", self.job)
        if self.kind.partition in ("low", "spot"):
            self.bed.call("sbatch", "-p", "high", f"-N{NODES}", "--exclusive", "--wrap", "sleep 1", "-o", "/dev/null")

    def is_over(self) -> bool:
        """Whether Slurm will do nothing more with the job."""
        state = self.bed.job(self.job).get("JobState", "")
        return state in ("COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL")

    def look(self) -> Seen:
        """What there is to see once it is over."""
        restarts = int(self.bed.job(self.job).get("Restarts", "0"))
        result = self.launch.written_result()
        events = self.launch.events()
        kinds = ("save-asked",) if not self.kind.is_end else ("stop-asked",)
        told = [event["t"] for event in events if event["event"] in kinds]
        saved = next((event for event in events if event["event"] == "saved"), {})
        verdict = (result["attempts"][0].get("verdict") if result["attempts"] else None) or result["verdict"] or {}
        return Seen(
            words=self.words(),
            told_t=told[0] if told else 0.0,
            said_step=saved.get("step"),
            said_ranks=saved.get("ranks", 0),
            said_of=saved.get("of", 0),
            exit=result["exit"],
            message=verdict.get("message", ""),
            evidence=tuple(verdict.get("evidence", ())),
            restarts=restarts,
            left=self.left(),
        )

    def left(self) -> tuple[str, ...]:
        """Processes that do not end."""
        try:
            self.launch.nothing_left()
        except AssertionError:
            return tuple(self.bed.left())
        return ()


def sample(bed: SlurmBed, place: Path, round_: Round, kept: Path) -> Sample:
    """One round as its line has it; what one with a fault has left is kept."""
    play = Play(bed, place, round_)
    load = os.getloadavg()[0]
    began = time.monotonic()
    try:
        seen = play.play()
        faults = judge(round_, seen)
        line = _line(round_, seen, faults)
    except (AssertionError, OSError, ValueError, KeyError, BedError) as error:
        line = {"right": 0, "faults": [f"{type(error).__name__}: {error}"[:1000]]}
    finally:
        bed.heal()
    if line["faults"]:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(place, kept, ignore_dangling_symlinks=True)
    return {**line, "seconds": round(time.monotonic() - began, 1), "load": round(max(load, os.getloadavg()[0]), 1)}


def _line(round_: Round, seen: Seen, faults: Sequence[str]) -> Sample:
    saves = [word for word in seen.words if word.event == "saved"]
    last = max((word.t for word in saves), default=seen.told_t)
    return {
        "right": int(not faults),
        "faults": list(faults),
        "steps": sorted({word.step for word in saves}),
        "ranks_saved": len({word.rank for word in saves}),
        "to_save": round(last - seen.told_t, 2),
        "spare": round(BY_NAME[round_.kind].grace - (last - seen.told_t), 2),
        "restarts": seen.restarts,
        "message": seen.message,
        "evidence": list(seen.evidence),
    }


def run(quick: bool) -> Report:
    """All rounds that have not been played; one of each kind with --quick."""
    reason = missing()
    if reason:
        return Report("preempt", f"preempt is skipped: {reason}")
    rounds = draw(SEED, quick)
    OUT.mkdir(exist_ok=True)
    path = OUT / f"preempt-{SEED}{'-quick' if quick else ''}.jsonl"
    lines = read_lines(path)
    with ground() as common, SlurmBed.up(NODES, common.directory / "bed", gpus=0) as bed:
        for round_ in rounds:
            if round_.number in lines:
                continue
            kept = path.with_suffix("") / f"round-{round_.number:03d}"
            line = {**round_._asdict(), **sample(bed, common.place(), round_, kept)}
            lines[round_.number] = line
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{round_.number}: {round_.kind}, {round_.world_size} ranks: "
                  f"{'right' if line['right'] else line['faults']}", flush=True)  # fmt: skip
    return report_of(list(lines.values()), len(rounds))


def read_lines(path: Path) -> dict[int, Sample]:
    """The last line of each round so far."""
    texts = path.read_text().splitlines() if path.exists() else []
    return {line["number"]: line for line in map(json.loads, texts)}


def report_of(lines: Sequence[Mapping[str, Any]], rounds: int) -> Report:
    """The table: by what Slurm did, and of all."""
    report = Report("preempt", f"preempt: {len(lines)} of {rounds} preemptions on a real Slurm, 2 to {NODES} nodes")
    for kind in KINDS:
        played = [dict(line) for line in lines if line["kind"] == kind.name]
        report.samples[kind.name] = played
        report.add(f"{kind.what}: the same step on all ranks, in time", [float(line["right"]) for line in played], "")
        report.add(f"… Slurm's word to the last checkpoint, of {kind.grace:g} s",
                   [line["to_save"] for line in played if "to_save" in line])  # fmt: skip
    requeues = sum(line["right"] and line.get("restarts", 0) > 0 for line in lines)
    report.add("went on at the saved step after a requeue", [float(requeues)], "rounds", "≥ 15", lambda n: n >= 15)
    right = sum(line["right"] for line in lines)
    report.add("right of all", [float(right)], "rounds", f"{rounds} of {rounds}", lambda n: n >= rounds)
    report.notes.append(f"{sum(line['with_torch'] for line in lines)} rounds with torch and Gloo, the rest without")
    loads = [line["load"] for line in lines]
    if loads:
        report.notes.append(f"load {min(loads):.0f} to {max(loads):.0f}")
    return report
