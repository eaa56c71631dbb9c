"""Clocks and heat of processors, from trees of /sys as machines have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until

from allranks.agent import calltimes
from allranks.agent.calltimes import look_at
from allranks.agent.processes import read_process, stat_fields
from allranks.agent.processor_speed import (
    Clock,
    clock_under,
    heat_counts,
    middle,
    most_grown,
    one_of_each_package,
    read_clock,
)
from allranks.agent.usage import Sampler

SPIN = "while True: pass"


def tree(root: Path, clock: str = "1200000", heat: int = 7) -> str:
    """Every processor of this machine, in one package, with the files of a server: frequencies are in kHz."""
    for cpu in range(os.cpu_count() or 1):
        files = {
            "cpufreq/scaling_cur_freq": clock,
            "cpufreq/cpuinfo_max_freq": "3800000",
            "topology/physical_package_id": "0",
            "thermal_throttle/core_throttle_count": "2",
            "thermal_throttle/package_throttle_count": str(heat),
        }
        for name, text in files.items():
            file = root / f"cpu{cpu}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
    return str(root)


def test_a_clock_is_in_mhz_and_unknown_where_the_kernel_does_not_say_it(tmp_path: Path) -> None:
    assert read_clock(0, tree(tmp_path / "server")) == Clock(1200, 3800)
    assert read_clock(0, str(tmp_path / "virtual")) == Clock(0, 0)
    assert read_clock(0, tree(tmp_path / "odd", clock="<unknown>")) == Clock(0, 3800)
    assert read_clock(0, tree(tmp_path / "huge", clock="9" * 5000)) == Clock(0, 3800)


def test_the_middle_of_clocks_needs_two() -> None:
    assert middle([Clock(1200, 3800), Clock(), Clock(3000, 3800), Clock(1300, 3800)]) == Clock(1300, 3800)
    assert middle([Clock(1200, 3800), Clock()]) == Clock()


def test_heat_is_counted_for_core_and_package(tmp_path: Path) -> None:
    before = heat_counts([0, 999], tree(tmp_path))
    assert sorted(before.values()) == [2, 7], "a processor that is not there has none"
    assert most_grown(before, heat_counts([0], tree(tmp_path, heat=12))) == 5
    assert most_grown(before, {}) == 0
    assert heat_counts([0], str(tmp_path / "virtual")) == {}
    assert one_of_each_package(str(tmp_path)) == [0]


@pytest.mark.processes
def test_the_clock_under_a_process_that_runs(tmp_path: Path) -> None:
    root = tree(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        wait_until(lambda: clock_under(process.pid, root).mhz == 1200, 60.0, "it runs at the clock of its processor")
    finally:
        process.kill()
        process.wait()
    sleeper = subprocess.Popen(["/bin/sleep", "600"])
    try:
        wait_until(lambda: stat_fields(sleeper.pid)[:1] == ["S"], 60.0, "it sleeps")
        assert clock_under(sleeper.pid, root) == Clock(), "an idle processor's clock says nothing of it"
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.processes
def test_a_look_at_a_rank_has_its_clock_and_the_heat_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "cpus")
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    monkeypatch.setattr(calltimes, "PAUSE", 0.05)
    sampled = calltimes.sample

    def heats(*words: object) -> object:
        tree(tmp_path / "cpus", heat=9)
        return sampled(*words)

    monkeypatch.setattr(calltimes, "sample", heats)
    try:
        known = read_process(process.pid)
        assert known is not None
        look = look_at({3: known}, str(tmp_path), root)[3]
        nothing = look_at({3: known}, str(tmp_path), str(tmp_path / "virtual"))[3]
    finally:
        process.kill()
        process.wait()
    assert look.heat == 2
    assert (look.clock_mhz, look.most_mhz) == (1200, 3800)
    assert (nothing.heat, nothing.clock_mhz, nothing.most_mhz) == (0, 0, 0)


def test_a_sample_of_the_machine_has_the_heat_of_its_packages(tmp_path: Path) -> None:
    sampler = Sampler(tree(tmp_path))
    assert sampler.sample((os.getpid(),), 10.0, 1000.0) is None
    tree(tmp_path, heat=10)
    sample = sampler.sample((os.getpid(),), 20.0, 1010.0)
    assert sample is not None and sample.cpu_heat == 3
    virtual = Sampler(str(tmp_path / "virtual"))
    virtual.sample((os.getpid(),), 10.0, 1000.0)
    sample = virtual.sample((os.getpid(),), 20.0, 1010.0)
    assert sample is not None and sample.cpu_heat is None
