"""The suite `pairs`: every pair of nodes is measured by itself, round by round; what is far from the rest once more.

One rank a node measures, its leader (local rank 0); the others wait. Leaders meet through the job's store, never
through the links that are measured: rank 0 says what a round holds, each leader answers with what it found, and one
that does not answer in time is left out of all that follows. Nothing waits without a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from allranks.links.heatmap import heatmap
from allranks.links.locate import Judgement, judge, retest
from allranks.links.measure import Floors, Measurement, Way, bits, span
from allranks.links.rounds import Pair, Round, covered, packed, rounds

from . import pairwise, pairwise_gpu
from .factors import quantile
from .job import Job
from .options import Options
from .pairwise import Dead, Door, Figures, Plan

LIMIT, GPU_LIMIT = 10.0, 30.0  # seconds that a pair may take; making an NCCL communicator alone takes some
# Of pairs with a node that already has a dead link: SYNs go out after 0, 1 and 3 s, so 4 s are three attempts.
SHORT = 0.4  # of the limit
START = 60.0  # seconds until every leader must have come
PATIENCE = 5  # times that: how long the others wait for rank 0 to begin; a rank 0 that has ended is seen at once
GRACE = 8.0  # seconds for an answer through the store: packets of a lossy node are repeated after 0.2, 0.6, 1.4, 3 s
POLL, IDLE = 0.01, 0.25  # seconds between looks into the store: of leaders, of ranks that only wait
LOST = 5  # exit code where rank 0 or the store has gone
BROKEN = 3  # where a link or a node is at fault
ENOUGH_DEAD = 2  # dead re-tests of a dead pair that settle it: each costs its limit
LISTED = 6  # pairs on a round's line


def run(job: Job, options: Options) -> int:
    """This rank's part; 3 where something is at fault, 5 where rank 0 has gone, else 0."""
    board = Board(job.store, "allranks test --suite pairs")
    nodes = node_names(job, options)
    leader = Leader(job, options, board, nodes) if job.local_rank == 0 else None
    try:
        if leader and job.rank == 0:
            return Coordinator(board, leader, options).run()
        return Follower(board, leader, job.rank, options).run()
    except (Gone, RuntimeError, OSError) as error:  # RuntimeError: the store's own
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"pairs: rank {job.rank} on {nodes[job.node]} can't go on: {text}", file=sys.stderr, flush=True)
        return LOST


def node_names(job: Job, options: Options) -> tuple[str, ...]:
    """By GROUP_RANK; made up where --nodes says less."""
    count = int(os.environ.get("GROUP_WORLD_SIZE") or 0) or max(1, job.world // max(1, job.ranks_here))
    named = options.nodes
    return (*named, *(f"node{at}" for at in range(len(named), max(count, len(named)))))


def limit_of(options: Options, gpu: bool) -> float:
    """Seconds that a pair may take."""
    return min(GPU_LIMIT if gpu else LIMIT, options.timeout)


class Gone(Exception):
    """What was waited for in the store did not come; the text is for people."""


class Board:
    """Messages as JSON in the store. Looks again and again rather than blocks: a wait that is given up must leave the
    connection usable. A store that does not even answer a look ends the process, as nothing else would."""

    def __init__(self, store: Store, what: str) -> None:
        self.store, self.what = PrefixStore("pairs", store), what

    def write(self, key: str, value: Any) -> None:
        """Set a key, which is set once."""
        with self._guard(GRACE, key):
            self.store.set(key, json.dumps(value))

    def has(self, key: str) -> bool:
        """Whether it is there already."""
        with self._guard(GRACE, key):
            return bool(self.store.check([key]))

    def read(self, key: str, seconds: float, poll: float = POLL) -> Any:
        """Its value, once it is there; Gone where it does not come."""
        until = time.monotonic() + seconds
        with self._guard(seconds + GRACE, key):
            while not self.store.check([key]):
                if time.monotonic() > until:
                    raise Gone(f"rank 0 gave no sign for {seconds:g} s")
                time.sleep(poll)
            return json.loads(self.store.get(key))

    def _guard(self, seconds: float, key: str) -> _Guard:
        return _Guard(seconds + 2 * GRACE, f"{self.what}: the store does not answer ({key})")


class _Guard:
    """Ends the process unless the block is left in time: a blocked call into the store can't be interrupted."""

    def __init__(self, seconds: float, words: str) -> None:
        self.timer = threading.Timer(seconds, self._end)
        self.timer.daemon = True
        self.words = words

    def _end(self) -> None:
        print(self.words, file=sys.stderr, flush=True)
        os._exit(LOST)

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *error: object) -> None:
        self.timer.cancel()


