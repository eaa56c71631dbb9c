"""A node whose clock is wrong: what failed first is still found, and times are the controller's."""

import shutil
import time
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.test_faults_start import nothing_left

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
AHEAD = 300


def python_ahead(tmp_path: Path, host: str) -> Path:
    """A python for the agent: on one host it runs, with all its children, five minutes ahead."""
    path = tmp_path / "python-of-the-agent"
    path.write_text(
        f'#!/bin/sh\nif [ "$(hostname)" = {host} ]; then\n'
        f"export LD_PRELOAD={FAKETIME[0]} FAKETIME=+{AHEAD}s\nfi\n"
        f'exec {shutil.which("python3", path="/usr/bin")} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed (apt install faketime)")
@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 0), pytest.param(0, 1, marks=pytest.mark.slow)],
    ids=["the fast clock first", "the right clock first"],
)
def test_the_first_failure_with_a_clock_five_minutes_ahead(
    bed2: Bed, tmp_path: Path, first: int, second: int
) -> None:
    """Rank 1 is on the node whose clock is ahead. The one that failed first is reaped last."""
    launch = Launch(bed2, tmp_path)
    begun = time.time()
    launch.start(program("one_after_another.py", str(first), str(second)),
                 "--agent-python", str(python_ahead(tmp_path, "h2")), "--grace", "10m")  # fmt: skip
    launch.until("rank-exit")
    (launch.work / "reaped").touch()
    result = launch.result()
    said = {rank: float((launch.work / name).read_text()) for rank, name in ((first, "first"), (second, "second"))}
    assert said[1] - said[0] > AHEAD - 60, "the clock of h2 was not ahead"
    verdict = result["verdict"]
    assert (verdict["where"]["rank"], verdict["where"]["node"]) == (first, f"h{first + 1}"), verdict
    assert "the first" in verdict["message"] and result["exit"] == 1
    nothing_left(bed2, launch)
    exits = {e["rank"]: e for e in launch.events("rank-exit")}
    assert launch.events("rank-exit")[0]["rank"] == second  # it was reaped first
    assert exits[first]["t"] < exits[second]["t"]
    for event in launch.events():
        assert begun - 1 < event["t"] < time.time() + 1, event
    up = {int(p.name.split("-")[1]): p.stat().st_mtime for p in launch.work.glob("up-*")}  # by the kernel's clock
    for event in launch.events("rank-started"):
        assert event["t"] < up[event["rank"]] + 30
    exact = {rank: (launch.work / name).stat().st_mtime for rank, name in ((first, "first"), (second, "second"))}
    for rank, event in exits.items():
        assert abs(event["t"] - exact[rank]) < 30  # and not five minutes
