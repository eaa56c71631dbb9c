"""The process that reads GPUs and ports: against a stand-in for NVML that is compiled here, and files as of sysfs."""

import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND, wait_until

from allranks.agent import counters
from allranks.agent.counters import CounterWatch
from allranks.agent.processes import read_process
from allranks.protocol.samples import DeviceCounters, NodeUsage

GPUS = ("0000:07:00.0", "0000:0f:00.0")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stand-in."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler makes the stand-in for NVML")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_standin.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return str(path)


class Watched:
    """A watch in a selector, as an agent has it."""

    def __init__(self, addresses: tuple[str, ...], every: float = 60.0) -> None:
        self.selector = selectors.DefaultSelector()
        self.watch = CounterWatch(self.selector, addresses, every)

    def read(self) -> DeviceCounters:
        """Read what has come."""
        for key, _ in self.selector.select(0.1):
            key.data()
        return self.watch.newest

    def until(self, holds: Callable[[DeviceCounters], bool]) -> DeviceCounters:
        """Read what comes until something holds."""
        wait_until(lambda: holds(self.read()), BOUND, "counters")
        return self.watch.newest

    @property
    def is_alive(self) -> bool:
        process = read_process(self.watch.child.pid)
        return process is not None and process.state != "Z"


@pytest.fixture
def start(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    monkeypatch.setattr(counters, "LIBRARY", library)
    monkeypatch.setattr(counters, "PORTS", str(tmp_path / "infiniband"))
    monkeypatch.setenv("NVML_STATE", str(tmp_path))
    started: list[Watched] = []

    def begin(*addresses: str, every: float = 60.0) -> Watched:
        started.append(Watched(addresses or GPUS, every))
        return started[-1]

    yield begin
    for watched in started:
        watched.watch.close()
        os.waitpid(watched.watch.child.pid, 0)


def test_gpus_say_what_they_do(start: Callable[..., Watched]) -> None:
    watched = start()
    first, second = watched.until(lambda newest: bool(newest.gpus)).gpus
    assert (first.address, first.busy, first.memory_used, first.memory_total) == (GPUS[0], 0.9, 30, 80)
    assert (first.clock, first.clock_max, first.held, first.pcie_width) == (1980, 1980, 0, 16)
    assert (second.clock, second.ecc, second.nvlink_errors, second.xids, second.lost) == (1200, 0, 0, (), False)
    usage = watched.watch.added_to(NodeUsage(), {GPUS[0]: [3]})
    assert usage.devices is not None and [gpu.ranks for gpu in usage.devices.gpus] == [(3,), ()]
    assert (usage.gpu_busy, usage.gpu_memory_used, usage.gpu_memory_total) == (0.65, 60, 160)


def test_an_xid_is_said_at_once(start: Callable[..., Watched], tmp_path: Path) -> None:
    watched = start()
    watched.until(lambda newest: bool(newest.gpus))
    watched.watch.added_to(NodeUsage(), {})
    (tmp_path / "xid").write_text("48")
    began = time.monotonic()
    gpus = watched.until(lambda newest: any(gpu.xids for gpu in newest.gpus)).gpus
    assert time.monotonic() - began < 30  # of the 60 s between two lines
    assert [gpu.xids for gpu in gpus] == [(), (48,)] and watched.watch.is_urgent


def test_only_what_comes_in_the_run_is_counted(start: Callable[..., Watched], tmp_path: Path) -> None:
    watched = start(every=1.0)
    watched.until(lambda newest: bool(newest.gpus))
    for name, value in {"ecc": 2, "nvlink": 7, "held": 0x40}.items():
        (tmp_path / name).write_text(str(value))
    (tmp_path / "lost").touch()
    first, second = watched.until(lambda newest: any(gpu.lost for gpu in newest.gpus)).gpus
    assert first.lost
    second = watched.until(lambda newest: newest.gpus[1].ecc > 0).gpus[1]
    assert (second.ecc, second.nvlink_errors, second.held, second.lost) == (2, 14, 0x40, False)


def test_ports_are_read_without_a_gpu(start: Callable[..., Watched], tmp_path: Path) -> None:
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    for directory in ("counters", "hw_counters"):
        (port / directory).mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    for name in ("counters/symbol_error", "counters/link_downed", "hw_counters/out_of_sequence"):
        (port / name).write_text("3\n")
    down = tmp_path / "infiniband" / "mlx5_1" / "ports" / "1"
    down.mkdir(parents=True)
    (down / "state").write_text("1: DOWN\n")
    watched = start("0000:ff:00.0", every=1.0)
    (one,) = watched.until(lambda newest: bool(newest.ports)).ports
    assert one == ("mlx5_0/1", True, {"symbol_error": 0, "link_downed": 0, "out_of_sequence": 0})
    (port / "counters/symbol_error").write_text("103\n")
    (port / "state").write_text("1: DOWN\n")
    (one,) = watched.until(lambda newest: not newest.ports[0].is_up).ports
    assert one.counted["symbol_error"] == 100


@pytest.mark.parametrize("missing", ["no library", "no device"])
def test_nothing_to_read_costs_nothing(
    start: Callable[..., Watched], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "no library":
        monkeypatch.setattr(counters, "LIBRARY", "libnvidia-ml-is-not-there.so.1")
    watched = start(*(GPUS if missing == "no library" else ("0000:ff:00.0",)))
    wait_until(lambda: watched.read() and not watched.selector.get_map(), BOUND, "the end of the process")
    assert watched.watch.newest == DeviceCounters()


def test_a_library_that_hangs_is_given_up(start: Callable[..., Watched], tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    watched = start()
    assert watched.is_alive
    watched.watch.look(time.monotonic() + 100)
    assert watched.is_alive
    watched.watch.look(time.monotonic() + 121)
    wait_until(lambda: not watched.is_alive, BOUND, "its end")
    assert not watched.selector.get_map()
