"""The verbs on real hosts: status, logs, attach, stop, clean, and Ctrl-Z in a real terminal."""

import json
import os
import re
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.bed import Bed, Host, missing
from tests.hosts.conftest import MakeBed
from tests.hosts.launching import BOUND, PYTHON, Launch, program
from tests.hosts.terminal import Terminal
from tests.hosts.test_lease import finish
from tests.hosts.waiting import wait_until
from tests.processes import parent_of

from allranks.agent.processes import alive, read_processes

RANKS = 4


def begun(bed: Bed, place: Path, *options: str, runs: Path | None = None) -> Launch:
    """Four ranks on two hosts that step until told to end."""
    launch = Launch(bed, place)
    launch.runs = runs or launch.runs
    return launch.start(program("v_steps.py"), *options, nproc=2).until_running(RANKS)


def words(launch: Launch, verb: str, *more: str) -> Any:
    """The JSON document of a verb that succeeds."""
    done = launch.call(verb, *more, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def steps_shown(launch: Launch) -> list[dict[str, Any]] | None:
    """The ranks in `status` once all of them have a step."""
    ranks = [r for n in words(launch, "status")["nodes"] for r in n["ranks"]]
    return ranks if len(ranks) == RANKS and all(r["step"] for r in ranks) else None


# -- status, logs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """One run, on hosts of its own, for the tests up to the line: first while it goes on, then after its end."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Bed.up(2, tmp_path_factory.mktemp("bed-")) as bed:
        begun_ = begun(bed, tmp_path_factory.mktemp("looking"))
        wait_until(lambda: steps_shown(begun_), BOUND, "steps of all ranks")
        yield begun_
        begun_.kill_launcher()


def test_status_of_a_run_that_goes_on(launch: Launch) -> None:
    ranks = wait_until(lambda: steps_shown(launch), BOUND, "steps of all ranks") or []
    document = words(launch, "status")
    assert (document["schema"], document["run"], document["state"]) == (1, launch.run_dir.name, "running")
    assert [(n["name"], n["state"]) for n in document["nodes"]] == [("h1", "running"), ("h2", "running")]
    assert document["world_size"] == RANKS
    assert document["master"]["address"] == launch.bed.hosts[0].address and document["master"]["port"] > 1024
    for number, rank in enumerate(ranks):
        assert rank["rank"] == number and rank["state"] == "started"
        assert {"rank", "local_rank", "state", "pid", "step", "last_output_s"} <= set(rank)
        assert 0 <= rank["last_output_s"] < BOUND and rank["pid"] > 1


def test_status_for_people(launch: Launch) -> None:
    shown = launch.call("status").stdout
    assert re.search(rf"^{launch.run_dir.name}: running, 4 ranks, master \S+:\d+(, goodput \d+ %)?$", shown, re.M)
    assert re.search(r"^h1 +running +2 started +\d+", shown, re.M)
    assert re.search(r"rank:pid 2:\d+, 3:\d+", shown)


def test_logs_so_far(launch: Launch) -> None:
    done = launch.call("logs", "--no-fold")
    assert done.returncode == 0
    for rank, node in enumerate(("h1", "h1", "h2", "h2")):
        assert f"[{node} {rank}] rank {rank} step 1\n" in done.stdout


def test_logs_of_a_node_or_a_rank(launch: Launch) -> None:
    assert {line[:6] for line in launch.call("logs", "--node", "h2").stdout.splitlines()} == {"[h2 2]", "[h2 3]"}
    assert {line[:6] for line in launch.call("logs", "--rank", "1").stdout.splitlines()} == {"[h1 1]"}
    both = launch.call("logs", "--rank", "0", "--rank", "3").stdout.splitlines()
    assert {line[:6] for line in both} == {"[h1 0]", "[h2 3]"}


def test_logs_since(launch: Launch) -> None:
    assert "step 1\n" in launch.call("logs", "--since", "1h", "--rank", "0").stdout
    wait_until(lambda: "rank 0 step 1\n" not in launch.call("logs", "--since", "1s", "--rank", "0").stdout, BOUND,
               "the first step is more than a second old")  # fmt: skip


def test_metrics_wherever_they_lie(launch: Launch) -> None:
    done = launch.call("logs", "--metrics", "-n", "2", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f["rank"] for f in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(later["metrics"]["step"] == one["metrics"]["step"] + 1
               for one, later in zip(found[::2], found[1::2], strict=True))  # fmt: skip
    assert len(launch.call("logs", "--metrics", "-n", "3", "--rank", "3").stdout.splitlines()) == 3


def test_attach_to_a_run_that_goes_on_and_leave_it(launch: Launch) -> None:
    attached = subprocess.Popen(
        launch.command("attach"), env=launch.environment(), cwd=launch.place, stdin=subprocess.DEVNULL,
        stdout=(launch.place / "attached").open("w"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    said = launch.place / "attached"
    wait_until(lambda: "step" in said.read_text(), BOUND, "output in attach")
    attached.send_signal(signal.SIGINT)
    assert attached.wait(BOUND) == 0
    assert f"{launch.run_dir.name} goes on: allranks status" in said.read_text()
    assert words(launch, "status")["state"] == "running" and not launch.events("controller-attached")
    before = len(launch.log(0))
    wait_until(lambda: len(launch.log(0)) > before, BOUND, "it goes on")


def test_logs_f_until_the_end(launch: Launch) -> None:
    follower = subprocess.Popen(
        launch.command("logs", "-f", "--no-fold"), env=launch.environment(), cwd=launch.place,
        stdin=subprocess.DEVNULL, stdout=(launch.place / "followed").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = launch.place / "followed"
    wait_until(lambda: "step" in said.read_text(), BOUND, "output in logs -f")
    assert finish(launch)["exit"] == 0
    assert follower.wait(BOUND) == 0
    for rank in range(RANKS):
        shown = [line for line in said.read_text().splitlines() if line.startswith(("[h1 ", "[h2 "))]
        mine = [line.split("] ", 1)[1] for line in shown if line[4:].startswith(f"{rank}]")]
        assert mine == launch.log(rank).splitlines()


def over(launch: Launch) -> Launch:
    """The run after its end, whichever test comes first."""
    assert launch.process is not None
    if launch.process.poll() is None:
        finish(launch)
    return launch


def test_status_and_attach_after_the_end(launch: Launch) -> None:
    over(launch)
    document = words(launch, "status")
    assert document["state"] == "done"
    assert {r["state"] for n in document["nodes"] for r in n["ranks"]} == {"exited"}
    done = launch.call("attach", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["exit"] == 0
    assert launch.call("stop").returncode == 0


def test_a_bundle_has_the_logs_of_both_hosts(launch: Launch) -> None:
    run = over(launch).run_dir
    file = launch.place / "to-send.zip"
    done = launch.call("report", "--bundle", "--output", str(file))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(file) as bundle:
        texts = {name.partition("/")[2]: bundle.read(name).decode() for name in bundle.namelist()}
    logs = {path.relative_to(run).as_posix(): path.read_text() for path in run.glob("logs/node_*/rank_*.log")}
    assert len(logs) == RANKS
    assert {name: texts[f"run/{name}"] for name in logs} == logs
    assert run.name in texts["summary.md"] and "h1" in texts["summary.md"] and "h2" in texts["summary.md"]


def test_clean_takes_it_after_the_end(launch: Launch) -> None:
    name = over(launch).run_dir.name
    assert words(launch, "clean", "--keep", "1")["removed"] == []
    assert words(launch, "clean", "--keep", "0", "--dry-run")["removed"] == [name]
    assert launch.run_dir.is_dir()
    assert words(launch, "clean", "--keep", "0", "--yes")["removed"] == [name]
    assert not any(launch.runs.iterdir())


# -- stop, detach ------------------------------------------------------------------------------------


def test_stop_all(bed2: Bed, tmp_path: Path) -> None:
    first = begun(bed2, tmp_path / "a")
    second = begun(bed2, tmp_path / "b", runs=first.runs)
    document = words(first, "stop", "--all")
    assert [s["code"] for s in document["stopped"]] == [0, 0]
    assert first.result()["exit"] == 143 and second.result()["exit"] == 143
    assert first.alive() == [] and second.alive() == []
    assert words(first, "stop", "--all")["stopped"] == []


def test_detach(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(program("v_steps.py"), "--detach", nproc=2)
    assert launch.process is not None and launch.process.wait(BOUND) == 0
    document = json.loads(launch.stdout)
    assert document["detached"] is True and document["run"] == launch.run_dir.name
    wait_until(lambda: steps_shown(launch), BOUND, "steps of all ranks")
    assert words(launch, "status")["state"] == "running"
    (launch.work / "done").touch()
    result = launch.run_dir / "result.json"
    wait_until(result.exists, BOUND, "the end")
    assert json.loads(result.read_text())["exit"] == 0
    launch.all_gone()
    assert "rank 3 is done" in launch.log(3)


def test_detach_of_a_start_that_fails_tells_why(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(["no-such-script.py"], "--detach")
    assert launch.process is not None and launch.process.wait(BOUND) not in (0, None)
    assert "no-such-script.py" in launch.stdout + launch.stderr


# -- leftovers ---------------------------------------------------------------------------------------


@pytest.fixture
def own2(make_bed: MakeBed, tmp_path: Path) -> Bed:
    """Two hosts with a /tmp of their own: node directories of others are not in sight."""
    return make_bed(2, own_tmp=True, shared=[tmp_path])


def keepers(launch: Launch) -> tuple[set[int], set[int]]:
    """The pids of agents and of supervisors."""
    agents = {launch.agent_pid(rank) for rank in range(RANKS)}
    return agents, {parent_of(agent) for agent in agents}


def orphan(launch: Launch) -> Launch:
    """Launcher, agents and supervisors are killed in one instant: the documented limit."""
    agents, supervisors = keepers(launch)
    launch.kill_launcher()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (*supervisors, *agents):
            os.kill(pid, number)
    # the ranks' main processes go with their agent; their children are what is left
    wait_until(lambda: len(launch.alive()) == RANKS, BOUND, "only the children are left")
    return launch


def uid_of(launch: Launch) -> str:
    return str(json.loads((launch.run_dir / "run.json").read_text())["uid"])


def node_directories(host: Host) -> list[str]:
    return host.run("ls -d /tmp/allranks-0/*/* 2>/dev/null", check=False).stdout.split()


def test_leftovers_are_listed_by_run_and_ended_by_pid(own2: Bed, tmp_path: Path) -> None:
    dead = orphan(begun(own2, tmp_path / "dead"))
    live = begun(own2, tmp_path / "live")
    before = live.alive()
    target = ("--orphans", "--hosts", str(own2.hostfile_names))
    document = words(live, "clean", *target)
    assert document["ended"] is False
    for name, answer in document["nodes"].items():
        found = {(p["uid"], p["live"]) for p in answer["processes"]}
        assert found == {(uid_of(dead), False), (uid_of(live), True)}
        assert len([p for p in answer["processes"] if not p["live"]]) == 2
        (directory,) = answer["directories"]
        assert uid_of(dead) in directory, name
    shown = live.call("clean", *target, "--dry-run").stdout
    assert f"run {uid_of(dead)}" in shown and f"run {uid_of(live)} (not ended: its agent is alive)" in shown
    assert live.call("clean", *target).returncode == 130, "it asks, and gets no answer"
    assert len(dead.alive()) == RANKS
    assert live.call("clean", *target, "--yes").returncode == 0
    assert dead.alive() == [] and sorted(live.alive()) == sorted(before)
    for host in own2.hosts:
        (directory,) = node_directories(host)
        assert uid_of(live) in directory
    assert finish(live)["exit"] == 0
    assert "nothing is left" in live.call("clean", *target).stdout


def test_what_an_agent_that_does_not_answer_has_left_is_ended_with_it(own2: Bed, tmp_path: Path) -> None:
    """Its supervisor is dead, so nothing holds the lease: an agent that only lives is no agent."""
    launch = begun(own2, tmp_path)
    agents, supervisors = keepers(launch)
    launch.kill_launcher()
    for pid in (*supervisors, *agents):
        os.kill(pid, signal.SIGSTOP)
    for pid in supervisors:
        os.kill(pid, signal.SIGKILL)
    target = ("--orphans", "--hosts", str(own2.hostfile_names))
    for answer in words(launch, "clean", *target)["nodes"].values():
        assert not any(p["live"] for p in answer["processes"])
        assert sum("ALLRANKS-BOOT" in p["command"] for p in answer["processes"]) == 1, "the agent"
    assert launch.call("clean", *target, "--yes").returncode == 0
    assert launch.alive() == []
    assert alive(read_processes(agents)) == []
    assert [node_directories(host) for host in own2.hosts] == [[], []]


def test_what_dials_is_an_orphan_where_no_agent_of_its_run_lives(own2: Bed, tmp_path: Path) -> None:
    launch = begun(own2, tmp_path, "--reach", "dial")
    target = ("--orphans", "--hosts", str(own2.hostfile_names))

    def dialling() -> list[bool]:
        answers = words(launch, "clean", *target)["nodes"].values()
        return [p["live"] for answer in answers for p in answer["processes"] if p["node"].startswith("dial_")]

    assert dialling() == [True, True]
    orphan(launch)
    wait_until(lambda: dialling() == [False, False], BOUND, "no agent lives beside what dials")
    assert launch.call("clean", *target, "--yes").returncode == 0
    wait_until(lambda: not any(host.pids() for host in own2.hosts), BOUND, "nothing is left")


def test_run_end_orphans(own2: Bed, tmp_path: Path) -> None:
    dead = orphan(begun(own2, tmp_path / "dead"))
    launch = begun(own2, tmp_path / "next", "--end-orphans")
    assert dead.alive() == []
    assert f"ended {RANKS} processes of earlier runs" in launch.stderr
    assert finish(launch)["exit"] == 0


LISTEN = """
import socket, sys, time
sock = socket.socket()
sock.bind(("", int(sys.argv[1])))
sock.listen()
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_foreign_holders_of_the_master_port(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path)
    holder = bed2.host("h1").popen([PYTHON, "-c", LISTEN, "29511"])
    other = bed2.host("h1").popen([PYTHON, "-c", LISTEN, "29512"])
    for process in (holder, other):
        assert process.stdout is not None and process.stdout.readline() == "up\n"
    target = ("--orphans", "--foreign", "--hosts", str(bed2.hostfile_names), "--master-port", "29511")
    document = words(launch, "clean", *target)
    (found,) = document["nodes"]["h1"]["foreign"]
    assert found["why"] == "holds port 29511" and "29511" in found["command"]
    assert document["nodes"]["h2"]["foreign"] == []
    assert launch.call("clean", *target, "--yes").returncode == 0
    (left,) = [p.command for p in bed2.host("h1").pids() if p.state != "Z" and "sock.listen" in p.command]
    assert "29512" in left
    assert "no other process" in launch.call("clean", *target, "--yes").stdout
    for process in (holder, other):
        process.kill()


def test_a_disk_that_several_hosts_share_is_no_reason_to_remove_a_live_run(bed2: Bed, tmp_path: Path) -> None:
    """Both hosts see one /tmp: the directory of h2's agent looks dead on h1, where that pid means nothing."""
    launch = begun(bed2, tmp_path)
    document = words(launch, "clean", "--orphans", "--hosts", str(bed2.hostfile_names))
    for answer in document["nodes"].values():
        assert not [d for d in answer["directories"] if uid_of(launch) in d]
        assert {p["live"] for p in answer["processes"] if p["uid"] == uid_of(launch)} == {True}
    assert finish(launch)["exit"] == 0


# -- Ctrl-Z ------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(bed2: Bed, tmp_path: Path) -> Terminal:
    found = Terminal(Launch(bed2, tmp_path))
    found.until(lambda: len(list(found.launch.work.glob("up-*"))) == RANKS, "all ranks up")
    return found


def test_ctrl_z_and_stop(terminal: Terminal) -> None:
    terminal.ctrl_z()
    terminal.type("s")
    assert terminal.ends() == 143
    assert terminal.launch.alive() == []


def test_ctrl_z_and_continue(terminal: Terminal) -> None:
    terminal.ctrl_z()
    terminal.type("c")
    before = len(terminal.launch.log(0))
    terminal.until(lambda: len(terminal.launch.log(0)) > before, "it goes on")
    terminal.ctrl_z()
    terminal.type("c")
    (terminal.launch.work / "done").touch()
    assert terminal.ends() == 0


def test_ctrl_z_and_detach(terminal: Terminal) -> None:
    launch = terminal.launch
    terminal.until(lambda: launch.events("first-step"), "the first step")
    terminal.ctrl_z()
    terminal.type("d")
    assert terminal.ends() == 0
    name = launch.run_dir.name
    assert f"{name} goes on: allranks status {name}" in terminal.text
    assert launch.events("controller-attached")
    assert words(launch, "status")["state"] == "running"
    before = len(launch.log(0))
    wait_until(lambda: len(launch.log(0)) > before, BOUND, "it goes on")
    (launch.work / "done").touch()
    wait_until((launch.run_dir / "result.json").exists, BOUND, "the end")
    result = json.loads((launch.run_dir / "result.json").read_text())
    assert result["exit"] == 0
    assert len(launch.events("first-step")) == len(launch.events("attempt-start")) == 1, "nothing is told twice"
    assert len(launch.events("rank-started")) == RANKS
    assert result["timing"]["first_step"] == pytest.approx(launch.events("first-step")[0]["seconds"])
    assert result["timing"]["total"] > result["timing"]["first_step"]
    launch.all_gone()


def test_ctrl_c_in_a_terminal_reaches_only_the_launcher(terminal: Terminal) -> None:
    terminal.type("\x03")
    assert terminal.ends() == 130
    assert terminal.launch.alive() == []


def test_without_a_terminal_a_stop_signal_is_not_heeded(bed2: Bed, tmp_path: Path) -> None:
    launch = Launch(bed2, tmp_path).start(program("v_steps.py"), nproc=2, json_=False).until_running(RANKS)
    wait_until(lambda: any(launch.run_dir.glob("logs/node_*/rank_000.log")), BOUND, "the first output")
    launch.signal(signal.SIGTSTP)
    before = len(launch.log(0))
    wait_until(lambda: len(launch.log(0)) > before, BOUND, "it goes on")
    (launch.work / "done").touch()
    assert launch.process is not None and launch.process.wait(BOUND) == 0
