"""Ranks say which collective they are at while they wait in it, and the program does not notice."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_runner_torch import finish, processes, pytestmark, start, start_with_sockets  # noqa: F401
from tests.descriptors import many_open
from tests.hosts.waiting import stop_process, wait_until

from allranks.agent.asking import KEPT, Asking, call_times, counted, newest
from allranks.agent.processes import Process, read_process
from allranks.agent.sample import sample
from allranks.diagnose.hangs.frontier import CollectiveFault, account
from allranks.diagnose.hangs.recorder import read_recording
from allranks.diagnose.hangs.stacks import main_stack
from allranks.protocol.node_names import NodeFiles


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Any], Path]]:
    """Two ranks for all tests that only look at them: rank 0 waits in a collective that rank 1 never calls."""
    place = tmp_path_factory.mktemp("stuck")
    ranks = start_with_sockets(place, "stuck")
    try:
        assert all(rank.stdout.readline() == "three\n" for rank in ranks)
        yield ranks, place
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def settled(known: dict[int, Process], place: Path) -> dict[int, dict[str, Any]]:
    """The counters once rank 0 has called its fourth and torch has noted the end of those before."""
    wait_until(lambda: unfinished(known, place) == [(0, 4)], 60.0, "rank 0 in its fourth collective, nothing else open")
    return {rank: counted(answer) for rank, answer in Asking(known, str(place), "counters").answers().items()}


def unfinished(known: dict[int, Process], place: Path) -> list[tuple[int, int]]:
    """Rank and number of each collective that a flight recorder has and that is not done."""
    answers = Asking(known, str(place), "dump").answers()
    recordings = [read_recording(rank, answer) for rank, answer in answers.items()]
    return [(r.rank, e.seq) for r in recordings for entries in r.entries.values() for e in entries if not e.done]


def test_a_rank_that_waits_tells_where_and_one_that_is_stopped_cannot(stuck: tuple[list[Any], Path]) -> None:
    ranks, place = stuck
    known = processes(ranks)
    before = settled(known, place)
    assert (before[0]["0"], before[1]["0"], before[0]["1"]) == (4, 3, 1), before
    answers = Asking(known, str(place), "dump").answers()
    found = account([read_recording(rank, answer) for rank, answer in answers.items()])
    assert found is not None and (found.case, found.culprits) == (CollectiveFault.MISSING, (1,)), answers
    assert found.message == "rank 0 is in all_reduce #4 of 3.91 KB, rank 1 has not called it"
    assert counted(answers[0]) == before[0], "nothing has moved"
    kept = json.loads(Path(NodeFiles(str(place)).flight(0)).read_text().splitlines()[-1])
    assert (kept["rank"], kept["pid"]) == (0, ranks[0].pid)
    seen = {str(rank): one for rank, one in sample(known, str(place), "look").ranks.items()}
    assert {s["how"] for s in seen.values()} == {"asked"}
    assert [f.function for f in main_stack(seen["0"]["text"])][:1] == ["all_reduce"]
    assert "stuck" in [f.function for f in main_stack(seen["1"]["text"])]
    stop_process(ranks[1].pid)
    try:
        late = Asking(known, str(place), "counters").answers()
    finally:
        os.kill(ranks[1].pid, signal.SIGCONT)
    assert "could not answer" in late[1]["error"] and "state T" in late[1]["error"]
    assert counted(late[1]) == {} and counted(late[0]) == before[0]


def test_a_rank_tells_when_it_called_its_newest_collectives(stuck: tuple[list[Any], Path]) -> None:
    ranks, place = stuck
    known = processes(ranks)
    settled(known, place)
    calls = call_times(known, str(place), 100)
    groups = {rank: {one.name: one for one in of_rank.groups} for rank, of_rank in calls.items()}
    first, second = groups[0]["0"], groups[1]["0"]
    assert (first.size, first.first, first.on_device) == (2, 0, False)
    assert (first.sequence[-1], second.sequence[-1]) == (4, 3), "rank 1 has not called the fourth"
    assert first.kinds[first.kind[-1]] == "all_reduce 1000"
    entries = Asking(known, str(place), "dump").answers()[0]["recorders"]["gloo"]["entries"]
    whole = {e["collective_seq_id"]: e["time_created_ns"] for e in entries if e["process_group"][0] == "0"}
    assert [calls[0].base * 10**6 + created for created in first.created] == [
        whole[number] // 1000 for number in first.sequence
    ], "as the whole dump has it"
    newest_alone = call_times(known, str(place), 1)[0]
    assert [one.sequence for one in newest_alone.groups] == [(4,)]


def test_a_rank_without_a_process_group_is_said_to_have_none(tmp_path: Path) -> None:
    me = read_process(os.getpid())
    assert me is not None
    found = Asking({7: me}, str(tmp_path), "counters").answers()
    assert found == {7: {"error": "its flight recorder could not be asked: it has no process group"}}


def said(output: str) -> list[str]:
    """Lines that are not the helper's; of open files how many there are: torch's own threads take the numbers."""
    kept = [line for line in output.splitlines() if "asked:" not in line]
    return [re.sub(r"\[[0-9, ]+\]", lambda found: f"{len(found[0].split(','))} files", line) for line in kept]


def test_the_program_sees_nothing_of_it(tmp_path: Path) -> None:
    """Threads, files, forked workers with warnings as errors, an end and a second beginning."""
    outputs = {}
    for runner in (False, True):
        place = tmp_path / str(runner)
        place.mkdir()
        more = {"ALLRANKS_ASK_SOCKET": NodeFiles(str(place)).asked(0)} if runner else {}
        outputs[runner] = finish(start("quiet_helper", str(place / "store"), world=1, runner=runner, **more))
    assert [code for code, _ in outputs[True] + outputs[False]] == [0] * 2, outputs
    for plain, through in zip(outputs[False], outputs[True], strict=True):
        lines = through[1].splitlines()
        assert said(through[1]) == said(plain[1])
        asked = [line.partition(": ")[2] for line in lines if "asked:" in line]
        keys = "['groups', 'pid', 'rank', 'recorders', 'schema', 't', 'torch']"
        assert asked == [keys, "refused", keys], "while there are groups, and only then"


def test_the_helper_takes_no_signals(stuck: tuple[list[Any], Path]) -> None:
    ranks, _ = stuck
    texts = [task.read_text() for task in Path(f"/proc/{ranks[1].pid}/task").glob("*/status")]
    blocked = [int(text.partition("SigBlk:")[2].split()[0], 16) for text in texts]
    assert sum(mask >> (signal.SIGUSR1 - 1) & 1 for mask in blocked) == 1


@pytest.mark.parametrize(("entries", "kept"), [(10, [*range(10)]), (100, [3, *range(100 - KEPT, 100)])])
def test_the_newest_entries_go_into_the_message_and_the_oldest_that_waits(entries: int, kept: list[int]) -> None:
    all_of_them = [{"process_group": ["0", ""], "collective_seq_id": i, "retired": i != 3} for i in range(entries)]
    assert [e["collective_seq_id"] for e in newest(all_of_them, KEPT)] == kept


def test_ranks_are_asked_whatever_the_number_of_a_descriptor(stuck):
    """A node with many streams has more than 1,024 descriptors open, which select(2) cannot wait for."""
    ranks, place = stuck
    with many_open():
        answers = Asking(processes(ranks), str(place), "counters").answers()
    assert [sorted(answer)[:2] for answer in answers.values()] == [["groups", "pid"]] * 2
