"""SIGUSR1 and SIGUSR2 to the controller reach each rank once; our own processes outlive them."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.waiting import wait_until


def arrived(launch: Launch) -> int:
    """How many signals the ranks have written down so far."""
    logs = launch.run_dir.glob("logs/node_*/rank_*.log")
    return sum(path.read_text().count("GOT ") for path in logs)


def counted(launch: Launch) -> list[dict[str, int]]:
    """What each rank has counted, in the order of the ranks, once the run is over."""
    (launch.work / "go").touch()
    assert launch.result()["exit"] == 0, launch.stderr
    logs = "".join(path.read_text() for path in sorted(launch.run_dir.glob("logs/node_*/rank_*.log")))
    return [json.loads(line.split("COUNTED ", 1)[1]) for line in logs.splitlines() if "COUNTED " in line]


def test_over_ssh_each_rank_gets_the_controllers_signals_once(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(program("v_signals.py"), nproc=2).until_running(4)
    launch.signal(signal.SIGUSR1)
    wait_until(lambda: arrived(launch) == 4, BOUND, "SIGUSR1 at four ranks")
    for number in (1, 2):
        launch.signal(signal.SIGUSR2)
        wait_until(lambda n=number: arrived(launch) == 4 + 4 * n, BOUND, f"SIGUSR2 for the {number}. time")
    assert counted(launch) == [{"SIGUSR1": 1, "SIGUSR2": 2}] * 4
    assert [(e["signal"], e["ranks"], e["source"]) for e in launch.events("signal")] == [
        ("SIGUSR1", 4, None),
        ("SIGUSR2", 4, None),
        ("SIGUSR2", 4, None),
    ]


def test_agent_supervisor_and_relay_outlive_them(bed2: Bed, tmp_path: Path) -> None:
    """As where somebody signals every process of a user: what is ours goes on, and keeps it from the ranks."""
    launch = Launch(bed2, tmp_path).start(program("v_signals.py")).until_running(2)
    ours = [p for host in bed2.hosts for p in host.pids() if "ALLRANKS-BOOT" in p.command or "allranks" in p.command]
    ranks = {launch.rank_pid(rank) for rank in (0, 1)}
    targets = [p.pid for p in ours if p.pid not in ranks]
    assert len(targets) >= 3 * len(bed2.hosts), "an agent, a supervisor and a relay on each host"
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        for pid in targets:
            os.kill(pid, number)
    launch.signal(signal.SIGUSR1)
    wait_until(lambda: arrived(launch) == 2, BOUND, "the controller's own at both ranks")
    assert {pid for pid in targets if Path(f"/proc/{pid}").exists()} == set(targets)
    assert counted(launch) == [{"SIGUSR1": 1}] * 2
    assert launch.events("node-silent") == []


@pytest.mark.torch
def test_below_another_launcher_its_ranks_get_it_and_not_the_launcher(bed2: Bed, tmp_path: Path) -> None:
    """torchrun ends by SIGUSR1."""
    launch = Launch(bed2, tmp_path).start(program("v_signals.py"), "--launcher", "torchrun", nproc=2)
    wait_until(lambda: len(list(launch.work.glob("up-*"))) == 4, BOUND, "four programs up")
    launch.signal(signal.SIGUSR1)
    wait_until(lambda: arrived(launch) == 4, BOUND, "SIGUSR1 at four ranks")
    assert counted(launch) == [{"SIGUSR1": 1}] * 4


def test_one_step_is_saved_on_all_ranks_before_a_stop(bed2: Bed, tmp_path: Path) -> None:
    """At SIGUSR1, for which the ranks have no handler. A stop right after it asks for no other save."""
    launch = Launch(bed2, tmp_path).start(program("v_saving.py"), nproc=2).until_running(4)
    launch.signal(signal.SIGUSR1)
    wait_until(lambda: launch.events("saved"), BOUND, "the save")
    launch.signal(signal.SIGTERM)
    result = launch.result()
    agreed = [event["step"] for event in launch.events("save-agreed")]
    assert len(agreed) == 1, launch.stderr
    for path in launch.run_dir.glob("logs/node_*/rank_*.log"):
        assert [int(line.split()[1]) for line in path.read_text().splitlines() if "SAVED" in line] == agreed
    assert result["exit"] == 143
    assert result["attempts"][0]["saved"] == {"step": agreed[0], "ranks": 4, "of": 4, "others": {}}


def test_stop_with_save_waits_for_the_save_and_spares_ranks_without_a_handler(bed2: Bed, tmp_path: Path) -> None:
    """Four ranks save at one step before SIGTERM; the signal itself ends none, though none handles it."""
    launch = Launch(bed2, tmp_path).start(program("v_saving.py"), nproc=2).until_running(4)
    stopped = launch.call("stop", "--save", "--stop-grace", "60")
    assert stopped.returncode == 0, stopped.stderr
    result = launch.result()
    (agreed,) = (event["step"] for event in launch.events("save-agreed"))
    assert f"step {agreed} saved on 4 of 4 ranks" in stopped.stdout
    names = [event["event"] for event in map(json.loads, (launch.run_dir / "events.jsonl").read_text().splitlines())]
    assert names.index("saved") < names.index("stop-asked")
    assert (result["exit"], result["attempts"][0]["saved"]["step"]) == (143, agreed)


def test_a_notice_ends_no_rank_that_has_no_handler_for_it(bed2: Bed, tmp_path: Path) -> None:
    """No rank calls should_save: each has the time that was asked for, and SIGUSR1 alone ends none of them."""
    launch = Launch(bed2, tmp_path).start(program("v_quiet.py")).until_running(2)
    assert launch.call("stop", "--save", "--now").returncode == 2
    stopped = launch.call("stop", "--save", "--stop-grace", "1")
    assert "ranks had 1 s after SIGUSR1. None was seen to call allranks.should_save" in stopped.stdout
    assert launch.result()["exit"] == 143
    assert {event["signal"] for event in launch.events("rank-exit")} == {signal.SIGTERM}
