"""The suite `pairs` with real ranks on loopback, and the wire of a pair over relays that are slow or lose messages."""

import contextlib
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.fabric.gang import Gang
from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.fabric.metric_rows import Measurement, Way
from allranks.fabric.ranks import wire
from allranks.fabric.ranks.wire import QUICK, ByteArrivals, measure

pytestmark = pytest.mark.torch

Start = Callable[..., Gang]


@pytest.fixture
def pairs(gang: Start) -> Start:
    """Starts four nodes on loopback, with one rank each or more."""

    def start(*words: str, ranks_here: int = 1, **more: Any) -> Gang:
        suite = ("--suite", "pairs", "--nodes", "h1,h2,h3,h4", "--quick")
        return gang(4 * ranks_here, ranks_here, *suite, *words, **more)

    return start


def links_of(run: Gang) -> list[dict[str, Any]]:
    """The rows of a run's first pass."""
    return [row for row in run.rows("link") if not row["again"]]


def pairs_of(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(sorted((row["a"], row["b"]))) for row in rows)


ALL = [("h1", "h2"), ("h1", "h3"), ("h1", "h4"), ("h2", "h3"), ("h2", "h4"), ("h3", "h4")]


# -- real ranks ------------------------------------------------------------------------------------


def test_every_pair_is_measured_both_ways(pairs: Start) -> None:
    run = pairs(ranks_here=2)
    codes = run.codes()
    end = run.rows("end")[-1]
    assert set(codes.values()) == {end["exit"]}, "ranks that only wait end as rank 0 does"
    assert end["kind"] == "end" and end["suite"] == "pairs" and end["ok"] == (end["exit"] == 0)
    links = links_of(run)
    assert pairs_of(links) == ALL and all(row["schema"] == 1 and not row["dead"] for row in links)
    for row in links:
        for way in (row["there"], row["back"]):
            assert way["bandwidth"] > 0 and 0 < way["latency"] <= way["tail"]
    assert "6 pairs in 3 rounds" in run.out() and "round 3/3" in run.out() and "row sends to column" in run.out()


@pytest.mark.slow
def test_pairs_known_as_dead_are_left_out(pairs: Start) -> None:
    run = pairs("--dead", "h3/h1,h2/h4")
    run.codes()
    assert pairs_of(links_of(run)) == [pair for pair in ALL if pair not in (("h1", "h3"), ("h2", "h4"))]
    assert "2 pairs known as dead are left out" in run.out()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_leader_that_goes_costs_only_its_pairs(pairs: Start, how: signal.Signals) -> None:
    run = pairs("--timeout", "4s")
    run.until("round 1/3")
    run.send(2, how)
    codes = run.codes(0, 1, 3)
    assert codes == {0: 3, 1: 3, 3: 3}, run.out()
    links = links_of(run)
    assert pairs_of(links) == ALL
    # Of the others a busy machine may make a link slow, or dead within such a short limit.
    silent = [row for row in links if row["dead"].endswith("did not answer")]
    assert len(silent) >= 2 and all(row["dead"] == "h3 did not answer" for row in silent)
    assert all("h3" in (row["a"], row["b"]) for row in silent)
    (finding,) = [item for item in run.rows("end")[-1]["findings"] if item["id"] == "node-dead"]
    assert finding["where"]["node"] == "h3"
    assert "h3 did not answer" in finding["message"] and finding["message"] in run.out()


@pytest.mark.slow
def test_a_leader_that_never_comes(pairs: Start) -> None:
    run = pairs(without=(3,), TEST_START="20")
    assert run.codes() == {0: 3, 1: 3, 2: 3}
    assert [row["dead"] for row in links_of(run) if "h4" in (row["a"], row["b"])] == ["h4 did not answer"] * 3
    assert [item["where"]["node"] for item in run.rows("end")[-1]["findings"]] == ["h4"]


@pytest.mark.slow
def test_the_others_end_when_rank_0_goes(pairs: Start) -> None:
    run = pairs("--timeout", "4s")
    run.until("round 1/3")
    run.ranks[0].kill()
    assert run.codes(1, 2, 3) == {1: 5, 2: 5, 3: 5}


# -- the wire --------------------------------------------------------------------------------------


class Relay:
    """Carries one connection to a door: `rate` bytes/s and `delay` seconds each way; after `most` bytes nothing."""

    def __init__(self, door: int, rate: float = 0.0, delay: float = 0.0, most: float = float("inf")) -> None:
        self.door, self.rate, self.delay, self.most = door, rate, delay, most
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        one, _ = self.listener.accept()
        two = socket.create_connection(("127.0.0.1", self.door))
        for source, sink in ((one, two), (two, one)):
            source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            held: queue.Queue[tuple[float, bytes]] = queue.Queue(maxsize=64)
            threading.Thread(target=self._read, args=(source, held), daemon=True).start()
            threading.Thread(target=self._write, args=(sink, held), daemon=True).start()

    def _read(self, source: socket.socket, held: "queue.Queue[tuple[float, bytes]]") -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16 << 10):
                held.put((time.monotonic() + self.delay, data))
        held.put((0.0, b""))

    def _write(self, sink: socket.socket, held: "queue.Queue[tuple[float, bytes]]") -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while data := self._next(held):
                carried += len(data)
                if carried > self.most:
                    continue
                sink.sendall(data)
                time.sleep(len(data) / self.rate if self.rate else 0.0)
            sink.close()

    def _next(self, held: "queue.Queue[tuple[float, bytes]]") -> bytes:
        due, data = held.get()
        time.sleep(max(0.0, due - time.monotonic()))
        return data


