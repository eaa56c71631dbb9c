"""The lease: what breaks for less than it costs nothing, what breaks for longer ends everything.

Ranks print numbered lines all the while: their logs must hold every one.
"""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from tests.hosts.bed import Bed, Host, Process
from tests.hosts.launching import BOUND, Launch, program
from tests.hosts.programs.v_lines import complete, taken
from tests.hosts.waiting import wait_until
from tests.processes import command_of

RANKS = 4
SLOWLY = "0.002"
REACH = ("ssh", "dial")


def begun(bed: Bed, place: Path, *options: str, pause: str = SLOWLY) -> Launch:
    """Four ranks on two hosts that print."""
    launch = Launch(bed, place).start(program("v_lines.py", pause), *options, nproc=2)
    return launch.until_running(RANKS)


def begin(launch: Launch, verb: str, *words: str) -> Launch:
    """Another verb of the same run takes the launcher's place in `launch`."""
    return launch.begin(verb, *words, cwd=launch.place)


def log_bytes(launch: Launch, rank: int) -> bytes:
    (path,) = launch.run_dir.glob(f"logs/node_*/rank_{rank:03d}.log")
    return path.read_bytes()


def log_sizes(launch: Launch) -> list[int]:
    return [p.stat().st_size for p in sorted(launch.run_dir.glob("logs/node_*/rank_*.log"))]


def until_logs_grow(launch: Launch) -> None:
    """Every rank's log gets more than a few lines beyond what it has now."""
    before = wait_until(lambda: s if len(s := log_sizes(launch)) == RANKS else None, BOUND) or []
    wait_until(
        lambda: all(now > old + 2000 for now, old in zip(log_sizes(launch), before, strict=True)), BOUND, "logs grow"
    )


def finish(launch: Launch) -> dict[str, object]:
    """Lets the ranks end by themselves."""
    (launch.work / "done").touch()
    return launch.result()


def check_logs(launch: Launch) -> None:
    for rank in range(RANKS):
        assert complete(log_bytes(launch, rank), rank, taken(str(launch.work), rank)) > 0


def ends_well(launch: Launch) -> None:
    """The ranks go on and end by themselves, and no line of theirs is missing."""
    until_logs_grow(launch)
    result = finish(launch)
    assert (result["exit"], result["verdict"]) == (0, None)
    check_logs(launch)


def clients(launch: Launch, host: str) -> list[int]:
    """The launcher's ssh clients to a host."""
    assert launch.process is not None
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or f"\nPPid:\t{launch.process.pid}\n" not in (entry / "status").read_text():
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if host.encode() in words and any(w.endswith(b"ssh") for w in words[:2]):
            found.append(int(entry.name))
    return found


def relays(launch: Launch, host: str) -> list[Process]:
    """Boot processes of a host that are neither agent nor supervisor: they hang on an sshd session."""
    boots = [p for p in launch.bed.host(host).pids() if "ALLRANKS-BOOT" in p.command and p.state != "Z"]
    pids = {p.pid for p in boots}
    detached = {p.pid for p in boots if _session(p.pid) not in {_session(q.ppid) for q in boots if q.ppid == p.ppid}}
    return [p for p in boots if p.pid in detached & pids and p.ppid not in pids and b"sshd" in command_of(p.ppid)]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def ranks_on(host: Host) -> list[Process]:
    return [p for p in host.pids() if "RANK" in p.environ and p.state != "Z"]


def nothing_left(launch: Launch) -> None:
    """No process of the run anywhere, no agent or supervisor either; the ssh clients are gone."""
    wait_until(
        lambda: not launch.alive() and not any(h.pids() for h in launch.bed.hosts),
        BOUND,
        "nothing left on any host",
    )


# -- shorter than the lease --------------------------------------------------------------------------


@pytest.mark.parametrize("reach", REACH)
def test_a_cut_shorter_than_the_lease_costs_nothing(bed2: Bed, tmp_path: Path, reach: str) -> None:
    launch = begun(bed2, tmp_path, "--lease", "30s" if reach == "dial" else "10s", "--reach", reach)
    until_logs_grow(launch)
    bed2.host("h2").link_down()
    assert launch.until("node-silent")[0]["node"] == "h2"
    bed2.host("h2").link_up()
    assert launch.until("node-back")[0]["node"] == "h2"
    ends_well(launch)
    nothing_left(launch)


def test_an_ssh_client_that_is_killed_is_replaced(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path)
    until_logs_grow(launch)
    (client,) = clients(launch, "h2")
    os.kill(client, signal.SIGKILL)
    wait_until(lambda: (now := clients(launch, "h2")) and client not in now, BOUND, "another client")
    ends_well(launch)


