"""The test bed makes hosts, ends them, and sweeps what is left.

A fault that does nothing fails the test that is about it: a link that is not down gives no verdict.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.bed import Bed, BedError, Host, Unavailable, network
from tests.hosts.bed.__main__ import main
from tests.hosts.bed.host import read_process
from tests.hosts.conftest import MakeBed
from tests.hosts.waiting import BOUND, wait_until


def runs(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state != "Z"


def pings(origin: Host, address: str, *options: str) -> bool:
    done = origin.run(["ping", "-n", "-c1", "-W1", *options, address], check=False)
    return done.returncode == 0


def round_trip(origin: Host, address: str) -> float:
    """The best of three, in milliseconds."""
    out = origin.run(["ping", "-n", "-c3", "-i0.01", "-W2", address]).stdout
    return float(out.rpartition("=")[2].split("/")[0])


def test_hosts_are_machines(bed4: Bed) -> None:
    """Own name, address, processes, shared memory; names resolve among them."""
    for host in bed4.hosts:
        assert bed4.ssh(host.name, "hostname", check=True).stdout == f"{host.name}\n"
        assert bed4.ssh(host.address, "hostname", check=True).stdout == f"{host.name}\n"
        assert bed4.ssh(host.address6, "hostname", check=True).stdout == f"{host.name}\n"
    first, second, *_ = bed4.hosts
    assert first.run("getent hosts h1 h2 head").stdout.split()[::2] == [
        first.address,
        second.address,
        bed4.head_address,
    ]
    assert pings(first, "h2") and pings(first, "head") and pings(first, "h2-v6", "-6")
    first.run("echo x > /dev/shm/mine")
    assert second.run("ls /dev/shm").stdout == ""
    assert "65536" in first.run("df /dev/shm").stdout
    assert first.run("ls /sys/class/net").stdout.split() == ["eth0", "lo"]
    assert first.run("cat /proc/1/comm").stdout == "bash\n"
    assert first.run([sys.executable, "-c", "import pytest"], check=False).stderr == ""


def test_delay(bed2: Bed) -> None:
    one, two = bed2.hosts
    try:
        one.delay(20)
    except Unavailable as reason:
        pytest.skip(str(reason))
    wait_until(lambda: pings(two, one.address), what="frames through the relay")
    assert 40 <= round_trip(two, one.address) < 200
    data = os.urandom(3_000_000)  # offloaded segments and checksums must survive the relay
    for command, given in (("cat", data), ("head -c 3000000 /dev/zero", b"")):
        argv = ["ssh", "h1", command]
        out = subprocess.run(
            argv, env=bed2.env(), input=given, capture_output=True, timeout=BOUND, check=True
        ).stdout
        assert out == (given or bytes(3_000_000))
    one.link_down()
    assert not pings(two, one.address)
    one.clear_faults()
    wait_until(lambda: pings(two, one.address), what="the plain cable is back")
    assert round_trip(two, one.address) < 20


def test_power_off_is_sudden_and_complete(bed2: Bed) -> None:
    one, two = bed2.hosts
    one.popen(["env", "MARK=power", "setsid", "sleep", "600"])
    (marked,) = wait_until(lambda: one.processes_with_env("MARK=power"), what="a process on the host")
    with socket.create_connection((one.address, 22), timeout=2) as connection:
        assert connection.recv(99).startswith(b"SSH-")
        one.power_off()
        connection.settimeout(1)
        with pytest.raises(TimeoutError):  # no end of file, no reset: no process was left to send it
            connection.recv(1)
    assert not one.is_on and one.pids() == []
    assert not runs(marked.pid)
    assert not pings(two, one.address)
    with pytest.raises(BedError, match="is off"):
        one.run("true")
    one.power_on()
    assert bed2.ssh("h1", "hostname").stdout == "h1\n"


def test_two_beds_and_nothing_left(make_bed: MakeBed, bed2: Bed) -> None:
    bed = make_bed(3, names=["node01", "node02", "gpu-a"], shm="8m", own_tmp=True)
    last = bed.hosts[2]
    last.popen(["sleep", "600"])
    last.add_interface("eth1", "192.0.2.9/24")
    last.run("touch /tmp/mine")
    assert bed.hosts[0].run("ls /tmp/mine", check=False).returncode != 0
    assert last.run(f"cat {bed.hostfile}").stdout == bed.hostfile.read_text()
    assert bed.slot != bed2.slot and not pings(bed2.hosts[0], last.address)
    assert bed.ssh("gpu-a", "df --output=size /dev/shm", check=True).stdout.split()[-1] == "8192"
    inits = [host.init for host in bed.hosts]
    bridge = network.bridge_index(bed.slot)
    assert len(network.namespaces(bed.slot)) == 4
    bed.down()
    assert not network.left(bed.slot, bridge)
    assert not any(pid is None or runs(pid) for pid in inits)
    assert not bed.dir.exists() and bed2.ssh("h1", "true").returncode == 0


def test_a_bed_whose_owner_was_killed_is_swept(make_bed: MakeBed, tmp_path: Path) -> None:
    code = (
        "from tests.hosts.bed import Bed\n"
        f"print(Bed.up(1, {str(tmp_path / 'b')!r}).slot.number, flush=True)\n"
        "import time; time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        slot = network.Slot(int(owner.stdout.readline()))
        bridge = network.bridge_index(slot)
        assert bridge
        owner.kill()
    network.sweep()
    assert not network.left(slot, bridge)


def test_command_line(make_bed: MakeBed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path / "bed")]
    assert main(["up", "2", *where]) == 0
    try:
        assert f"export PATH={tmp_path}/bed/bin/root:$PATH" in capsys.readouterr().out
        bed = Bed.load(tmp_path / "bed")
        bridge = network.bridge_index(bed.slot)
        network.sweep()
        assert main(["do", "h2", "drop_port", "22", *where]) == 0
        assert bed.ssh("-oConnectTimeout=1", "h2").returncode == 255
        assert main(["do", "h2", "clear_faults", *where]) == 0
        assert bed.ssh("h2", "hostname").stdout == "h2\n"
        assert main(["do", "h2", "fly", *where]) == 1 and main(["up", "2", *where]) == 1
    finally:
        assert main(["down", *where]) == 0
    assert not (tmp_path / "bed").exists() and not network.left(bed.slot, bridge)
