"""The cable and the power of a host with a real Gloo group over it: the node is named, who waited for it is not."""

import shutil
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.provoking import explained
from tests.hosts.test_faults_start import refused
from tests.hosts.waiting import wait_until

DOWN = "node-network-down"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("fault", ["link cut", "powered off"])
def test_a_host_that_goes_while_all_communicate(bed2: Bed, tmp_path: Path, fault: str) -> None:
    launch, host = Launch(bed2, tmp_path), bed2.host("h2")
    launch.start(program("p_crash.py", "go", "none"), "--lease", "8s").until_running(2)
    if fault == "link cut":
        host.link_down()
    else:
        host.power_off()
    launch.result()
    launch.all_gone()
    if fault == "link cut":
        host.link_up()  # else sshd's own process for the lost connection lives as long as TCP hopes
    says = "h2 fell silent: the link or the power is lost"
    explained(launch, DOWN, ("h2", None), says, victims=[0], code=4, clean=False)
    wait_until(lambda: not any(h.pids() for h in bed2.hosts if h.is_on), BOUND, "hosts without a process of the run")
    for path in Path("/tmp/allranks-0").glob(f"{launch.run_dir.name}-*"):
        shutil.rmtree(path)  # h2 keeps what was not fetched


# -- at the start; more of it in test_faults_network.py --------------------------------------------


@pytest.mark.slow
@pytest.mark.torch
def test_an_interface_of_the_users_that_leads_nowhere(bed2: Bed, tmp_path: Path) -> None:
    """Up and running on both hosts, with no cable between them: Gloo's own complaint and the gate's proof agree."""
    for host in bed2.hosts:
        host.add_interface("aa0", f"10.99.0.{host.index}/24")
    launch = Launch(bed2, tmp_path)
    launch.start(program("exchange.py"), "--env", "GLOO_SOCKET_IFNAME=aa0")
    says = "h2: GLOO_SOCKET_IFNAME is aa0, but the rendezvous check failed over aa0"
    verdict = explained(launch, "wrong-interface", ("h2", None), says, code=4)
    assert (verdict["where"]["interface"], verdict["where"]["peer"]) == ("aa0", "h1")
    assert "remove GLOO_SOCKET_IFNAME from --env" in verdict["remedy"]


def test_an_interface_that_one_host_does_not_have(bed2: Bed, tmp_path: Path) -> None:
    bed2.host("h1").add_interface("aa0", "10.99.0.1/24")
    launch = Launch(bed2, tmp_path)
    launch.start(program("tell.py"), "--env", "GLOO_SOCKET_IFNAME=aa0")
    verdict = refused(bed2, launch, "no-interface", "h2", code=4)
    assert "h2 has no interface aa0" in verdict["message"]
