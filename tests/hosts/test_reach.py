"""run --reach dial: ssh starts what dials, and ends; whatever breaks then, it is as with ssh."""

import os
import re
import signal
from pathlib import Path

import pytest
from tests.hosts import test_lease
from tests.hosts.bed import Bed, Host, Process
from tests.hosts.launching import BOUND, Launch, culprit, program
from tests.hosts.test_lease import begin, clients, ends_well, finish, nothing_left, until_logs_grow
from tests.hosts.waiting import stop_process, wait_until
from tests.ports import free_port
from tests.processes import command_of

SECRET = re.compile(rb"[0-9a-f]{64}")  # as the header has it


def begun(bed: Bed, place: Path, *options: str, reach: str = "dial") -> Launch:
    """Four ranks on two hosts that print; as soon as they do, no ssh is left."""
    return test_lease.begun(bed, place, "--reach", reach, *options)


def diallers(host: Host) -> list[int]:
    """Processes on a host that dial: neither agent nor supervisor, nor below an sshd."""
    boots = [p for p in host.pids() if "ALLRANKS-BOOT" in p.command and p.state != "Z"]
    return [p.pid for p in boots if b"sshd" not in command_of(p.ppid)]


def ssh_sessions(host: Host) -> list[Process]:
    return [p for p in host.pids() if "sshd" in p.command and p.state != "Z"]


def test_no_ssh_is_left_and_the_secret_is_nowhere(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path)
    assert [clients(launch, host.name) for host in bed2.hosts] == [[], []]
    wait_until(lambda: not any(map(ssh_sessions, bed2.hosts)), BOUND, "no session of sshd")
    for host in bed2.hosts:
        for process in host.pids():
            assert not SECRET.search(command_of(process.pid))
            assert not any(SECRET.search(value.encode()) for value in process.environ.values())
    ends_well(launch)
    for path in launch.run_dir.rglob("*"):
        if path.is_file() and path.name not in ("facts.json", "preflight.json"):
            assert not SECRET.search(path.read_bytes()), path
    assert launch.events("note") == []
    nothing_left(launch)


def test_a_cut_longer_than_the_lease_ends_the_run(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path, "--lease", "6s")
    bed2.host("h2").link_down()
    result = launch.result()
    assert (result["exit"], culprit(result["verdict"])[0]) == (4, "h2")
    launch.all_gone()
    nothing_left(launch)


@pytest.mark.parametrize("kills", [True, False])
def test_what_dialled_is_replaced_where_it_dies_or_stands_still(bed2: Bed, tmp_path: Path, kills: bool) -> None:
    launch = begun(bed2, tmp_path, "--lease", "30s")
    until_logs_grow(launch)
    h2 = bed2.host("h2")
    (before,) = diallers(h2)
    if not kills:
        stop_process(before)
        assert launch.until("node-back")[0]["node"] == "h2"
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: len(now := diallers(h2)) == 1 and now != [before], BOUND, "another process that dials")
    wait_until(lambda: clients(launch, "h2") == [], BOUND, "no ssh")
    ends_well(launch)
    nothing_left(launch)


def test_a_killed_controller_ends_all_by_the_lease(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path, "--lease", "6s")
    launch.kill_launcher()
    nothing_left(launch)


def test_attach_takes_a_run_over_while_what_dialled_waits_for_the_dead_one(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path, "--lease", "30s")
    until_logs_grow(launch)
    launch.kill_launcher()
    begin(launch, "attach", "--take-over", "--json")
    launch.until("controller-attached")
    until_logs_grow(launch)
    assert [clients(launch, host.name) for host in bed2.hosts] == [[], []]
    for host in bed2.hosts:
        wait_until(lambda host=host: len(diallers(host)) == 1, BOUND, "the former one gives up")  # type: ignore[misc]
    ends_well(launch)
    nothing_left(launch)


def test_ctrl_c_and_stop(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path / "one")
    launch.signal(signal.SIGINT)
    assert launch.result()["exit"] == 130
    nothing_left(launch)
    launch = begun(bed2, tmp_path / "two", "--lease", "30s")
    launch.kill_launcher()
    assert launch.call("stop").returncode == 0
    nothing_left(launch)


def test_a_retry_uses_the_same_connections(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(program("v_retry.py", "1"), "--retries", "1", "--reach", "dial")
    launch.until("node-ready", 2)
    wait_until(lambda: not any(map(ssh_sessions, bed2.hosts)), BOUND, "no session of sshd")
    dialling = [diallers(host) for host in bed2.hosts]
    launch.until("attempt-start", 2)
    assert [diallers(host) for host in bed2.hosts] == dialling
    result = launch.result()
    assert result["exit"] == 0 and len(result["attempts"]) == 2
    nothing_left(launch)


def test_a_node_behind_a_firewall_keeps_ssh_and_is_named(bed2: Bed, tmp_path: Path) -> None:
    port = free_port()
    bed2.host("h2").filter_packets(f"tcp sport {port} drop")
    launch = begun(bed2, tmp_path, reach=f"dial:{port}")
    assert clients(launch, "h1") == [] and len(clients(launch, "h2")) == 1
    (note,) = launch.until("note")
    assert re.match(rf"h2 cannot dial back \(\S+:{port}: Connection timed out", note["message"]), note
    assert f"hint: let a firewall pass port {port} of " in note["message"]
    ends_well(launch)
    nothing_left(launch)


def test_a_port_that_is_taken_leaves_all_nodes_with_ssh(bed2: Bed, tmp_path: Path) -> None:
    port = free_port()
    first = begun(bed2, tmp_path / "one", reach=f"dial:{port}")
    second = begun(bed2, tmp_path / "two", reach=f"dial:{port}")
    (note,) = second.until("note")
    assert note["message"].startswith(f"all nodes keep their ssh connections, and none dials: port {port} cannot be")
    third = begun(bed2, tmp_path / "three", reach=f"dial:{port}-{port + 5}")
    assert clients(third, "h1") == [] and len(clients(second, "h1")) == 1
    for launch in (first, second, third):
        assert finish(launch)["exit"] == 0
    nothing_left(first)