class Leader:
    """The measuring rank of a node."""

    def __init__(self, job: Job, options: Options, board: Board, nodes: Sequence[str]) -> None:
        self.job, self.options, self.board, self.nodes = job, options, board, nodes
        self.me = job.node
        self.setup: dict[str, Any] = {}
        self.door: Door | None = None

    def appear(self) -> None:
        """Open the door and say where it is."""
        address = pairwise.own_address(os.environ, self._towards())
        self.door = Door(address)
        gpu = self.options.backend != "gloo" and pairwise_gpu.usable(self.job.local_rank)
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or pairwise.interface_of(address)
        ranks = [self.job.rank, self.job.rank + self.job.ranks_here]
        here = {"address": address, "port": self.door.port, "interface": interface, "gpu": gpu, "ranks": ranks}
        self.board.write(f"here/{self.me}", here)

    def _towards(self) -> str:
        """MASTER_ADDR; at node 0, where that may be a loopback address, the first other node that has come."""
        if self.me != 0 or len(self.nodes) < 2:
            return self.job.host
        until = time.monotonic() + START / 2
        while time.monotonic() < until:
            for node in range(1, len(self.nodes)):
                if self.board.has(f"here/{node}"):
                    return str(self.board.read(f"here/{node}", GRACE)["address"])
            time.sleep(POLL)
        return self.job.host

    def learn(self, setup: dict[str, Any]) -> None:
        """What rank 0 has collected: `here` of every node, `token`, `gpu`, `plan`."""
        self.setup = setup

    def take_part(self, number: int, content: dict[str, Any]) -> None:
        """Measure this node's pair of a round, if it has one, and post what was found."""
        for a, b, limit in content["pairs"]:
            if self.me in (a, b):
                self.board.write(f"found/{number}/{self.me}", self._found(number, a, b, limit))

    def _found(self, number: int, a: int, b: int, limit: float) -> dict[str, Any]:
        try:
            figures = self._measure(number, a, b, limit)
        except (Dead, OSError) as error:
            return {"dead": str(error)}
        tail = quantile(figures.trips, 0.99) if figures.trips else None
        latency = median(figures.trips) if figures.trips else None
        return {"latency": latency, "tail": tail, "rate": median(figures.rates) if figures.rates else None}

    def _measure(self, number: int, a: int, b: int, limit: float) -> Figures:
        plan, first, other = Plan(*self.setup["plan"]), self.me == a, b if self.me == a else a
        if self.setup["gpu"]:
            # A connection of its own: a thread that is left behind in a wait would block the others on it.
            store = PrefixStore(f"pairs/nccl/{number}/{a}/{b}", self.job.client())
            return pairwise_gpu.over_nccl(store, int(not first), self.job.local_rank, plan, limit)
        assert self.door is not None
        there, peer = self.setup["here"][str(other)], self.nodes[other]
        word, deadline = pairwise.word_of(self.setup["token"], number, a, b), time.monotonic() + limit
        if first:
            door = (there["address"], there["port"])
            line = pairwise.connect(self.door.address, door, peer, word, deadline, limit)
        else:
            line = self.door.take(peer, word, deadline, limit, lambda: self.board.has(f"found/{number}/{other}"))
        try:
            return pairwise.measure(line, first, plan)
        finally:
            line.close()


class Follower:
    """Every rank but rank 0: does what the rounds say until the end. Ranks without a leader's work only wait."""

    def __init__(self, board: Board, leader: Leader | None, rank: int, options: Options) -> None:
        self.board, self.leader, self.rank = board, leader, rank
        self.poll = POLL if leader else IDLE
        self.options = options

    def run(self) -> int:
        if self.leader:
            self.leader.appear()
        setup = self.board.read("setup", PATIENCE * START, self.poll)
        if self.leader:
            self.leader.learn(setup)
        number, patience = 0, limit_of(self.options, setup["gpu"]) + 4 * GRACE
        while True:
            content = self.board.read(f"round/{number}", patience, self.poll)
            if "exit" in content:
                self.board.write(f"ended/{self.rank}", True)
                return int(content["exit"])
            if self.leader:
                self.leader.take_part(number, content)
            number += 1


