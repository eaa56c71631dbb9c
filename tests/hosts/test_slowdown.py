"""A run that becomes slower in the middle: when that was, and on which node what changed then."""

import json
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.waiting import wait_until
from tests.run_directories import read_usage

from allranks.runs.directory import RunDirectory


@pytest.mark.slow
def test_a_link_that_begins_to_lose_packets_is_named(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(program("v_pace.py"), nproc=1)
    launch.until_running(2)

    def samples() -> list[str]:
        return [one.node for one in read_usage(RunDirectory(launch.run_dir))]

    wait_until(lambda: min(samples().count(node) for node in ("h1", "h2")) >= 2, 180, "two samples of each node")
    bed2.host("h2").loss(15)
    (finding,) = wait_until(
        lambda: [event for event in launch.events("finding") if event["id"] == "slowdown"], 180, "a finding"
    )
    (launch.work / "done").touch()
    result = launch.result()
    assert result["exit"] == 0
    assert "of its TCP segments were sent again" in finding["message"], finding["message"]
    assert finding["status"] == "warn"
    assert {one["id"] for one in result["findings"]} >= {"slowdown"}
    status = json.loads((launch.run_dir / "status.json").read_text())
    usages = [node["usage"] for node in status["nodes"]]
    assert all(usage["seconds"] > 0 and usage["cores"] > 0 and usage["tcp_sent"] > 0 for usage in usages)
    assert status["nodes"][0]["ranks"][0]["step"] > 0
