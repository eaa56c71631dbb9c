"""A run that becomes slower in the middle: when that was, and on which node what changed then."""

from __future__ import annotations

import contextlib
import json
import shutil
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


def shown_processors(place: Path, clock: int) -> Path:
    """What the host has in /sys/devices/system/cpu, and the clock of each processor in MHz as a server shows it."""
    shutil.copytree("/sys/devices/system/cpu", place, symlinks=True, ignore_dangling_symlinks=True, copy_function=_copy)
    for cpu in place.glob("cpu[0-9]*"):
        (cpu / "cpufreq").mkdir(exist_ok=True)
        (cpu / "cpufreq" / "scaling_cur_freq").write_text(f"{clock * 1000}\n")
        (cpu / "cpufreq" / "cpuinfo_max_freq").write_text("3800000\n")
    return place


def _copy(source: str, target: str) -> None:
    with contextlib.suppress(OSError):  # some files of sysfs are for writing alone
        Path(target).write_bytes(Path(source).read_bytes())


@pytest.mark.slow
def test_the_clock_of_a_slow_ranks_processor_is_named(bed2: Bed, tmp_path: Path) -> None:
    """Both hosts show clocks, as machines do that are not virtual; that of h2 is low."""
    for host, clock in (("h1", 3100), ("h2", 1200)):
        shown = shown_processors(tmp_path / host, clock)
        bed2.host(host).run(["mount", "--bind", str(shown), "/sys/devices/system/cpu"])
    try:
        options = ("--straggler-interval", "3s", "--step-pattern", r"step (\d+)")
        launch = Launch(bed2, tmp_path).start(program("v_computes.py"), *options, nproc=1)
        (finding,) = wait_until(
            lambda: [event for event in launch.events("finding") if event["id"] == "slow-rank"], 180, "a finding"
        )
        (launch.work / "done").touch()
        assert launch.result()["exit"] == 0
    finally:
        for host in bed2.hosts:
            host.run(["umount", "/sys/devices/system/cpu"])
    assert finding["where"] == {"node": "h2", "rank": 1}
    assert finding["message"].endswith("Its processor runs at 1200 MHz, that of a usual rank at 3100 MHz")
    assert "its processor ran at 1200 of 3800 MHz" in finding["evidence"]
