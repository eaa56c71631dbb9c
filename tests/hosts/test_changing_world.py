"""--nodes MIN:MAX: the others go on without a lost host, and take it in again once they have saved."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.examples.ranks import FSDP, FsdpRanks, fsdp_words
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.test_retries import outcomes
from tests.hosts.waiting import wait_until

STEPS = 200  # of the sharded training: more than two ranks do while the third one's host boots
RANGE = ("--nodes", "2:4", "--lease", "3s", "--connect-timeout", "6s")


@pytest.fixture
def launch(bed4: Bed, tmp_path: Path) -> Iterator[Launch]:
    found = Launch(bed4, tmp_path)
    yield found
    found.forget()


def worlds(launch: Launch) -> list[tuple[int, int]]:
    return [(event["nodes"], event["world_size"]) for event in launch.events("world")]


def until_world(launch: Launch, ranks: int, attempt: int) -> None:
    """All ranks of an attempt show steps of their own."""
    launch.until("attempt-start")
    outputs = launch.run_dir / "outputs"

    def rows(rank: int) -> list[dict[str, Any]]:
        path = outputs / f"rank_{rank:02d}_metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def is_there() -> bool:
        newest = [rows(rank)[-1:] for rank in range(ranks)]
        return all(row and (row[0]["attempt"], row[0]["world"]) == (attempt, ranks) for row in newest)

    wait_until(is_there, BOUND, f"{ranks} ranks in attempt {attempt}")


def test_a_lost_host_is_left_out_and_taken_in_again(bed4: Bed, launch: Launch) -> None:
    launch.start(program("v_world.py"), *RANGE, json_=False)
    until_world(launch, 4, 0)
    bed4.host("h2").power_off()
    until_world(launch, 3, 1)
    bed4.host("h2").power_on()
    until_world(launch, 4, 2)
    (launch.work / "go").touch()
    result = launch.end()
    assert (result["exit"], result["verdict"]) == (0, None), result
    assert outcomes(result) == [(0, "failed"), (1, "regrown"), (2, "done")]
    lost, regrown, _ = result["attempts"]
    assert (lost["cause"], lost["left_out"]) == ("node-network-down", ["h2"])
    assert (regrown["taken_in"], regrown["saved"]["ranks"]) == (["h2"], 3)
    assert worlds(launch) == [(3, 3), (4, 4)]
    steps = [int(step) for step in re.findall(r"resumes at (\d+)", launch.log(0, 2))]
    assert steps == [regrown["saved"]["step"]], "the step that all ranks have saved at"
    assert "world     attempt 1 goes on with 3 of 4 nodes: 3 ranks (4 before, so a global batch is 75%" in launch.stdout
    assert "world changed from 3 to 4" in launch.log(3, 2)
    assert launch.all_gone()


def test_a_start_goes_on_without_a_host_that_is_off(bed4: Bed, launch: Launch) -> None:
    bed4.host("h1").power_off()  # the first: another is the master
    launch.start(program("v_world.py"), *RANGE, "--gather-timeout", "4s", "--regrow", "never", json_=False)
    until_world(launch, 3, 0)
    (launch.work / "go").touch()
    result = launch.end()
    assert (result["exit"], outcomes(result)) == (0, [(0, "done")])
    assert re.search(r"^h1 has no place: ", launch.stdout, re.M), launch.stdout
    assert "world     the run starts with 3 of 4 nodes: 3 ranks" in launch.stdout
    assert launch.all_gone()


def test_a_host_that_is_added_to_the_hostfile_is_taken_in(bed4: Bed, launch: Launch) -> None:
    listed = launch.place / "hosts"
    lines = bed4.hostfile_names.read_text().splitlines()
    listed.write_text("\n".join(lines[:2]) + "\n")
    launch.start(program("v_world.py"), *RANGE, hosts=str(listed), json_=False)
    until_world(launch, 2, 0)
    listed.write_text("\n".join(lines[:3]) + "\n")
    until_world(launch, 3, 1)
    (launch.work / "go").touch()
    result = launch.end()
    assert (result["exit"], outcomes(result)) == (0, [(0, "regrown"), (1, "done")])
    assert "h3 is in the host list now" in launch.stdout
    assert [(n["name"], n["node_rank"]) for n in json.loads((launch.run_dir / "run.json").read_text())["nodes"]] == [
        ("h1", 0),
        ("h2", 1),
        ("h3", 2),
    ]
    assert launch.all_gone()


def test_too_few_hosts_are_a_refused_start(bed4: Bed, launch: Launch) -> None:
    for name in ("h2", "h3", "h4"):
        bed4.host(name).power_off()
    launch.start(program("v_world.py"), *RANGE, "--gather-timeout", "1s", "--connect-timeout", "2s")
    result = launch.result()
    assert result["exit"] != 0 and result["verdict"]["cause"] == "ssh-unreachable", result["verdict"]
    assert launch.all_gone()


@pytest.mark.slow
@pytest.mark.torch
def test_sharded_training_goes_on_as_one_that_was_planned_so(bed4: Bed, launch: Launch, tmp_path: Path) -> None:
    """FSDP2 with DCP checkpoints on 3, 2 and 3 ranks: its losses are those of three runs of that schedule."""
    every, more = "checkpoint.every=5", f"training.max_steps={STEPS}"
    command = [str(FSDP), *fsdp_words(every, more, f"checkpoint.dir={tmp_path / 'kept'}")]
    launch.start(command, "--nodes", "2:3", "--regrow", "now", *RANGE[2:], json_=False)
    launch.until("attempt-start")
    losses = launch.run_dir / "outputs" / "rank_00_metrics.jsonl"

    def step() -> int:
        rows = losses.read_text().splitlines() if losses.exists() else []
        return max((json.loads(row)["step"] for row in rows), default=0)

    wait_until(lambda: step() > 5, BOUND, "a checkpoint")
    bed4.host("h3").power_off()
    launch.until("world")
    wait_until(lambda: launch.stdout.count("resumes ") == 1, BOUND, "two ranks that go on")
    bed4.host("h3").power_on()
    result = launch.end()
    assert result["exit"] == 0, launch.stdout
    schedule = [int(at) for at in re.findall(r"resumes \S+ at step (\d+)", launch.stdout)]
    assert len(schedule) == 2 and [world for world, _ in worlds(launch)] == [2, 3], launch.stdout
    seen = {row["step"]: row["loss"] for row in map(json.loads, losses.read_text().splitlines())}
    expected: dict[int, float] = {}
    for ranks, until in ((3, schedule[0]), (2, schedule[1]), (3, STEPS)):
        own = FsdpRanks(
            tmp_path / "planned", ranks, every, f"training.max_steps={until}", "checkpoint.dir=" + str(tmp_path / "p")
        )
        expected |= own.done().losses()
    assert seen == pytest.approx(expected, rel=1e-3)
