"""No output is lost: every byte that the kernel took from a rank is in the run directory."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, culprit, program
from tests.hosts.programs import v_odd
from tests.hosts.test_lease import RANKS, begun, check_logs, log_bytes, until_logs_grow
from tests.hosts.waiting import wait_until


def test_full_speed_and_a_rank_killed_in_the_middle(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path, pause="0")
    until_logs_grow(launch)
    os.kill(launch.rank_pid(1), signal.SIGKILL)
    result = launch.over()
    assert culprit(result["verdict"]) == ("h1", 1)
    check_logs(launch)
    assert result["unfetched"] == {} and not launch.events("dropped")


@pytest.fixture(scope="module")
def odd(bed2: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """One run of ranks that write what a log can be broken by."""
    launch = Launch(bed2, tmp_path_factory.mktemp("odd")).start(program("v_odd.py"), nproc=2)
    assert launch.result()["exit"] == 0, launch.stderr[-2000:]
    yield launch
    launch.forget()


@pytest.mark.parametrize("rank", range(RANKS))
def test_any_bytes_arrive_in_order(odd: Launch, rank: int) -> None:
    """Carriage returns, a line of 1 MB, binary, no newline at the end; stdout and stderr as they were written."""
    assert log_bytes(odd, rank) == v_odd.expected(rank)


def test_metrics_are_fetched_and_other_outputs_stay(odd: Launch) -> None:
    for rank in range(RANKS):
        assert (odd.run_dir / "outputs" / f"rank_{rank:02d}_metrics.jsonl").read_text() == v_odd.metrics(rank)
    assert not list(odd.run_dir.rglob("*.pt"))
    places = odd.result()["outputs"]
    assert sorted(places) == ["h1", "h2"]
    for name, ranks in (("h1", (0, 1)), ("h2", (2, 3))):
        listed = odd.bed.host(name).run(["ls", places[name]]).stdout.split()
        assert listed == sorted([f"weights-{r}.pt" for r in ranks] + [f"rank_{r:02d}_metrics.jsonl" for r in ranks])


def test_nccls_own_log_is_beside_the_ranks(odd: Launch) -> None:
    for rank in range(RANKS):
        (path,) = odd.run_dir.glob(f"logs/node_*/nccl_rank_{rank:03d}.log")
        assert path.read_text() == v_odd.nccl(rank)
        assert (path.parent / f"rank_{rank:03d}.log").exists()


def test_what_is_shown_cannot_move_the_cursor(odd: Launch) -> None:
    shown = odd.stderr
    assert "\x1b" not in shown
    assert re.search(r"^\[h1 0\] 0/0 on stdout$", shown, re.M)
    assert re.search(r"^\[h2 3\] Grüße, 世界$", shown, re.M)
    assert re.search(r"^\[h2 3\] no newline at the end of rank 3$", shown, re.M)
    assert max(len(line) for line in shown.splitlines()) < 70_000, "a line is cut for display only"


def test_a_grandchild_that_keeps_the_pipe_open(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(program("v_orphan.py"))
    assert launch.until("rank-exit")[0]["rank"] == 0
    before = launch.log(0).count("late")
    wait_until(lambda: launch.log(0).count("late") > before + 20, BOUND, "output of the grandchild")
    (launch.work / "done").touch()
    result = launch.over()
    assert (result["exit"], result["left"], result["unfetched"]) == (0, {}, {})
    numbers = re.findall(r"late (\d+)$", launch.log(0), re.MULTILINE)  # the first may stand behind the rank's own words
    assert numbers == [str(number) for number in range(len(numbers))]


def test_the_logs_of_a_node_begin_with_its_name(odd: Launch) -> None:
    """node_00_h1/{node.log, rank_000.log, …}"""
    for index, name in enumerate(("h1", "h2")):
        folder = odd.run_dir / "logs" / f"node_{index:02d}_{name}"
        logs = sorted(p.name for p in folder.glob("rank_*.log"))
        assert logs == [f"rank_{2 * index + i:03d}.log" for i in range(2)]
