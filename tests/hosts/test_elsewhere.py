"""run --controller: the controller is on a node, and whatever becomes of the launching side, the run ends well."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed, Host
from tests.hosts.conftest import MakeBed
from tests.hosts.launching import BOUND, PYTHON, Launch, program
from tests.hosts.terminal import Terminal
from tests.hosts.test_reach import SECRET, diallers, ssh_sessions
from tests.hosts.waiting import wait_until
from tests.ports import free_port

RANKS = 4


class Elsewhere(Launch):
    """A run whose controller is on the first host; this side has an index of its own."""

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        return super().environment({"XDG_STATE_HOME": str(self.place / "state"), **(extra or {})})

    def begun(self, *options: str, ranks: int = RANKS, **named: Any) -> Elsewhere:
        started = self.start(program("v_steps.py"), "--controller", "first-node", *options, nproc=2, **named)
        assert started is self
        return self.until_running(ranks)

    def end_well(self) -> dict[str, Any]:
        """Let the ranks end; the result."""
        (self.work / "done").touch()
        return self.ended(0)

    def take_over(self, *words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> dict[str, Any]:
        """Attach in place of a controller that is dead, and let the ranks end."""
        self.begin("attach", *words, "--json", cwd=cwd or self.place, env=env)
        self.until("controller-attached")
        return self.end_well()

    def ended(self, code: int) -> dict[str, Any]:
        """The result, once the controller there has written it; no process of the run is left on any host."""
        path = self.run_dir / "result.json"
        wait_until(path.exists, BOUND, "the result")
        document: dict[str, Any] = json.loads(path.read_text())
        assert document["exit"] == code, document
        self.all_gone()
        wait_until(lambda: not ours(self.bed), BOUND, "nothing left on a host")
        return document


def ours(bed: Bed) -> list[str]:
    """What runs on the hosts; sshd holds its end of a connection for as long as TCP hopes."""
    processes = [process for host in bed.hosts if host.is_on for process in host.pids()]
    return [process.command for process in processes if "sshd" not in process.command]


@pytest.fixture
def bed(bed2: Bed) -> Bed:
    bed2.connect_hosts()
    return bed2


@pytest.fixture
def launch(bed: Bed, tmp_path: Path) -> Elsewhere:
    return Elsewhere(bed, tmp_path)


def kill_controller(launch: Launch, host: Host) -> None:
    """The daemon on a host that has the run."""
    pid = json.loads((launch.run_dir / "run.json").read_text())["controller"]["pid"]
    (found,) = [process for process in host.pids() if process.inner == pid]
    os.kill(found.pid, signal.SIGKILL)


def test_a_run_is_shown_to_its_end_and_said_words_about(launch: Elsewhere) -> None:
    launch.begun()
    run = json.loads((launch.run_dir / "run.json").read_text())
    assert run["controller"]["host"] == "h1"
    name = launch.run_dir.name
    status = launch.call("status", "--json")
    assert json.loads(status.stdout)["state"] == "running", status
    logs = launch.call("logs", name, "-n", "1")
    assert logs.returncode == 0 and " step " in logs.stdout
    by_host = launch.call("status", "--on", "h1", str(launch.run_dir), "-q")
    assert by_host.stdout == "running\n", by_host
    top = launch.call("top", "--on", "h1", "--once", str(launch.run_dir))
    assert top.stdout.startswith(name), top
    attached = Elsewhere(launch.bed, launch.place / "again")
    attached.place = launch.place
    attached.begin("attach", name, "--json")
    (launch.work / "done").touch()
    assert attached.wait() == 0
    launch.ended(0)
    assert launch.call("attach", name).returncode == 0


def test_a_killed_launcher_changes_nothing(launch: Elsewhere) -> None:
    launch.begun().kill_launcher()
    launch.end_well()


def test_a_cut_from_the_launching_machine_changes_nothing(launch: Elsewhere) -> None:
    launch.begun("--lease", "5s")
    launch.bed.host("h1").drop_from(launch.bed.head_address)
    assert launch.wait() == 4
    assert f"goes on there\nhint: allranks attach {launch.run_dir.name}" in launch.stderr
    launch.end_well()


def training(launch: Elsewhere, controller: str) -> Terminal:
    """A terminal whose run trains on all nodes."""
    terminal = Terminal(launch, "--controller", controller)
    terminal.until(lambda: len(list(launch.work.glob("up-*"))) == RANKS, "all ranks up")
    return terminal


def test_a_terminal_that_dies_changes_nothing(launch: Elsewhere) -> None:
    terminal = training(launch, "first-node")
    terminal.dies()
    launch.end_well()


def test_ctrl_z_detaches_and_ctrl_c_ends(launch: Elsewhere) -> None:
    terminal = training(launch, "first-node")
    terminal.ctrl_z()
    terminal.type("d\n")
    assert terminal.ends() == 0
    assert f"{launch.run_dir.name} goes on" in terminal.text
    assert launch.call("stop", launch.run_dir.name).returncode == 0
    launch.ended(143)
    for up in launch.work.glob("up-*"):
        up.unlink()
    again = training(launch, "h1")
    again.type("\x03")
    assert again.ends() == 130
    launch.ended(143)


def test_signals_without_a_terminal_travel_too(launch: Elsewhere) -> None:
    launch.begun()
    launch.signal(signal.SIGINT)
    assert launch.wait() == 130
    launch.ended(143)


def test_stop_from_a_third_machine(launch: Elsewhere) -> None:
    launch.begun()
    done = launch.call("stop", "--on", "h1", str(launch.run_dir), env={"XDG_STATE_HOME": str(launch.place / "other")})
    assert done.returncode == 0, done.stderr
    launch.ended(143)


def test_the_death_of_its_host_ends_the_others_by_lease(launch: Elsewhere) -> None:
    launch.begun("--lease", "5s")
    launch.bed.host("h1").power_off()
    launch.all_gone()
    wait_until(lambda: not ours(launch.bed), BOUND, "nothing left on h2")
    done = launch.call("attach", launch.run_dir.name, "--on", "h1")
    assert done.returncode == 4 and "h1" in done.stderr


@pytest.fixture
def apart(make_bed: MakeBed, tmp_path: Path) -> Elsewhere:
    """On three hosts that share the run directory, and no /tmp: agents are found where they are."""
    bed = make_bed(3, own_tmp=True, shared=[tmp_path])
    bed.connect_hosts()
    return Elsewhere(bed, tmp_path)


def test_a_dead_controller_is_replaced_within_the_lease(apart: Elsewhere) -> None:
    apart.begun("--nodes", "2", "--lease", "30s")
    kill_controller(apart, apart.bed.host("h1"))
    assert apart.wait() == 4
    result = apart.take_over("--take-over", str(apart.run_dir))
    assert [finding["id"] for finding in result["findings"] if finding["status"] == "fail"] == []


def test_a_run_goes_on_after_the_death_of_its_controllers_host(apart: Elsewhere) -> None:
    launch, bed = apart, apart.bed
    launch.start(program("v_steps.py"), "--controller", "h3", "--spares", "1", "--lease", "30s", nproc=2)
    launch.until_running(RANKS)
    bed.host("h3").power_off()
    launch.take_over("--take-over", str(launch.run_dir))


def test_attach_from_a_third_machine_follows_a_living_controller_and_replaces_a_dead_one(apart: Elsewhere) -> None:
    """It took a healthy run over, so that Ctrl-C there ended it. Machines of one disk are all that knows of both."""
    apart.begun("--nodes", "2", "--lease", "30s")
    third = Elsewhere(apart.bed, apart.place / "third")
    third.begin("attach", str(apart.run_dir))
    wait_until(lambda: "Ctrl-C leaves it, and it goes on" in third.stderr + third.stdout, BOUND, "attached")
    assert third.process is not None and apart.process is not None
    third.process.send_signal(signal.SIGINT)
    third.process.wait(BOUND)
    assert apart.process.poll() is None
    kill_controller(apart, apart.bed.host("h1"))
    apart.process.wait(BOUND)
    apart.take_over(str(apart.run_dir), cwd=third.place, env={"XDG_STATE_HOME": str(third.place)})


ROLES = """
[roles.files]
command = "python3 -m http.server {files.port.http}"
nodes = 1
ready = "http://{address}:{files.port.http}/"

