"""--spares: a host that is lost or to blame gives its place to one that stands by; and lost hosts without a spare."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.test_retries import outcomes
from tests.hosts.waiting import wait_until

LEASE = ("--lease", "3s", "--connect-timeout", "6s")
LONGER_LEASE = ("--lease", "8s", "--connect-timeout", "8s")  # a controller that takes over may take some seconds


@pytest.fixture
def launch(bed4: Bed, tmp_path: Path) -> Iterator[Launch]:
    """Ranks on h1 to h3 while h4 stands by; what they leave in their node directories is removed."""
    found = Launch(bed4, tmp_path)
    yield found
    found.forget()


def states(launch: Launch) -> dict[str, str]:
    status = json.loads((launch.run_dir / "status.json").read_text())
    return {n["name"]: n["state"] for n in status["nodes"]}


def ready(launch: Launch, ranks: int = 3) -> None:
    """All ranks up, their metrics here, the spare looked at."""
    launch.until_running(ranks)
    launch.until("spare-ready")
    outputs = launch.run_dir / "outputs"
    wait_until(lambda: len([p for p in outputs.glob("*.jsonl") if p.stat().st_size]) == ranks, BOUND, "metrics")


def test_a_host_without_power_gives_its_place_to_the_spare(bed4: Bed, launch: Launch) -> None:
    launch.start(program("v_retry.py", "1", "wait"), "--spares", "1", "--retries", "1", *LEASE, json_=False)
    ready(launch)
    assert wait_until(lambda: states(launch).get("h4") == "spare", timeout=BOUND, what="h4 in status.json")
    bed4.host("h2").power_off()
    result = launch.end()
    assert (result["exit"], result["verdict"]) == (0, None), result
    assert outcomes(result) == [(0, "failed"), (1, "done")]
    first = result["attempts"][0]
    assert (first["cause"], first["culprit"], first["step"]) == ("node-network-down", {"node": "h2"}, 10)
    assert first["replaced"] == [{"node": "h2", "by": "h4"}]
    assert "tried again" in first["verdict"]["decision"]
    said = "h2 was replaced by h4 in attempt 1"
    assert said in first["verdict"]["decision"]
    assert re.search(
        rf"^attempt 0  failed after .*: node-network-down, h2. Tried again: .*{said}$", launch.stdout, re.M
    )
    logs = launch.run_dir / "logs"
    assert [p.name for p in sorted((logs / "attempt_1").iterdir())] == ["node_00_h1", "node_02_h3", "node_03_h4"]
    assert (logs / "attempt_1/node_03_h4/rank_001.log").read_text().endswith("done\n")
    assert (logs / "node_01_h2/rank_001.log").exists()
    assert states(launch) == {"h1": "ended", "h4": "ended", "h3": "ended", "h2": "lost"}
    metrics = (launch.run_dir / "outputs" / "rank_01_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["attempt"] for line in metrics] == [0, 1]
    assert launch.all_gone()


def test_the_spare_of_a_run_that_was_taken_over(bed4: Bed, launch: Launch) -> None:
    launch.start(program("v_retry.py", "1", "wait"), "--spares", "1", "--retries", "1", *LONGER_LEASE)
    ready(launch)
    assert wait_until(lambda: states(launch).get("h4") == "spare", timeout=BOUND, what="h4 in status.json")
    launch.kill_launcher()
    launch.begin("attach", "--json", cwd=launch.place)
    launch.until("controller-attached")
    assert wait_until(lambda: states(launch).get("h4") == "ready", timeout=BOUND, what="h4 has said hello again")
    bed4.host("h2").power_off()
    result = launch.result()
    assert (result["exit"], outcomes(result)) == (0, [(0, "failed"), (1, "done")]), result
    assert result["attempts"][0]["replaced"] == [{"node": "h2", "by": "h4"}]
    assert (launch.run_dir / "logs/attempt_1/node_03_h4/rank_001.log").read_text().endswith("done\n")
    assert launch.all_gone()


@pytest.mark.slow
def test_the_masters_place_too_and_the_old_one_does_not_come_back(bed4: Bed, launch: Launch) -> None:
    """h1 loses its link: its agent ends its ranks by itself, and once the link is back nothing of it takes part."""
    launch.start(program("v_retry.py", "1", "wait"), "--spares", "1", "--retries", "1", *LEASE)
    ready(launch)
    before = launch.events("gate-proved")[0]
    bed4.host("h1").link_down()
    launch.until("node-replaced")
    assert not bed4.host("h1").processes_with_env("RANK=0"), "two ranks 0 would write one checkpoint"
    bed4.host("h1").link_up()
    result = launch.result()
    assert (result["exit"], outcomes(result)) == (0, [(0, "failed"), (1, "done")]), result
    after = launch.events("gate-proved")[-1]
    assert (before["node"], after["node"]) == ("h1", "h4") and after["address"] == bed4.host("h4").address
    environment = launch.log(0, 1)
    assert "attempt 1 of 1" in environment
    assert wait_until(lambda: not bed4.host("h1").pids(), BOUND, "nothing on h1")
    assert launch.all_gone()


def test_a_spare_that_is_dead_at_the_start_is_a_warning(bed4: Bed, launch: Launch) -> None:
    bed4.host("h4").power_off()
    launch.start(program("v_steps.py"), "--spares", "1", "--retries", "1", *LEASE).until_running(3)
    said = wait_until(lambda: [e for e in launch.events("finding") if e["id"] == "spare-unused"], BOUND, "the spare")
    finding = said[0]
    assert (finding["id"], finding["status"], finding["where"]) == ("spare-unused", "warn", {"node": "h4"})
    wait_until(lambda: states(launch)["h4"] == "unreachable", timeout=BOUND, what="h4 in status.json")
    (launch.work / "done").touch()
    result = launch.result()
    assert (result["exit"], outcomes(result)) == (0, [(0, "done")])
    assert [f["id"] for f in result["findings"] if f["where"].get("node") == "h4"] == ["spare-unused"]
    assert launch.all_gone()


@pytest.mark.slow
def test_a_lost_host_without_a_spare_is_named(bed4: Bed, launch: Launch) -> None:
    wait = ("--node-wait", "5s")
    launch.start(program("v_retry.py", "9", "wait"), "--retries", "3", *wait, *LEASE).until_running(4)
    bed4.host("h2").power_off()
    result = launch.result()
    assert (result["exit"], outcomes(result)) == (4, [(0, "failed"), (1, "failed")])
    assert result["verdict"]["where"]["node"] == "h2"
    assert "allranks connects to h2 again" in result["attempts"][0]["reason"]
    assert result["attempts"][1]["reason"] == "h2 did not come back within 5s (--node-wait)"
    assert launch.all_gone()


def test_a_host_that_reboots_is_waited_for_in_one_retry(bed4: Bed, launch: Launch) -> None:
    launch.start(program("v_retry.py", "1", "wait"), "--retries", "1", *LEASE, json_=False).until_running(4)
    bed4.host("h2").power_off()
    first, second = launch.until("node-awaited", 2)
    assert (first["node"], first["attempt"]) == (second["node"], second["attempt"]) == ("h2", 1)
    assert first["waited"] < second["waited"] and first["left"] > second["left"]
    bed4.host("h2").power_on()
    result = launch.end()
    assert (result["exit"], outcomes(result)) == (0, [(0, "failed"), (1, "done")]), result
    assert re.search(r"^waiting for h2, \d+ s of 5m \(--node-wait\): .*h2", launch.stdout, re.M), launch.stdout
    assert launch.log(1, 1).endswith("done\n")
    assert launch.all_gone()


@pytest.mark.slow
def test_a_agent_that_is_killed_gives_its_place(bed4: Bed, launch: Launch) -> None:
    """The blamed host lives: its supervisor is let go, and nothing stays on it while the run goes on."""
    launch.start(program("v_retry.py", "1", "wait"), "--spares", "1", "--retries", "1")
    ready(launch)
    os.kill(launch.agent_pid(1), signal.SIGKILL)
    result = launch.result()
    assert (result["exit"], result["attempts"][0]["replaced"]) == (0, [{"node": "h2", "by": "h4"}]), result
    uid = json.loads((launch.run_dir / "run.json").read_text())["uid"]
    assert os.listdir(f"/tmp/allranks-0/{uid}/node_01") == ["outputs"], "its checkpoint is kept, and nothing else"
    assert launch.all_gone()