def test_a_connection_that_this_machine_cannot_open_again(bed2: Bed, tmp_path: Path) -> None:
    """No node is blamed for what the launching machine lacks."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "ssh").symlink_to(bed2.bin_dir() / "ssh")
    launch = Launch(bed2, tmp_path / "run")
    launch.start(program("v_lines.py", SLOWLY), "--lease", "3s", nproc=2, env={"PATH": str(place)})
    launch.until_running(RANKS)
    (place / "ssh").unlink()
    for name in ("h1", "h2"):
        (client,) = clients(launch, name)
        os.kill(client, signal.SIGKILL)
    result = launch.result()
    verdict = result["verdict"]
    assert (verdict["cause"], verdict["where"], result["exit"]) == ("environment-mismatch", {}, 4), verdict
    assert "ssh: not found on PATH" in verdict["message"]
    nothing_left(launch)


def test_a_relay_that_is_killed_is_replaced(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path)
    until_logs_grow(launch)
    (relay,) = relays(launch, "h2")
    os.kill(relay.pid, signal.SIGKILL)
    wait_until(lambda: (now := relays(launch, "h2")) and now[0].pid != relay.pid, BOUND, "another relay")
    ends_well(launch)


# -- the controller dies -----------------------------------------------------------------------------


def orphaned(bed: Bed, place: Path, lease: str = "30s") -> Launch:
    """A run whose controller was killed while its ranks print."""
    launch = begun(bed, place, "--lease", lease)
    until_logs_grow(launch)
    launch.kill_launcher()
    assert len(launch.alive()) >= RANKS
    return launch


def test_attach_takes_over_and_loses_nothing(bed2: Bed, tmp_path: Path) -> None:
    launch = orphaned(bed2, tmp_path)
    state = json.loads(launch.call("status", "--json").stdout)["state"]
    assert state == "orphaned"
    before = {rank: taken(str(launch.work), rank) for rank in range(RANKS)}
    begin(launch, "attach", "--json")
    launch.until("controller-attached")
    until_logs_grow(launch)
    assert json.loads(launch.call("status", "--json").stdout)["state"] == "running"
    result = finish(launch)
    assert (result["exit"], result["verdict"]) == (0, None)
    check_logs(launch)
    assert all(taken(str(launch.work), rank) > before[rank] for rank in range(RANKS)), "they printed all the while"
    nothing_left(launch)


@pytest.mark.parametrize("reach", REACH)
def test_a_replaced_controller_ends_with_the_run(bed2: Bed, tmp_path: Path, reach: str) -> None:
    """Exit 0 says that the program has ended: the old command says how the run ends in the new one's hands."""
    launch = begun(bed2, tmp_path, "--reach", reach)
    former = launch.process
    assert former is not None
    begin(launch, "attach", "--take-over", "--json")
    launch.until("controller-attached")
    until_logs_grow(launch)
    launch.signal(signal.SIGINT)
    assert launch.result()["exit"] == 130
    assert former.wait(BOUND) == 130
    nothing_left(launch)


def test_ctrl_c_in_attach_ends_all(bed2: Bed, tmp_path: Path) -> None:
    launch = orphaned(bed2, tmp_path)
    begin(launch, "attach", "--json")
    until_logs_grow(launch)
    launch.signal(signal.SIGINT)
    result = launch.over()
    assert result["exit"] == 130
    check_logs(launch)
    nothing_left(launch)


def test_stop_without_a_controller(bed2: Bed, tmp_path: Path) -> None:
    launch = orphaned(bed2, tmp_path)
    done = launch.call("stop")
    assert done.returncode == 0, done.stderr
    assert launch.alive() == []
    document = json.loads((launch.run_dir / "result.json").read_text())
    assert (document["exit"], document["verdict"]) == (143, None)
    check_logs(launch)
    nothing_left(launch)


def test_attach_while_a_node_cannot_be_reached_ends_the_run_after_the_lease(bed2: Bed, tmp_path: Path) -> None:
    launch = orphaned(bed2, tmp_path, "10s")
    bed2.host("h2").link_down()
    begin(launch, "attach", "--json")
    result = launch.result()
    assert result["exit"] == 4
    assert result["verdict"]["where"]["node"] == "h2"
    assert launch.all_gone()


