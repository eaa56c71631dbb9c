"""What a node reads of a suspected rank: quotas of control groups, connections, samples."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until

from allranks.agent.calltimes import counted, look_at
from allranks.agent.cgroups import ROOT, quota_groups, read_cpu_stat
from allranks.agent.processes import read_process
from allranks.agent.sockets import link_counts

V1 = Path(ROOT, "cpu")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("usage_usec 5\nnr_periods 22\nnr_throttled 21\nthrottled_usec 1136459\n", (22, 21, 1.136459)),
        ("nr_periods 22\nnr_throttled 21\nthrottled_time 1136459910\n", (22, 21, 1.13645991)),
        ("usage_usec 5\n", (0, 0, 0.0)),
        ("nr_periods many\n\n -1", (0, 0, 0.0)),
        ("", (0, 0, 0.0)),
    ],
    ids=["v2", "v1", "no quota", "nonsense", "empty"],
)
def test_cpu_stat_of_both_versions(text: str, read: tuple[int, int, float]) -> None:
    assert read_cpu_stat(text) == read


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


@pytest.fixture
def throttled(busy: subprocess.Popen[bytes]) -> Iterator[int]:
    """A busy process that may use a twentieth of a CPU."""
    group = V1 / f"allranks-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("5000")
    except OSError as error:
        pytest.skip(f"no control group with a CPU quota can be made here: {error}")
    (group / "cgroup.procs").write_text(str(busy.pid))
    yield busy.pid
    busy.kill()
    busy.wait()
    wait_until(lambda: not (group / "cgroup.procs").read_text(), 30.0, "an empty control group")
    group.rmdir()


@pytest.mark.processes
def test_a_quota_of_a_real_control_group_is_seen(throttled: int) -> None:
    paths = quota_groups(throttled)
    assert any(path.endswith(f"allranks-test-{os.getpid()}") for path in paths)
    assert str(V1) in paths, "and all groups above"
    wait_until(lambda: counted(throttled).throttled >= 3, 60.0, "three throttled periods")
    one = counted(throttled)
    assert one.periods >= one.throttled and one.stood > 0


@pytest.mark.processes
def test_a_look_at_a_rank_without_a_process_group_samples_it_from_outside(
    tmp_path: Path, busy: subprocess.Popen[bytes]
) -> None:
    known = read_process(busy.pid)
    assert known is not None
    looks = look_at({3: known}, str(tmp_path))
    assert len(looks[3].samples) == len(looks[3].at) >= 3
    assert looks[3].at == tuple(sorted(looks[3].at)) and looks[3].samples[-1]["cpu"] > 0
    assert look_at({}, str(tmp_path)) == {}


def test_connections_are_added_up_by_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network but the loopback")
        address = probe.getsockname()[0]
    with socket.create_server((address, 0)) as server:
        pairs = []
        for _ in range(2):
            client = socket.create_connection(server.getsockname())
            pairs.append((client, server.accept()[0]))
        before = acked(address)
        try:
            for client, other in pairs:
                client.sendall(b"x" * 100_000)
                taken = 0
                while taken < 100_000:
                    taken += len(other.recv(1 << 16))
            wait_until(lambda: acked(address) >= before + 200_000, 30.0, "the last acknowledgement")
            counts = [one for one in link_counts({7: os.getpid()}) if one.peer == address]
        finally:
            for client, other in pairs:
                client.close()
                other.close()
    assert [one.rank for one in counts] == [7], "one line for all connections to an address"
    assert counts[0].sent >= 2 and counts[0].busy >= counts[0].held


def acked(address: str) -> int:
    return sum(one.acked for one in link_counts({7: os.getpid()}) if one.peer == address)
