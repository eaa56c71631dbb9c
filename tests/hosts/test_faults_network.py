"""The master's port and address: taken, filtered, rejected, named wrongly. Names and interfaces that mislead Gloo."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hosts.bed import Bed, Host
from tests.hosts.launching import BOUND, PYTHON, Launch, program
from tests.hosts.test_faults_start import done, nothing_left, refused
from tests.hosts.waiting import wait_until

PORT = 23456


@contextmanager
def squatter(host: Host, port: int, place: Path) -> Iterator[int]:
    """Another program on a port of a host; gives its pid there."""
    mark = place / "taken"
    process = host.popen([PYTHON, *program("squatter.py"), str(port), str(mark)])
    try:
        wait_until(mark.exists, BOUND, "the port taken")
        (found,) = [p for p in host.pids() if "squatter.py" in p.command]
        yield found.inner
    finally:
        process.kill()
        process.communicate()
        wait_until(lambda: not any("squatter.py" in p.command and p.state != "Z" for p in host.pids()), BOUND)


# -- the port --------------------------------------------------------------------------------------


def test_a_fixed_port_that_is_taken(bed4: Bed, tmp_path: Path) -> None:
    launch = Launch(bed4, tmp_path)
    with squatter(bed4.host("h1"), PORT, tmp_path) as pid:
        launch.start(program("tell.py"), "--master-port", str(PORT))
        launch.result()
    verdict = refused(bed4, launch, "port-in-use", "h1", code=4)
    assert verdict["where"]["port"] == PORT
    assert f"port {PORT} on h1 is held by pid {pid} " in verdict["message"]
    assert "squatter.py" in verdict["message"] and "user root" in verdict["message"]
    assert "--master-port 0" in verdict["remedy"]
    assert f"allranks clean --foreign --master-port {PORT} --hosts " in verdict["remedy"]


def test_a_fixed_port_taken_by_another_user(bed4: Bed, tmp_path: Path) -> None:
    """Bound, not listening, and not ours: the owner is said as far as it can be seen."""
    bind = f"import socket; s = socket.socket(); s.bind(('', {PORT})); print('bound', flush=True); input()"
    holder = bed4.host("h1").popen(["python3", "-c", bind], user=(20200, 20200))
    assert holder.stdout is not None and holder.stdout.readline() == "bound\n"
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--master-port", str(PORT))
    launch.result()
    holder.kill()
    holder.communicate()
    verdict = refused(bed4, launch, "port-in-use", "h1", code=4)
    assert "user trainer" in verdict["message"]


@pytest.mark.torch
def test_a_port_that_is_lost_between_proof_and_start(bed4: Bed, tmp_path: Path) -> None:
    """Rank 0 finds the chosen port taken: the gate is repeated with another one, at the cost of no attempt."""
    launch = Launch(bed4, tmp_path).start(program("taken.py"))
    (proved,) = launch.until("gate-proved")
    with squatter(bed4.host("h1"), proved["port"], launch.work):
        result = launch.result()
    assert (result["exit"], result["verdict"]) == (0, None), result
    nothing_left(bed4, launch)
    first, second = launch.events("gate-proved")
    assert first["port"] != second["port"]
    assert [a["outcome"] for a in result["attempts"]] == ["done"]
    assert f"STORE {second['port']} RESTARTS 0" in launch.log(0, attempt=1)
    assert "EADDRINUSE" in launch.log(0)
    assert any(f"port {first['port']} was taken" in e["message"] for e in launch.events("note"))


@pytest.mark.slow
@pytest.mark.torch
def test_a_fixed_port_that_is_lost_between_proof_and_start(bed2: Bed, tmp_path: Path) -> None:
    """No other port may be taken then: the run fails, and says by which port."""
    launch = Launch(bed2, tmp_path).start(program("taken.py"), "--master-port", str(PORT))
    launch.until("gate-proved")
    with squatter(bed2.host("h1"), PORT, launch.work):
        result = launch.result()
    verdict = result["verdict"]
    assert (verdict["cause"], verdict["where"]["node"], result["exit"]) == ("port-in-use", "h1", 4), verdict
    assert str(PORT) in verdict["message"]
    assert len(launch.events("gate-proved")) == 1
    nothing_left(bed2, launch)


# -- the firewall ----------------------------------------------------------------------------------


def test_the_masters_port_filtered_from_one_node(bed4: Bed, tmp_path: Path) -> None:
    bed4.host("h1").drop_from(bed4.host("h3"))
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--master-port", str(PORT))
    verdict = refused(bed4, launch, "port-blocked", "h3", code=4)
    address = bed4.host("h1").address
    assert (verdict["where"]["peer"], verdict["where"]["port"]) == ("h1", PORT)
    assert f"h3 cannot reach {address} port {PORT} on h1" in verdict["message"]
    assert "h2 and h4 can reach it" in verdict["message"]
    assert f"sudo ufw allow from {bed4.slot.subnet}.0/24 to any port {PORT} proto tcp" in verdict["remedy"]
    assert "firewall-cmd" in verdict["remedy"]


def test_high_ports_closed_and_one_open(bed4: Bed, tmp_path: Path) -> None:
    """A free port is a high one: the remedy says to open one and name it. Then the run works."""
    bed4.host("h1").drop_high_ports(except_=[PORT])
    launch = Launch(bed4, tmp_path / "a").start(program("tell.py"))
    verdict = refused(bed4, launch, "port-blocked", None, code=4)
    assert verdict["where"]["peer"] == "h1" and all(name in verdict["message"] for name in ("h2", "h3", "h4"))
    assert "open one port and name it with --master-port" in verdict["remedy"]
    done(bed4, Launch(bed4, tmp_path / "b").start(program("tell.py"), "--master-port", str(PORT)))


def test_the_masters_port_rejected(bed4: Bed, tmp_path: Path) -> None:
    bed4.host("h1").reject_port(PORT)
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--master-port", str(PORT))
    verdict = refused(bed4, launch, "port-blocked", None, code=4)
    assert verdict["where"]["peer"] == "h1"
    assert "refused, though the master listens: a firewall rejects it" in verdict["message"]


def test_a_master_address_that_is_not_the_masters(bed4: Bed, tmp_path: Path) -> None:
    other = bed4.host("h2").address
    launch = Launch(bed4, tmp_path).start(program("tell.py"), "--master-addr", other)
    verdict = refused(bed4, launch, "wrong-interface", "h1", code=4)
    assert verdict["message"].startswith(f"--master-addr {other} is not an address of h1")
    assert bed4.host("h1").address in verdict["message"] and "fe80" not in verdict["message"]


# -- what misleads Gloo ----------------------------------------------------------------------------


def exchanged(bed: Bed, tmp_path: Path) -> list[dict[str, object]]:
    """Three ranks meet over real Gloo; gives the findings."""
    launch = Launch(bed, tmp_path).start(program("exchange.py"), "--init-timeout", "45s", hosts="h1,h2,h3")
    result = done(bed, launch)
    for rank in range(3):
        assert "SUM 3 OVER eth0" in launch.log(rank)
    assert sorted(e["rank"] for e in launch.events("rank-initialised")) == [0, 1, 2]
    assert [e["ranks"] for e in launch.events("all-initialised")] == [3] and result["timing"]["initialised"] > 0
    findings: list[dict[str, object]] = result["findings"]
    assert {f["status"] for f in findings} <= {"warn"}
    return findings


def lead_nowhere(hosts: list[Host]) -> None:
    """An interface that is listed first, with the same subnet on every host and addresses that are each host's own."""
    for host in hosts:
        host.add_interface("aa0", f"10.99.0.{host.index}/24", first=True)
        assert [link["ifname"] for link in host.links()][:2] == ["lo", "aa0"]


@pytest.mark.torch
@pytest.mark.parametrize("master", ["loopback", pytest.param("unknown", marks=pytest.mark.slow)])
def test_names_and_an_interface_that_lead_nowhere(bed4: Bed, tmp_path: Path, master: str) -> None:
    """127.0.1.1, as Debian's installer writes it, and a name that does not resolve: on the master and elsewhere.

    And on the hosts whose names resolve, an interface that is listed first.
    """
    loopback, unknown = ("h1", "h3") if master == "loopback" else ("h3", "h1")
    lead_nowhere([host for host in bed4.hosts if host.name != unknown])
    bed4.host(loopback).own_name_to("127.0.1.1")
    bed4.host(unknown).forget_own_name()
    by_id = {f["id"]: f for f in exchanged(bed4, tmp_path)}
    assert by_id["hostname-resolves-to-loopback"]["where"] == {"node": loopback}
    assert "127.0.1.1" in str(by_id["hostname-resolves-to-loopback"]["message"])
    assert by_id["name-resolution"]["where"] == {"node": unknown}
    assert f"{bed4.host(unknown).address} {unknown}" in str(by_id["name-resolution"]["remedy"])
