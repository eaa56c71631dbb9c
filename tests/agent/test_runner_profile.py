"""Ranks are profiled by torch's own profiler while they go on, and neither what they do nor how they end is another."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner_torch import finish, processes, pytestmark, start_with_sockets  # noqa: F401
from tests.hosts.waiting import BOUND, wait_until

from allranks.agent.asking import Asking, profile
from allranks.cli.overlap import pieces
from allranks.overlap.measure import measure
from allranks.overlap.trace import read_trace
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import ProfileOrder
from allranks.protocol.samples import RankProfile

PROGRAM = str(Path(__file__).parent / "programs" / "profiled.py")


def is_kinetos(line: str) -> bool:
    """Whether torch's profiler prints this line itself, also where the program begins it."""
    return any(words in line for words in ("External init callback", "profiler_start", "profiler_stop"))


class Ranks:
    """Two ranks of the program, in a directory that is their node's too."""

    def __init__(self, place: Path, word: str) -> None:
        self.place = place
        self.files = NodeFiles(str(place))
        self.started = start_with_sockets(place, word, program=PROGRAM, cwd=place)

    def until_ready(self) -> None:
        for process in self.started:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert next(line for line in lines if not is_kinetos(line)) == "ready\n"
        wait_until(lambda: all(os.path.exists(self.files.asked(rank)) for rank in range(2)), BOUND, "sockets")

    def begin(self, *ranks: int, seconds: float = 60.0) -> dict[int, str]:
        """Begin to profile ranks; why it does not, by rank."""
        answer = self._order(ranks, ProfileOrder(seconds=seconds))
        return {rank: one.error for rank, one in answer.items()}

    def end(self, *ranks: int, number: int = 1) -> dict[int, RankProfile]:
        return self._order(ranks, ProfileOrder(number=number, is_end=True))

    def _order(self, ranks: tuple[int, ...], order: ProfileOrder) -> dict[int, RankProfile]:
        known = {rank: process for rank, process in processes(self.started).items() if rank in ranks}
        return dict(profile(known, str(self.place), order).ranks)

    def counted(self) -> list[int]:
        """How many collectives each rank has called."""
        answers = Asking(processes(self.started), str(self.place), "counters").answers()
        return [answers[rank]["groups"][0]["sequence"] for rank in range(2)]

    def go_on(self, steps: int = 3) -> None:
        """Wait for so many steps more."""
        wanted = [count + 2 * steps for count in self.counted()]
        wait_until(lambda: all(map(int.__ge__, self.counted(), wanted)), BOUND, "steps")

    def trace(self, rank: int, number: int = 1) -> list[dict[str, Any]]:
        with gzip.open(self.files.trace(rank, number)) as file:
            events: list[dict[str, Any]] = json.load(file)["traceEvents"]
        return [event for event in events if event.get("ph") == "X"]

    def finish(self, *lines: str) -> None:
        """End the program; each rank has printed these lines, and nothing else but the profiler's own."""
        (self.place / "enough").touch()
        for code, output in finish(self.started):
            printed = [line for line in output.splitlines() if not is_kinetos(line)]
            assert (code, printed) == (0, [*lines, "done"]), output


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path, getattr(request, "param", ""))
    try:
        started.until_ready()
        yield started
    finally:
        for process in started.started:
            process.kill()
            process.communicate()


def test_trace_has_the_program_s_operators_and_collectives(ranks: Ranks) -> None:
    assert ranks.begin(0, 1) == {0: "", 1: ""}
    assert ranks.begin(0) == {0: "it is being profiled already"}
    ranks.go_on(6)  # of which the first and the last may be cut
    ended = ranks.end(0, 1)
    assert [(one.error, one.note) for one in ended.values()] == [("", "")] * 2
    for rank in range(2):
        events = ranks.trace(rank)
        main = {event["name"] for event in events if event["tid"] == ranks.started[rank].pid}
        assert {"aten::addmm", "aten::tanh", "c10d::allreduce_", "Optimizer.step#SGD.step"} <= main
        assert any(event["name"].startswith("autograd::engine") for event in events)
        others = {event["name"] for event in events if event["tid"] != ranks.started[rank].pid}
        assert "gloo:all_reduce" in others, "of a thread that the profiler was not begun in"
        assert ended[rank].seconds > 0 and ended[rank].size == os.path.getsize(ranks.files.trace(rank, 1))
    assert not list(ranks.place.glob("*.trace*")), "the plain traces are gone"
    files = [ranks.files.trace(rank, 1) for rank in range(2)]
    traces = [read_trace(file, pieces(Path(file))) for file in files]
    assert [trace.rank for trace in traces] == [0, 1]
    measured = measure(traces, are_cut=True)
    assert all(len(rank.steps) >= 3 for rank in measured.ranks)
    kinds = [summary.kind for summary in measured.collectives]
    assert {kind.name: kind.size for kind in kinds if kind.size == 4096} == {"all_reduce": 4096}

    assert ranks.end(0)[0].error == "it is not being profiled"
    assert ranks.begin(1) == {1: ""}, "and once more"
    ranks.go_on()
    assert ranks.end(1, number=2)[1].error == ""
    assert ranks.trace(1, number=2)
    ranks.go_on()
    ranks.finish()


@pytest.mark.parametrize("ranks", ["", "stays"], indirect=True)
def test_program_that_ends_meanwhile_ends_as_ever(ranks: Ranks) -> None:
    """With and without destroy_process_group."""
    assert ranks.begin(0, 1) == {0: "", 1: ""}
    ranks.finish()
    assert ranks.end(0, 1) == {}


def test_no_longer_than_its_time(ranks: Ranks) -> None:
    assert ranks.begin(0, seconds=1.0) == {0: ""}
    wait_until(lambda: os.path.exists(ranks.files.plain_trace(0)), BOUND, "the end of its time")
    ranks.go_on()
    assert ranks.end(0)[0].note == "its time was over"
    assert ranks.trace(0)
    ranks.finish()


@pytest.mark.parametrize("ranks", ["profiling"], indirect=True)
def test_program_s_own_profiler_is_left_alone(ranks: Ranks) -> None:
    why = "its program has a profiler of torch itself, and a process has one at a time"
    assert ranks.begin(0, 1) == {0: why, 1: why}
    ranks.finish("own trace True")


@pytest.mark.parametrize("ranks", ["own"], indirect=True)
def test_program_s_own_profiler_ends_ours(ranks: Ranks) -> None:
    assert ranks.begin(0) == {0: ""}
    ranks.go_on()
    (ranks.place / "now").touch()
    wait_until(lambda: os.path.exists(ranks.files.plain_trace(0)), BOUND, "the end of ours")
    ended = ranks.end(0)[0]
    assert (ended.error, ended.note) == ("", "its program began a profiler of its own")
    names = {event["name"] for event in ranks.trace(0)}
    assert "aten::tanh" in names and "aten::cosh" not in names
    ranks.finish("own trace True")


@pytest.mark.parametrize("ranks", ["fork"], indirect=True)
def test_forked_process_records_nothing(ranks: Ranks) -> None:
    assert ranks.begin(0) == {0: ""}
    (ranks.place / "now").touch()
    ranks.go_on(6)
    assert ranks.end(0)[0].error == ""
    ranks.finish("rows 20.0")