def test_attach_to_a_run_whose_ranks_ended_alone(bed2: Bed, tmp_path: Path) -> None:
    """The logs are still in the node directories: they are fetched, though a host that is far away takes longer to
    log in to than the lease is long; and the verdict says what happened."""
    launch = orphaned(bed2, tmp_path, "2s")
    launch.all_gone()
    wait_until(lambda: not any(h.pids() for h in bed2.hosts), BOUND, "agents gone")
    if os.path.exists("/dev/net/tun"):
        bed2.host("h2").delay(120)
    begin(launch, "attach", "--json")
    result = launch.result()
    assert result["exit"] == 4
    verdict = result["verdict"]
    assert (verdict["cause"], verdict["where"]) == ("controller-ended", {}), verdict
    assert "the lease of 2 s ended the ranks at " in verdict["message"]
    check_logs(launch)


def test_a_controller_that_was_stopped_for_longer_than_the_lease(bed2: Bed, tmp_path: Path) -> None:
    """Ctrl-Z from another shell, a debugger, a suspended machine: it says what the nodes did, and ends."""
    launch = begun(bed2, tmp_path, "--lease", "2s")
    until_logs_grow(launch)
    launch.signal(signal.SIGSTOP)
    wait_until(lambda: not any(ranks_on(h) for h in bed2.hosts), BOUND, "ranks gone")
    launch.signal(signal.SIGCONT)
    result = launch.result()
    assert result["exit"] == 4
    verdict = result["verdict"]
    assert verdict["message"].startswith("allranks itself did not run on the launching machine for "), verdict
    assert "the lease of 2 s was over" in verdict["message"] and "--lease" in verdict["remedy"]
    assert verdict["where"] == {} and "h1, h2" in verdict["evidence"][1]
    check_logs(launch)
    nothing_left(launch)


@pytest.mark.parametrize("moment", ["node-ready", "gate-listening", "gate-proved", "rank-started"])
def test_an_ssh_client_that_is_killed_during_the_start(bed2: Bed, tmp_path: Path, moment: str) -> None:
    """What was asked or answered over the old channel is asked again."""
    launch = Launch(bed2, tmp_path).start(program("v_lines.py", SLOWLY), nproc=2)
    ready = lambda: [e for e in launch.events("node-ready") if e["node"] == "h2"]  # noqa: E731
    wait_until(lambda: ready() and launch.events(moment), BOUND, f"{moment}, and h2 has said hello")
    for client in clients(launch, "h2"):
        os.kill(client, signal.SIGKILL)
    launch.until_running(RANKS)
    ends_well(launch)
    assert len({(e["rank"], e["pid"]) for e in launch.events("rank-started")}) == RANKS


def test_attach_to_a_run_that_was_just_starting(bed2: Bed, tmp_path: Path) -> None:
    """The old controller had written down next to nothing."""
    launch = Launch(bed2, tmp_path).start(program("v_lines.py", SLOWLY), nproc=2)
    launch.until("rank-started", RANKS)
    launch.kill_launcher()
    begin(launch, "attach", "--json")
    ends_well(launch)


def test_attach_to_a_run_that_had_not_started_its_ranks(bed2: Bed, tmp_path: Path) -> None:
    prelude = "while [ ! -e go ]; do sleep 0.05; done"  # the look at the nodes is not done before the kill
    launch = Launch(bed2, tmp_path).start(program("v_lines.py", SLOWLY), "--prelude", prelude, nproc=2)
    launch.until("node-ready", 2)
    launch.kill_launcher()
    begin(launch, "attach", "--json")
    result = launch.result()
    assert result["exit"] == 4 and result["verdict"] is not None
    nothing_left(launch)


MOMENTS = ("run-start", "node-connecting", "facts", "gate-proved", "rank-started")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_launcher_killed_while_it_starts_leaves_nothing(bed2: Bed, tmp_path: Path, moment: str) -> None:
    launch = Launch(bed2, tmp_path).start(program("nasty.py"), "--lease", "2s", nproc=2)
    launch.until(moment)
    jitter = random.Random(moment).random() * 0.3
    assert launch.process is not None
    try:
        launch.process.wait(jitter)  # not a wait for anything: any moment must do
    except subprocess.TimeoutExpired:
        launch.kill_launcher()
    nothing_left(launch)


# -- the agent dies ----------------------------------------------------------------------------------


def test_a_agent_killed_under_full_output_loses_no_line(bed2: Bed, tmp_path: Path) -> None:
    launch = begun(bed2, tmp_path, pause="0")
    until_logs_grow(launch)
    os.kill(launch.agent_pid(2), signal.SIGKILL)
    result = launch.over()
    assert result["exit"] == 4 and result["verdict"]["where"]["node"] == "h2"
    check_logs(launch)
    assert result["unfetched"] == {}
