"""Hangs of real process groups that their flight recorders explain, and silent runs that do not hang."""

import json
from typing import Any

import pytest
from tests.hosts.launching import Launch, program
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.torch


def dumps(launch: Launch) -> dict[int, dict[str, Any]]:
    """The newest dump of each rank."""
    files = sorted((launch.run_dir / "evidence" / "flight").glob("rank_*.jsonl"))
    found = [json.loads(path.read_text().splitlines()[-1]) for path in files]
    return {dump["rank"]: dump for dump in found}


@pytest.mark.slow
def test_another_collective_at_the_same_number(launch: Launch) -> None:
    launch.start(program("v_hang.py", "gather", "2"), "--hang-timeout", "6s", nproc=2)
    result = launch.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"]) == (5, "collective-mismatch"), verdict
    assert (verdict["where"]["node"], verdict["where"]["rank"]) == ("h2", 2)
    assert "ranks 0, 1 and 3 are in all_reduce #4 of 3.91 KB and rank 2 is in all_gather #4" in verdict["message"]
    assert verdict["evidence"][0].startswith("flight recorder: ")
    found = dumps(launch)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[2]["recorders"]["gloo"]["entries"][-1]["profiling_name"] == "gloo:all_gather"
    assert found[0]["groups"][0]["ranks"] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_silent_run_whose_collectives_go_on_is_no_suspect(launch: Launch) -> None:
    assert launch.start(program("v_silent.py", "20"), "--hang-timeout", "6s").result()["exit"] == 0
    (up,) = launch.events("all-initialised")  # importing torch may take longer than the limit
    assert not [e for e in launch.events("hang-suspected") if e["t"] > up["t"]] and not launch.events("hang")


@pytest.mark.slow
def test_a_pattern_that_does_not_recur(launch: Launch) -> None:
    """The odd rank prints for ever: only the pattern shows that nothing goes on."""
    launch.start(program("v_hang.py", "chatty", "1"), "--hang-timeout", "6s", "--hang-pattern", r"step \d+", nproc=2)
    result = launch.result()
    assert result["exit"] == 5 and result["verdict"]["where"]["rank"] == 1, result
    assert "misbehave" in result["verdict"]["message"]


@pytest.mark.slow
def test_a_chain_of_groups_ends_at_the_rank_that_waits_in_none(launch: Launch) -> None:
    launch.start(program("v_groups.py", "sleep"), "--hang-timeout", "6s", nproc=2)
    verdict = launch.result()["verdict"]
    assert verdict["where"]["rank"] == 3 and verdict["cause"] == "straggler", verdict
    assert verdict["evidence"][0] == (
        "flight recorder: rank 2 is in all_reduce #4 of 400 B of group (ranks 2 and 3), rank 3 has not called it"
    )


@pytest.mark.slow
def test_a_circle_of_groups_and_a_receive_blames_none_and_names_the_receive(launch: Launch) -> None:
    launch.start(program("v_groups.py", "recv"), "--hang-timeout", "6s", nproc=2)
    verdict = launch.result()["verdict"]
    assert (verdict["cause"], verdict["culprits"]) == ("collective-mismatch", []), verdict
    assert verdict["message"].startswith(
        "ranks wait for each other: rank 3 is in recv from rank 0, which has not called the send; "
        "rank 0 is in all_reduce #4 of 400 B of group (ranks 0 and 1), rank 1 has not called it"
    )


@pytest.mark.slow
def test_ten_minutes_of_metrics_and_no_word_are_no_hang(launch: Launch) -> None:
    """The limit is a tenth of the silence, and thrice the time between two metrics."""
    alone = ["--allow", "world-size-mismatch"]
    launch.start(program("v_metrics.py", "600", "20"), "--hang-timeout", "60s", *alone, nproc=2)
    assert launch.wait(2 * BOUND) == 0
    assert not launch.events("hang-suspected") and not launch.events("hang")
    result = json.loads(launch.stdout)
    assert (result["exit"], result["verdict"], result["findings"]) == (0, None, [])