class Coordinator:
    """Rank 0: the schedule, the collection, the verdict, and every word that is printed."""

    def __init__(self, board: Board, leader: Leader, options: Options) -> None:
        self.board, self.leader, self.options = board, leader, options
        self.nodes = leader.nodes
        self.number = 0
        self.here: dict[str, Any] = {}
        self.limit = LIMIT
        self.gone: dict[str, str] = {}  # node → why nothing is asked of it any more
        self.bad: set[str] = set()  # nodes that have a dead link
        self.plan = pairwise.QUICK if options.quick else pairwise.FULL
        self.floors = Floors(options.min_bandwidth or None, options.max_latency or None)

    def run(self) -> int:
        self.leader.appear()
        self._gather()
        left_out = {frozenset(pair) for pair in self.options.dead}
        schedule = [tuple(p for p in items if frozenset(p) not in left_out) for items in rounds(self.nodes)]
        schedule = [items for items in schedule if items]
        self._announce(schedule, left_out)
        first = [row for at, items in enumerate(schedule, 1)
                 for row in self._round(items, f"round {at}/{len(schedule)}")]  # fmt: skip
        again = self._again(first)
        return self._end(first, again)

    # Collecting.
    def _gather(self) -> None:
        """Who has come, and what all must know."""
        until = time.monotonic() + START
        for at, node in enumerate(self.nodes):
            try:
                self.here[str(at)] = self.board.read(f"here/{at}", max(0.0, until - time.monotonic()))
            except Gone:
                self._leave_out(node)
        gpus = all(item["gpu"] for item in self.here.values())
        gpu = gpus and self.options.backend != "gloo"
        self.limit = limit_of(self.options, gpu)
        setup = {"here": self.here, "token": secrets.token_hex(16), "gpu": gpu, "plan": self.plan}
        self.leader.learn(json.loads(json.dumps(setup)))
        self.board.write("setup", setup)

    def _leave_out(self, node: str) -> None:
        self.gone[node] = f"{node} did not answer"

    def _round(self, pairs: Round, title: str, again: bool = False) -> list[Measurement]:
        """The rows of a round; pairs with a node that has gone are not tried."""
        asked = [pair for pair in pairs if not self.gone.keys() & set(pair)]
        number, self.number = self.number, self.number + 1
        content = [[self.nodes.index(a), self.nodes.index(b), self._limit_for((a, b))] for a, b in asked]
        self.board.write(f"round/{number}", {"pairs": content})
        until = time.monotonic() + max([item[2] for item in content], default=0.0) + GRACE
        self.leader.take_part(number, {"pairs": content})
        found = {node: self._answer(number, node, until) for pair in asked for node in pair}
        rows = [self._row(number, pair, found) for pair in pairs]
        self.bad |= {node for row in rows if row.dead for node in (row.a, row.b)}
        for row in rows:
            self._write({"kind": "link", **row.to_json(), **({"again": True} if again else {})})
        self._say(f"{title}: {describe(rows)}")
        return rows

    def _limit_for(self, pair: Pair) -> float:
        return self.limit * (SHORT if self.bad & set(pair) else 1.0)

    def _answer(self, number: int, node: str, until: float) -> dict[str, Any] | None:
        try:
            left = max(0.0, until - time.monotonic())
            answer: dict[str, Any] = self.board.read(f"found/{number}/{self.nodes.index(node)}", left)
            return answer
        except Gone:
            self._leave_out(node)
            return None

    def _row(self, number: int, pair: Pair, found: dict[str, dict[str, Any] | None]) -> Measurement:
        names = tuple(self.here.get(str(self.nodes.index(n)), {}).get("interface", "") for n in pair)
        dead = next((self.gone[node] for node in pair if node in self.gone), "")
        one, two = found.get(pair[0]) or {}, found.get(pair[1]) or {}
        dead = dead or str(one.get("dead") or two.get("dead") or "")
        if dead:
            return Measurement(*pair, number, dead=dead, interfaces=(names[0], names[1]))
        # A side times the round trips that it starts, and counts what it receives.
        there = Way(two["rate"], one["latency"], one["tail"])
        back = Way(one["rate"], two["latency"], two["tail"])
        return Measurement(*pair, number, there, back, interfaces=(names[0], names[1]))

    # Again.
    def _again(self, first: Sequence[Measurement]) -> list[Measurement]:
        """What is suspect, several times; less often where a dead pair stays dead."""
        wanted = packed(retest(self._settled(first), self.floors))
        dead_first = {row.cell() for row in first if row.dead}
        rows: list[Measurement] = []
        if wanted:
            self._say(f"measuring again what is out of the norm: {len({p for items in wanted for p in items})} pairs")
        for at, items in enumerate(wanted, 1):
            open_ = tuple(pair for pair in items if not self._is_settled(pair, dead_first, rows))
            if open_:
                rows += self._round(open_, f"again {at}/{len(wanted)}", again=True)
        return rows

    def _is_settled(self, pair: Pair, dead_first: set[tuple[str, str, int]], rows: Sequence[Measurement]) -> bool:
        cell = Measurement(*pair, 0).cell()
        mine = [row for row in rows if row.cell() == cell]
        return cell in dead_first and len(mine) >= ENOUGH_DEAD and all(row.dead for row in mine)

    def _settled(self, rows: Sequence[Measurement]) -> list[Measurement]:
        """As they count at the end: of a node that has gone meanwhile, every link is dead."""
        found = []
        for row in rows:
            reason = next((self.gone[node] for node in (row.a, row.b) if node in self.gone), "")
            found.append(Measurement(row.a, row.b, row.round, dead=reason) if reason else row)
        return found

    # Telling.
    def _announce(self, schedule: Sequence[Round], left_out: set[frozenset[str]]) -> None:
        pairs = sum(map(len, schedule))
        seconds = len(schedule) * (self.plan.seconds + 0.1)
        parts = [f"{len(self.nodes)} nodes, {pairs} pairs in {len(schedule)} rounds, about {max(1, round(seconds))} s"]
        over = sorted({item["interface"] for item in self.here.values() if item["interface"]})
        path = "NCCL between GPUs" if self.leader.setup["gpu"] else f"TCP over {', '.join(over[:4]) or 'the network'}"
        if self.options.backend == "nccl" and not self.leader.setup["gpu"]:
            path += " (not NCCL: not every node has a GPU that works)"
        parts += [path, covered(len(self.nodes))]
        parts.append(f"{len(left_out)} pairs known as dead are left out" if left_out else "")
        self._say("; ".join(part for part in parts if part))
        for reason in self.gone.values():
            self._say(f"{reason} within {START:g} s")

    def _end(self, first: Sequence[Measurement], again: Sequence[Measurement]) -> int:
        addresses = {self.nodes[int(at)]: item["address"] for at, item in self.here.items()}
        judged = judge(self._settled(first), self._settled(again), self.floors, addresses=addresses)
        code = BROKEN if any(item.status == "fail" for item in judged.findings) else 0
        self._report(judged, bool(first))
        findings = [item.to_json() for item in judged.findings]
        self._write({"kind": "end", "suite": "pairs", "ok": not code, "exit": code, "findings": findings})
        self._dismiss(code)
        return code

    def _dismiss(self, code: int) -> None:
        """Tell all, and stay until they have heard it: the store may end with this process."""
        self.board.write(f"round/{self.number}", {"exit": code})
        until = time.monotonic() + GRACE
        ranks = [rank for at, item in self.here.items() if self.nodes[int(at)] not in self.gone
                 for rank in range(*item["ranks"]) if rank != 0]  # fmt: skip
        with contextlib.suppress(Gone):
            for rank in ranks:
                self.board.read(f"ended/{rank}", max(0.0, until - time.monotonic()))

    def _report(self, judged: Judgement, any_pair: bool) -> None:
        if not any_pair:
            return self._say("no pair to measure")
        for item in judged.findings:
            self._say(f"{item.status.upper()} {item.message}\n     {item.remedy}")
        for remark in judged.remarks:
            self._say(f"note: {remark}")
        self._say(heatmap(judged.cells, judged.norms, self.nodes))
        if judged.findings:
            return self._say(judged.findings[0].message)
        known = ", ".join("–".join(pair) for pair in self.options.dead)
        return self._say(f"all links that were measured passed; known to be dead: {known}" if known
                         else "ALL LINKS PASSED!")  # fmt: skip

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def _write(self, content: dict[str, Any]) -> None:
        if self.options.out:
            with open(self.options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps({"schema": 1, **content}) + "\n")


def describe(rows: Sequence[Measurement]) -> str:
    """`h1–h2 9.1 Gbit/s 85 µs, h3–h4 dead (…)`; of many pairs the median and the slowest, and what is dead."""
    alive, dead = [row for row in rows if not row.dead], [row for row in rows if row.dead]
    if len(rows) <= LISTED:
        return ", ".join(map(_pair, rows))
    parts = [f"{len(rows)} pairs"]
    if alive:
        slowest = min(alive, key=_rate)
        parts.append(f"median {bits(median(map(_rate, alive)))}, slowest {_pair(slowest)}")
    return ", ".join([*parts, *map(_pair, dead[:LISTED]), *([f"{len(dead)} dead"] if len(dead) > LISTED else [])])


def _pair(row: Measurement) -> str:
    name = f"{row.a}–{row.b}"
    if row.dead:
        return f"{name} dead ({row.dead})"
    trips = [way.latency for way in (row.there, row.back) if way.latency]
    return f"{name} {bits(_rate(row))}" + (f" {span(max(trips))}" if trips else "")


def _rate(row: Measurement) -> float:
    """The slower way."""
    return min((way.bandwidth for way in (row.there, row.back) if way.bandwidth), default=0.0)
