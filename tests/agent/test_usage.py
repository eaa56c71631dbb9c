"""A sample of this very machine: what is done between two looks is in it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.agent import cgroups, usage
from allranks.agent.usage import Sampler, with_children
from allranks.protocol.samples import NodeUsage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def between(work: Callable[[], object], pids: tuple[int, ...] = ()) -> NodeUsage:
    """What a sampler says of the time in which something was done."""
    sampler = Sampler()
    assert sampler.sample(pids or (os.getpid(),), 10.0, 1000.0) is None
    work()
    sample = sampler.sample(pids or (os.getpid(),), 20.0, 1010.0)
    assert sample is not None
    return sample


def burn() -> None:
    ends = time.process_time() + 0.5
    while time.process_time() < ends:
        pass


def test_processor_time_of_ranks() -> None:
    sample = between(burn)
    assert (sample.t, sample.seconds, sample.cores) == (1010.0, 10.0, os.cpu_count())
    assert sample.cpu_ranks is not None and sample.cpu_used is not None
    assert 0.04 <= sample.cpu_ranks <= 0.2
    assert sample.cpu_used >= sample.cpu_ranks - 0.01
    assert sample.memory_used is not None and sample.memory_total is not None
    assert 0 < sample.memory_used < sample.memory_total


def test_processor_time_of_their_children_and_of_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert child.pid in with_children([os.getpid()])
        of_rank = between(lambda: time.sleep(1.0))
        assert of_rank.cpu_ranks is not None and of_rank.cpu_ranks > 0
        of_other = between(lambda: time.sleep(1.0), (sleeper.pid,))
        assert (of_other.cpu_ranks, (of_other.cpu_others or 0) > 0) == (0.0, True)
    finally:
        for process in (child, sleeper):
            process.kill()
            process.wait()


def test_segments_of_tcp() -> None:
    def talk() -> None:
        for _ in range(50):
            one.sendall(b"x")
            other.recv(1)

    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        sample = between(talk)
    assert sample.tcp_sent is not None and sample.tcp_sent >= 50
    assert sample.tcp_retransmitted is not None


def test_a_quota_that_held_ranks_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file that the kernel would have; tests/agent/test_calltimes.py has version 1."""
    text = "nr_periods 9\nnr_throttled 4\nthrottled_usec {}\n"
    file = tmp_path / "job/cpu.stat"
    file.parent.mkdir()
    file.write_text(text.format(7_000_000))
    read = cgroups.read_text
    monkeypatch.setattr(cgroups, "ROOT", str(tmp_path))
    monkeypatch.setattr(cgroups, "read_text", lambda path: "0::/job" if path.endswith("/cgroup") else read(path))
    sample = between(lambda: file.write_text(text.format(9_500_000)))
    assert sample.cpu_throttled_s == 2.5


def test_what_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "read_text", lambda path, *more: "cpu nonsense\n\x00 1 :")
    sample = between(lambda: None)
    assert (sample.cpu_used, sample.tcp_sent, sample.memory_used, sample.gpu_busy) == (None, None, None, None)
    assert sample.seconds == 10.0


def test_gpus_that_sysfs_describes(tmp_path: Path) -> None:
    """As the amdgpu driver does, two of them."""
    for card, busy in ((0, 90), (1, 40)):
        device = tmp_path / f"card{card}"
        device.mkdir()
        (device / "gpu_busy_percent").write_text(f"{busy}\n")
        (device / "mem_info_vram_used").write_text("1000\n")
        (device / "mem_info_vram_total").write_text("4000\n")
    files = [str(tmp_path / f"card{card}" / "gpu_busy_percent") for card in (0, 1)]
    assert usage._gpus(files) == (0.65, 2000, 8000)  # noqa: SLF001 - no machine of the tests has such a GPU