def both(limit: float, through: Callable[[int], int]) -> dict[str, Any]:
    """Measure a pair in two threads; `through` may put a relay before the door. Figures or DeadLink by side."""
    listener = wire.WireListener("127.0.0.1")
    found: dict[str, Any] = {}
    greeting = wire.make_greeting("secret", 7, 0, 1)
    port = through(listener.port)

    def side(name: str, first: bool) -> None:
        line, deadline = None, time.monotonic() + limit
        try:
            if first:
                line = wire.connect("127.0.0.1", "127.0.0.1", port, "two", greeting, deadline, limit)
            else:
                line = listener.accept("one", greeting, deadline, limit, lambda: "one" in found)
            found[name] = wire.measure(line, first, wire.QUICK)
        except wire.DeadLink as error:
            found[name] = error
        finally:
            if line:
                line.close()

    threads = [threading.Thread(target=side, args=args) for args in (("one", True), ("two", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert set(found) == {"one", "two"}
    return found


def test_a_slow_and_far_link_is_measured_in_time() -> None:
    found = both(20.0, lambda port: Relay(port, rate=6e6, delay=0.05).port)
    for figures in found.values():
        assert figures.latency >= 0.1 and 0 < figures.rate < 60e6


def test_large_messages_that_vanish_are_told_from_no_link() -> None:
    found = both(3.0, lambda port: Relay(port, most=40e3).port)
    assert "large messages" in str(found["one"]) and "MTU" in str(found["one"])


def test_nothing_gets_through() -> None:
    found = both(1.5, lambda port: Relay(port, most=0).port)
    assert "timed out after 1.5 s" in str(found["one"]) and "two" in str(found["one"])


def test_a_refused_connection_is_known_at_once_on_both_sides() -> None:
    found = both(60.0, lambda port: free_port())
    assert "refused" in str(found["one"]) and str(found["two"]) == "one could not connect"


def test_a_stranger_is_sent_away_and_the_peer_still_comes_in() -> None:
    def stranger(port: int) -> int:
        other = socket.create_connection(("127.0.0.1", port))
        other.sendall(b"GET / HTTP/1.1\r\n\r\n".ljust(128))
        silent = socket.create_connection(("127.0.0.1", port))
        kept.extend((other, silent))
        return port

    kept: list[socket.socket] = []
    found = both(30.0, stranger)
    assert all(figures.latency and figures.rate for figures in found.values())
    for sock in kept:
        sock.close()


def test_the_wire_over_process_groups() -> None:
    """What runs over NCCL, over Gloo here: there is no GPU to rely on."""
    import torch
    import torch.distributed as dist

    from allranks.fabric.ranks.nccl_wire import NcclWire  # noqa: PLC0415 - it imports torch

    store, found = dist.HashStore(), {}

    def side(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=BOUND))
        found[rank] = measure(NcclWire(group, 1 - rank, torch.device("cpu"), lambda: None), rank == 0, QUICK)

    threads = [threading.Thread(target=side, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert set(found) == {0, 1}
    assert all(figures.latency > 0 and figures.rate > 0 for figures in found.values())


# -- pure parts ------------------------------------------------------------------------------------


def test_rate_leaves_out_the_start() -> None:
    arrivals = ByteArrivals()
    arrivals.points = [(0.0, 10), (0.01, 20), (0.02, 1020), (0.03, 2020)]
    assert arrivals.rate(0.01) == pytest.approx([2000 / 0.02])
    assert arrivals.rate(5.0) == [] and ByteArrivals().rate(0.1) == []
    arrivals.points = [(0.0, 100), (9.0, 1000)]
    assert arrivals.rate(0.02) == [100.0], "of a very slow one there is nothing after the start"


def test_describe_is_short() -> None:
    from allranks.fabric.ranks.pairs_suite import describe  # noqa: PLC0415 - it imports torch

    def row(a: str, b: str, rate: float = 1e9, dead: str = "") -> Measurement:
        way = Way() if dead else Way(rate, 85e-6, 1e-3)
        return Measurement(a, b, 0, way, way, dead)

    few = [row("h1", "h2"), row("h3", "h4", dead="timed out after 10 s")]
    assert describe(few) == "h1–h2 8 Gbit/s 85 µs, h3–h4 dead (timed out after 10 s)"
    many = [row(f"a{at}", f"b{at}", 1e9 + at) for at in range(30)] + [row("x", "y", 1e8), few[1]]
    said = describe(many)
    assert said.startswith("h3–h4 dead (timed out after 10 s), x–y 800 Mbit/s 85 µs, a0–b0 8 Gbit/s")
    assert said.endswith("… 32 in all")
