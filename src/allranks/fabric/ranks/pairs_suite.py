"""The suite `pairs`: every pair of nodes is measured by itself, round by round; what is far from the rest once more.

One rank a node measures, its leader (local rank 0); the others wait. Leaders meet through the job's store, never
through the links that are measured: rank 0 says what a round holds, each leader answers with its figures, and one that
does not answer in time is left out of all that follows. Nothing waits without a limit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Dict, Optional, Tuple, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store

from allranks.exitcodes import CHECK_FAILED, HANG, code_if
from allranks.text import error_line, format_bit_rate, format_time, list_first

from ..analysis.heatmap import heatmap
from ..analysis.judgement import Judgement, judge, retest
from ..analysis.schedule import Pair, Round, coverage_note, packed, rounds
from ..metric_rows import LinkRow, Measurement, SuiteEndRow, Way
from . import local_links as interfaces
from . import nccl_wire as nccl
from . import wire
from .job import STORE_ERRORS, SuiteJob, is_set, put, take
from .options import Options
from .printing import append_row
from .wire import DeadLink, SideFigures, WireListener

LIMIT = 10.0  # seconds that a pair may take
GPU_LIMIT = 30.0  # making an NCCL communicator alone takes some
# Of pairs with a node that already has a dead link: SYNs go out after 0, 1 and 3 s, so 4 s are three attempts.
SHORT = 0.4  # of the limit
START = 60.0  # seconds until every leader must have come
PATIENCE = 5  # times that: how long the others wait for rank 0 to begin; a rank 0 that has ended is seen at once
GRACE = 8.0  # seconds for an answer through the store: packets of a lossy node are repeated after 0.2, 0.6, 1.4, 3 s
POLL = 0.01  # seconds between two questions to the store: of leaders
IDLE = 0.25  # … of ranks that only wait
BETWEEN_ROUNDS = 0.1  # seconds
LOST = HANG  # exit code where rank 0 or the store has ended
BROKEN = CHECK_FAILED  # where a link or a node is at fault
ENOUGH_DEAD = 2  # dead re-tests of a dead pair that settle it: each costs its limit
LISTED = 6  # pairs on a round's line
INTERFACES_SHOWN = 4

T = TypeVar("T")


# -- what passes through the store -----------------------------------------------------------------


@dataclass(frozen=True)
class LeaderFacts:
    """Where a node's leader listens, whether it has a GPU, and its node's ranks: the first, and one past the last."""

    address: str
    port: int
    interface: str
    gpu: bool
    ranks: Tuple[int, int]


@dataclass(frozen=True)
class Setup:
    """What all leaders need to know: the leaders by node, a secret, whether by NCCL."""

    leaders: Dict[int, LeaderFacts]
    token: str
    gpu: bool


@dataclass(frozen=True)
class PairTask:
    """Two nodes that measure their link within `limit` seconds; `a` leads."""

    a: int
    b: int
    limit: float


@dataclass(frozen=True)
class RoundOrder:
    """What rank 0 asks for: pairs to measure, or the exit code with which all end."""

    pairs: Tuple[PairTask, ...] = ()
    exit: Optional[int] = None


class StoreSilentError(Exception):
    """A message that was waited for did not come; the text is for people."""


class Board:
    """Messages in the store.

    Asks again and again rather than blocks: a wait that is given up must leave the connection usable. A store that does
    not even answer a question ends the process, as nothing else would.
    """

    def __init__(self, store: Store) -> None:
        self.store = PrefixStore("pairs", store)

    def write(self, key: str, value: object) -> None:
        """Set a key, which is set once."""
        with self._limit(GRACE, key):
            put(self.store, key, value)

    def has(self, key: str) -> bool:
        """Tell whether it is there already."""
        with self._limit(GRACE, key):
            return is_set(self.store, key)

    def read(self, key: str, kind: type[T], seconds: float, poll: float = POLL) -> T:
        """Wait for a message; raise StoreSilentError where it does not come."""
        until = time.monotonic() + seconds
        with self._limit(seconds + GRACE, key):
            while not is_set(self.store, key):
                if time.monotonic() > until:
                    raise StoreSilentError(f"rank 0 gave no sign for {seconds:g} s")
                time.sleep(poll)
            return take(self.store, key, kind)

    @contextlib.contextmanager
    def _limit(self, seconds: float, key: str) -> Iterator[None]:
        """End the process unless the block is left in time: a blocked call into the store can't be interrupted."""
        text = f"allranks test --suite pairs: the store does not answer ({key})"
        timer = threading.Timer(seconds + 2 * GRACE, _end_process, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _end_process(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    os._exit(LOST)


# -- every rank ------------------------------------------------------------------------------------


def run(job: SuiteJob, options: Options) -> int:
    """Do this rank's part; give 3 where something is at fault, 5 where rank 0 has ended, else 0."""
    member = Coordinator(job, options) if job.rank == 0 else PairsRank(job, options)
    try:
        return member.run()
    except (StoreSilentError, *STORE_ERRORS) as error:
        where = f"rank {job.rank} on {member.nodes[job.node]}"
        print(f"pairs: {where} cannot go on ({error_line(error)})", file=sys.stderr, flush=True)
        return LOST


class PairsRank:
    """A rank: the leader of its node, which measures, or one that only waits.

    `nodes` are the names by GROUP_RANK, made up where --nodes says less; `plan` is the same on all nodes.
    """

    def __init__(self, job: SuiteJob, options: Options) -> None:
        self.job = job
        self.options = options
        self.board = Board(job.store)
        self.plan = wire.QUICK if options.quick else wire.FULL
        count = int(os.environ.get("GROUP_WORLD_SIZE") or 0) or max(1, job.world // max(1, job.ranks_here))
        self.nodes = [*options.nodes, *(f"node{at}" for at in range(len(options.nodes), count))]

    def run(self) -> int:
        """Do what the rounds say until the end, and give the exit code."""
        leads = self.job.local_rank == 0
        if leads:
            self.appear()
        poll = POLL if leads else IDLE
        setup = self.board.read("setup", Setup, PATIENCE * START, poll)
        patience = self.limit_of(setup.gpu) + 4 * GRACE
        number = 0
        while True:
            order = self.board.read(f"round/{number}", RoundOrder, patience, poll)
            if order.exit is not None:
                self.board.write(f"ended/{self.job.rank}", True)
                return order.exit
            if leads:
                self.take_part(setup, number, order)
            number += 1

    def limit_of(self, gpu: bool) -> float:
        """Give the seconds that a pair may take."""
        return min(GPU_LIMIT if gpu else LIMIT, self.options.timeout)

    def appear(self) -> None:
        """Listen, and say where."""
        job = self.job
        address = interfaces.gloo_address(os.environ, self._towards())
        self.listener = WireListener(address)
        interface = interfaces.first_interface(os.environ) or interfaces.interface_of(address)
        gpu = self.options.backend != "gloo" and nccl.usable(job.local_rank)
        ranks = (job.rank, job.rank + job.ranks_here)
        self.board.write(f"leader/{job.node}", LeaderFacts(address, self.listener.port, interface, gpu, ranks))

    def _towards(self) -> str:
        """Choose the other end: MASTER_ADDR; at node 0, where that may be loopback, the first other node to come."""
        if self.job.node != 0:
            return self.job.host
        until = time.monotonic() + START / 2
        while len(self.nodes) > 1 and time.monotonic() < until:
            for node in range(1, len(self.nodes)):
                if self.board.has(f"leader/{node}"):
                    return self.board.read(f"leader/{node}", LeaderFacts, GRACE).address
            time.sleep(POLL)
        return self.job.host

    def take_part(self, setup: Setup, number: int, order: RoundOrder) -> None:
        """Measure this node's pair of a round, if it has one, and post the figures."""
        for task in order.pairs:
            if self.job.node in (task.a, task.b):
                self.board.write(f"figures/{number}/{self.job.node}", self._answer(setup, number, task))

    def _answer(self, setup: Setup, number: int, task: PairTask) -> SideFigures:
        try:
            return self._measure(setup, number, task)
        except (DeadLink, OSError) as error:
            return SideFigures(dead=str(error))

    def _measure(self, setup: Setup, number: int, task: PairTask) -> SideFigures:
        leads = self.job.node == task.a
        if setup.gpu:
            # A connection of its own: a thread that is left behind in a wait would block the others on it.
            store = PrefixStore(f"pairs/nccl/{number}/{task.a}/{task.b}", self.job.connect())
            return nccl.over_nccl(store, int(not leads), self.job.local_rank, self.plan, task.limit)
        other = task.b if leads else task.a
        peer = self.nodes[other]
        greeting = wire.make_greeting(setup.token, number, task.a, task.b)
        deadline = time.monotonic() + task.limit
        if leads:
            there = setup.leaders[other]
            address = self.listener.address
            line = wire.connect(address, there.address, there.port, peer, greeting, deadline, task.limit)
        else:
            key = f"figures/{number}/{other}"
            line = self.listener.accept(peer, greeting, deadline, task.limit, lambda: self.board.has(key))
        try:
            return wire.measure(line, leads, self.plan)
        finally:
            line.close()


# -- rank 0 ----------------------------------------------------------------------------------------


class Coordinator(PairsRank):
    """Rank 0, with the schedule, the collection, the verdict, and every word that is printed.

    `lost` has the nodes of which nothing is asked any more, with the reason; `impaired` those with a dead link.
    """

    setup: Setup

    def __init__(self, job: SuiteJob, options: Options) -> None:
        super().__init__(job, options)
        asked = {"bandwidth": options.min_bandwidth, "latency": options.max_latency}
        self.floors = {metric: value for metric, value in asked.items() if value}
        self.places = {name: at for at, name in enumerate(self.nodes)}
        self.round = 0
        self.lost: dict[str, str] = {}
        self.impaired: set[str] = set()

    def run(self) -> int:
        """Measure, judge, report; give the exit code."""
        self.appear()
        self._gather()
        left_out = {frozenset(pair) for pair in self.options.dead}
        schedule = []
        for pairs in rounds(self.nodes):
            pairs = tuple(pair for pair in pairs if frozenset(pair) not in left_out)
            if pairs:
                schedule.append(pairs)
        self._announce(schedule, len(left_out))
        first: list[LinkRow] = []
        for at, pairs in enumerate(schedule, 1):
            first += self._measure_round(pairs, f"round {at}/{len(schedule)}", again=False)
        again = self._measure_again(first)
        addresses = {self.nodes[node]: facts.address for node, facts in self.setup.leaders.items()}
        judgement = judge(self._as_lost(first), self._as_lost(again), self.floors, addresses)
        code = code_if(any(finding.status == "fail" for finding in judgement.findings), BROKEN)
        self._report(judgement, bool(first))
        append_row(self.options.out, SuiteEndRow("pairs", code == 0, code, findings=tuple(judgement.findings)))
        self._dismiss(code)
        return code

    # -- collecting ------------------------------------------------------------------------------------

    def _gather(self) -> None:
        until = time.monotonic() + START
        leaders = {}
        for node, name in enumerate(self.nodes):
            facts = self._read(f"leader/{node}", LeaderFacts, name, until)
            if facts is not None:
                leaders[node] = facts
        gpu = self.options.backend != "gloo" and all(facts.gpu for facts in leaders.values())
        self.setup = Setup(leaders, secrets.token_hex(16), gpu)
        self.board.write("setup", self.setup)

    def _read(self, key: str, kind: type[T], node: str, until: float) -> T | None:
        """Wait for a node's message; a node whose message does not come is lost."""
        try:
            return self.board.read(key, kind, max(0.0, until - time.monotonic()))
        except StoreSilentError:
            self.lost[node] = f"{node} did not answer"
            return None

    def _measure_round(self, pairs: Round, title: str, again: bool) -> list[LinkRow]:
        """Give the rows of a round; pairs with a lost node are not tried."""
        tasks = []
        for a, b in pairs:
            if self.lost.keys().isdisjoint((a, b)):
                limit = self.limit_of(self.setup.gpu)
                if not self.impaired.isdisjoint((a, b)):
                    limit *= SHORT
                tasks.append(PairTask(self.places[a], self.places[b], limit))
        number = self.round
        self.round += 1
        order = RoundOrder(tuple(tasks))
        self.board.write(f"round/{number}", order)
        until = time.monotonic() + max((task.limit for task in tasks), default=0.0) + GRACE
        self.take_part(self.setup, number, order)
        answers = {}
        for task in tasks:
            for node in (task.a, task.b):
                name = self.nodes[node]
                answers[name] = self._read(f"figures/{number}/{node}", SideFigures, name, until) or SideFigures()
        rows = [self._row(pair, number, answers, again) for pair in pairs]
        for row in rows:
            append_row(self.options.out, row)
            if row.dead:
                self.impaired.update((row.a, row.b))
        say(f"{title}: {describe(rows)}")
        return rows

    def _row(self, pair: Pair, number: int, answers: dict[str, SideFigures], again: bool) -> LinkRow:
        row = LinkRow(*pair, number, again=again)
        a, b = (answers.get(node, SideFigures()) for node in pair)
        dead = self._reason_lost(pair) or a.dead or b.dead
        if dead:
            return replace(row, dead=dead)
        # A side times the round trips that it starts, and counts what it receives.
        return replace(row, there=Way(b.rate, a.latency, a.tail), back=Way(a.rate, b.latency, b.tail))

    def _reason_lost(self, pair: Pair) -> str:
        return next((self.lost[node] for node in pair if node in self.lost), "")

    def _measure_again(self, first: Sequence[LinkRow]) -> list[LinkRow]:
        schedule = packed(retest(self._as_lost(first), self.floors))
        if schedule:
            count = len({pair for pairs in schedule for pair in pairs})
            say(f"measuring again what is out of the norm: {count} pairs")
        dead_at_first = {row.cell() for row in first if row.dead}
        rows: list[LinkRow] = []
        for at, pairs in enumerate(schedule, 1):
            open_pairs = tuple(pair for pair in pairs if not _stays_dead(pair, dead_at_first, rows))
            if open_pairs:
                rows += self._measure_round(open_pairs, f"again {at}/{len(schedule)}", again=True)
        return rows

    def _as_lost(self, rows: Sequence[LinkRow]) -> list[LinkRow]:
        """Give the rows as they count at the end: of a node that is lost meanwhile, every link is dead."""
        return [replace(row, dead=self._reason_lost((row.a, row.b)) or row.dead) for row in rows]

    def _dismiss(self, code: int) -> None:
        """Tell all, and stay until they have read it: the store may end with this process."""
        self.board.write(f"round/{self.round}", RoundOrder(exit=code))
        until = time.monotonic() + GRACE
        with contextlib.suppress(StoreSilentError):
            for node, facts in self.setup.leaders.items():
                for rank in range(*facts.ranks):
                    if rank != 0 and self.nodes[node] not in self.lost:
                        self.board.read(f"ended/{rank}", bool, max(0.0, until - time.monotonic()))

    # -- reporting -------------------------------------------------------------------------------------

    def _announce(self, schedule: Sequence[Round], left_out: int) -> None:
        seconds = len(schedule) * (self.plan.seconds + BETWEEN_ROUNDS)
        counts = f"{len(self.nodes)} nodes, {sum(map(len, schedule))} pairs in {len(schedule)} rounds"
        path = "NCCL between GPUs"
        if not self.setup.gpu:
            names = sorted({facts.interface for facts in self.setup.leaders.values()} - {""})
            path = f"TCP over {', '.join(names[:INTERFACES_SHOWN]) or 'the network'}"
            if self.options.backend == "nccl":
                path += " (not NCCL: not every node has a GPU that works)"
        parts = [f"{counts}, about {max(1, round(seconds))} s", path, coverage_note(len(self.nodes))]
        if left_out:
            parts.append(f"{left_out} pairs known as dead are left out")
        say("; ".join(filter(None, parts)))
        for reason in self.lost.values():
            say(f"{reason} within {START:g} s")

    def _report(self, judgement: Judgement, any_pair: bool) -> None:
        if not any_pair:
            say("no pair to measure")
            return
        for finding in judgement.findings:
            say(f"{finding.status.upper()} {finding.message}\n     {finding.remedy}")
        for remark in judgement.remarks:
            say(f"note: {remark}")
        say(heatmap(judgement.cells, judgement.norms, self.nodes))
        if judgement.findings:
            say(judgement.findings[0].message)
        elif self.options.dead:
            dead = ", ".join("–".join(pair) for pair in self.options.dead)
            say(f"all links that were measured passed. Dead before: {dead}")
        else:
            say("ALL LINKS PASSED!")


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def _stays_dead(pair: Pair, dead_at_first: set[Pair], again: Sequence[LinkRow]) -> bool:
    cell = Measurement(*pair).cell()
    rows = [row for row in again if row.cell() == cell]
    return cell in dead_at_first and len(rows) >= ENOUGH_DEAD and all(row.dead for row in rows)


def describe(rows: Sequence[Measurement]) -> str:
    """Write `h1–h2 9.1 Gbit/s 85 µs, h3–h4 dead (…)`; of many pairs those that are dead and the slowest first."""
    worst_first = sorted(rows, key=_rate) if len(rows) > LISTED else rows
    return list_first(list(map(_describe_pair, worst_first)), LISTED)


def _describe_pair(row: Measurement) -> str:
    name = f"{row.a}–{row.b}"
    if row.dead:
        return f"{name} dead ({row.dead})"
    text = f"{name} {format_bit_rate(_rate(row))}"
    trips = [way.latency for way in (row.there, row.back) if way.latency]
    if trips:
        text += f" {format_time(max(trips))}"
    return text


def _rate(row: Measurement) -> float:
    return min((way.bandwidth for way in (row.there, row.back) if way.bandwidth), default=0.0)