[roles.trainer]
command = "train.py {files.address}:{files.port.http}"
nproc = 2
after = ["files"]
"""


def test_roles_of_a_file_here_run_from_there(launch: Elsewhere) -> None:
    (launch.work / "train.py").write_text(
        "import sys, urllib.request\nprint('got', len(urllib.request.urlopen('http://' + sys.argv[1]).read()) > 0)\n"
    )
    roles = launch.place / "roles.toml"
    roles.write_text(ROLES)
    launch.start([], "--controller", "h2", "--roles", str(roles), nproc=None)
    assert launch.wait() == 0, launch.stderr
    result = launch.ended(0)
    assert {name: role["nodes"] for name, role in result["roles"].items()} == {"files": ["h1"], "trainer": ["h2"]}
    assert json.loads((launch.run_dir / "run.json").read_text())["controller"]["host"] == "h2"
    assert (launch.run_dir / "logs/node_01_h2/rank_001.log").read_text() == "got True\n"


@pytest.fixture
def keyless(bed2: Bed, tmp_path: Path) -> Elsewhere:
    """On hosts that have no ssh to each other."""
    for host in bed2.hosts:
        host.run("rm -f ~/.ssh/config")
    return Elsewhere(bed2, tmp_path)


def sessions(bed: Bed) -> list[str]:
    return [host.name for host in bed.hosts if ssh_sessions(host)]


def test_nodes_dial_a_controller_that_has_no_ssh_to_them(keyless: Elsewhere) -> None:
    launch = keyless.begun()
    assert "note: h1 has no ssh to h2, so ssh from here starts there what dials h1\n" in launch.stderr
    for host in launch.bed.hosts:
        for process in host.pids():
            for part in ("cmdline", "environ"):
                assert not SECRET.search(Path(f"/proc/{process.pid}/{part}").read_bytes()), process
    assert len(diallers(launch.bed.host("h2"))) == 1
    launch.kill_launcher()
    wait_until(lambda: not sessions(launch.bed), BOUND, "no session of sshd")
    launch.end_well()
    for path in launch.run_dir.rglob("*"):
        if path.is_file() and path.name not in ("facts.json", "preflight.json"):
            assert not SECRET.search(path.read_bytes()), path


def test_a_cut_right_after_the_start_changes_nothing_without_keys(keyless: Elsewhere) -> None:
    launch = keyless.begun("--lease", "6s")
    for host in launch.bed.hosts:
        host.drop_from(launch.bed.head_address)
    assert launch.wait() == 4
    launch.end_well()


def test_the_death_of_its_host_ends_those_that_dial_by_lease(keyless: Elsewhere) -> None:
    launch = keyless.begun("--lease", "6s")
    launch.bed.host("h1").power_off()
    launch.all_gone()
    wait_until(lambda: not ours(launch.bed), BOUND, "nothing left on h2")


def test_what_dials_is_started_again_as_long_as_the_launcher_is_there(keyless: Elsewhere) -> None:
    launch = keyless.begun("--lease", "30s")
    (before,) = diallers(launch.bed.host("h2"))
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: diallers(launch.bed.host("h2")) not in ([], [before]), BOUND, "another that dials")
    launch.end_well()


def test_a_stranger_with_another_secret_is_refused(keyless: Elsewhere) -> None:
    port = free_port()
    launch = keyless.begun("--reach", f"dial:{port}")
    h1, h2 = launch.bed.hosts
    dial = f"from allranks.agent.dial import Tries; Tries([('{h1.address}', {port})], b'x' * 32).dial(False, 1e9)"
    assert "OtherSecret" in h2.run([PYTHON, "-c", dial], check=False).stderr
    (note,) = launch.until("note")
    assert note["message"].startswith(f"a connection from {h2.address} was refused: ")
    launch.end_well()


def test_a_node_that_cannot_dial_is_named_with_address_and_port(keyless: Elsewhere) -> None:
    port = free_port()
    keyless.bed.host("h2").filter_packets(f"tcp sport {port} drop")
    launch = keyless.start(program("v_steps.py"), "--controller", "h1", "--reach", f"dial:{port}")
    assert launch.wait() == 4
    verdict = keyless.ended(4)["verdict"]
    address = launch.bed.host("h1").address
    expected = f"h2 cannot dial the controller on h1 ({address}:{port}: Connection timed out"
    assert (verdict["cause"], verdict["where"]["port"]) == ("port-blocked", port)
    assert verdict["message"].startswith(expected), verdict
    assert f"let a firewall pass port {port} of h1" in verdict["remedy"]


def test_a_controller_that_died_is_replaced_there_with_ssh_from_here(keyless: Elsewhere) -> None:
    launch = keyless.begun("--lease", "30s")
    kill_controller(launch, launch.bed.host("h1"))
    assert launch.wait() == 4
    launch.take_over(launch.run_dir.name)


def test_a_controller_that_died_is_replaced_here(make_bed: MakeBed, tmp_path: Path) -> None:
    launch = Elsewhere(make_bed(2, own_tmp=True, shared=[tmp_path]), tmp_path).begun("--lease", "30s")
    kill_controller(launch, launch.bed.host("h1"))
    assert launch.wait() == 4
    launch.take_over("--take-over", str(launch.run_dir))


def test_what_cannot_be_there_is_refused(launch: Elsewhere) -> None:
    def refused(*words: str) -> str:
        done = launch.call("run", *words, "--nproc", "1", "train.py")
        assert done.returncode in (2, 4), done
        return done.stderr

    hosts = ("--hosts", str(launch.bed.hostfile_names))
    assert "--controller h9: not a host of" in refused(*hosts, "--controller", "h9")
    assert "needs --hosts" in refused("--local", "2", "--controller", "first-node")
    assert "h1 gives no run directory (" in refused(*hosts, "--workdir", "/nowhere", "--controller", "h1")
    no_python = refused(*hosts, "--agent-python", "/bin/false", "--controller", "h1")
    assert "h1 has no Python 3.10 or newer, which a controller needs" in no_python
    dry = launch.call("run", *hosts, "--controller", "h2", "--nproc", "1", "--dry-run", "train.py")
    assert f"the controller would run on h2, with the run directory in {launch.runs} there" in dry.stdout
    launch.bed.host("h2").reject_port(22)
    unreached = refused(*hosts, "--controller", "h1")
    assert "note: neither h1 nor this machine has ssh to h2" in unreached
    wait_until(lambda: not ours(launch.bed), BOUND, "nothing left")
