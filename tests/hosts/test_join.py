"""join: four hosts, no ssh; any order, any fault, one verdict, nothing left behind."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.joining import SECRET, Joined
from tests.hosts.launching import BOUND, PYTHON, program
from tests.hosts.waiting import wait_until

STEPS = program("v_steps.py")
SHORT = ["--lease", "4s", "--init-timeout", "60s"]


@pytest.fixture
def joined(bed4: Bed, tmp_path: Path) -> Joined:
    return Joined(bed4, tmp_path)


def test_nodes_in_any_order_train_together_each_with_its_number_of_ranks(joined: Joined) -> None:
    for rank, nproc in ((2, "1"), (0, "1"), (1, "2")):
        joined.start(joined.bed.hosts[rank], rank, program("v_gloo.py", "sum"), nnodes=3, nproc=nproc)
    assert joined.codes() == {"h1": 0, "h2": 0, "h3": 0}, joined.said("h1")
    assert "node 0 of 3 (h1) listens on port 29400" in joined.said("h1")
    assert "3 of 3 nodes are here (h1, h2, h3)" in joined.said("h1")
    assert joined.said("h3").splitlines()[-1] == "join      done"
    names = sorted(p.name for p in joined.run_dir.iterdir())
    assert {"run.json", "events.jsonl", "logs", "result.json", "status.json", "evidence"} <= set(names)
    (plan,) = _events(joined, "plan")
    assert (plan["world_size"], plan["ranks"]) == (4, {"h1": 1, "h2": 2, "h3": 1})
    logs = {str(p.relative_to(joined.run_dir / "logs")): p for p in joined.run_dir.glob("logs/node_*/rank_*.log")}
    assert sorted(logs) == [
        "node_00_h1/rank_000.log", "node_01_h2/rank_001.log", "node_01_h2/rank_002.log", "node_02_h3/rank_003.log",
    ]  # fmt: skip
    for path in logs.values():
        assert "sum 10\n" in path.read_text()
    joined.nothing_left()


def test_an_exception_on_one_rank_ends_all_with_the_verdict_everywhere(joined: Joined) -> None:
    code = "import os, time\nif os.environ['RANK'] == '2': raise ValueError('out of tune')\ntime.sleep(999)\n"
    (joined.place / "work").mkdir()
    (joined.place / "work" / "odd.py").write_text(code)
    joined.all(["odd.py"])
    assert set(joined.codes().values()) == {1}
    verdict = joined.document("verdict.json")
    assert (verdict["cause"], verdict["where"]["node"], verdict["where"]["rank"]) == (
        "program-exception", "h3", 2,
    )  # fmt: skip
    for host in ("h1", "h2", "h3", "h4"):
        assert "out of tune" in joined.said(host)
    joined.nothing_left()


def test_nodes_that_train_apart_end_with_the_verdict_everywhere(joined: Joined) -> None:
    (joined.place / "work").mkdir()
    (joined.place / "work" / "run.sh").write_text("RANK=0 WORLD_SIZE=1 MASTER_PORT=29501 sleep 999\n")
    joined.all(["bash", "run.sh"], "--launcher", "command", nnodes=2, order=(1, 0))
    assert set(joined.codes().values()) == {1}, joined.said("h1")
    assert joined.document("verdict.json")["cause"] == "nodes-train-apart"
    assert "each node trains on its own: h1 and h2 have each a world of one rank" in joined.said("h2")
    joined.nothing_left()


def test_a_node_that_never_comes_is_named_on_all_others(joined: Joined) -> None:
    joined.all(STEPS, "--init-timeout", "4s", order=(0, 1, 3))
    assert set(joined.codes().values()) == {4}
    for host in ("h1", "h2", "h4"):
        assert "node 2 never joined within 4s. 3 of 4 were here: h1, h2, h4" in joined.said(host)
    assert joined.document("verdict.json")["cause"] == "rendezvous-timeout"
    assert joined.document("result.json")["exit"] == 4
    joined.nothing_left()


@pytest.mark.slow
def test_a_scheduler_names_the_node_that_never_comes(joined: Joined) -> None:
    ips = "\n".join(h.address for h in joined.bed.hosts)
    for rank in (0, 1, 3):
        env = {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": "4", "SKYPILOT_NODE_IPS": ips}
        joined.start(joined.bed.hosts[rank], rank, STEPS, "--init-timeout", "4s", env=env, bare=True)
    assert set(joined.codes().values()) == {4}
    assert f"node 2 ({joined.bed.hosts[2].address}) never joined" in joined.said("h4")
    assert joined.document("verdict.json")["where"]["node"] == joined.bed.hosts[2].address


@pytest.mark.parametrize(
    ("change", "said", "cause", "fix"),
    [
        pytest.param(
            {"nnodes": 3},
            "was started with --nnodes 3, h1 with 4",
            "world-size-mismatch",
            "start all nodes with the same --nnodes",
            marks=pytest.mark.slow,
        ),
        (
            {"program": ["python", "other.py"]},
            "all nodes run the same command",
            "bad-launch-arguments",
            "start the same command on all nodes",
        ),
        pytest.param(
            {"rank": 1},
            "two nodes came as node 1",
            "rank-missing-or-duplicate",
            "give each node its own --node-rank",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nnodes", "command", "rank"],
)
def test_a_contradiction_is_refused_naming_the_nodes(
    joined: Joined, change: dict, said: str, cause: str, fix: str
) -> None:
    hosts = joined.bed.hosts
    joined.start(hosts[0], 0, STEPS).start(hosts[1], 1, STEPS)
    joined.until("h1", "2 of 4 nodes are here")
    joined.start(hosts[2], change.get("rank", 2), change.get("program", STEPS), nnodes=change.get("nnodes", 4))
    assert set(joined.codes().values()) == {2}
    for host in ("h1", "h2", "h3"):
        assert said in joined.said(host), joined.said(host)
    assert "h3 (" in joined.said("h1")
    verdict = joined.document("verdict.json")
    assert (verdict["cause"], verdict["remedy"]) == (cause, fix)
    joined.nothing_left()


def test_other_code_on_one_node_is_refused(joined: Joined, tmp_path: Path) -> None:
    for host in joined.bed.hosts[:2]:
        (tmp_path / host.name).mkdir()
        (tmp_path / host.name / "train.py").write_text(f"print({host.name!r})\n")
        joined.start(host, host.index - 1, ["train.py"], "--workdir", str(tmp_path / host.name), nnodes=2)
    assert set(joined.codes().values()) == {2}
    assert "node 1, h2 (" in joined.said("h1") and "has another script" in joined.said("h2")


def test_a_wrong_secret_is_refused_logged_once_and_harmless(joined: Joined) -> None:
    hosts = joined.bed.hosts
    for rank in (0, 1, 2):
        joined.start(hosts[rank], rank, STEPS)
    joined.until("h1", "3 of 4 nodes are here")
    joined.start(hosts[3], 3, STEPS, secret="another secret, long enough")
    assert joined.codes("h4") == {"h4": 2}
    assert "Set the same ALLRANKS_JOIN_SECRET everywhere" in joined.said("h4")
    joined.start(hosts[3], 3, STEPS, secret="another secret, long enough")
    assert joined.codes("h4") == {"h4": 2}
    joined.start(hosts[3], 3, STEPS)
    joined.up()
    joined.end_well()
    assert joined.said("h1").count("was refused") == 1


@pytest.mark.slow
def test_a_wrong_secret_is_in_the_verdict_where_no_right_one_came(joined: Joined) -> None:
    joined.start(joined.bed.hosts[0], 0, STEPS, "--init-timeout", "12s", nnodes=2)
    joined.until("h1", "1 of 2 nodes are here")
    joined.start(joined.bed.hosts[1], 1, STEPS, secret="another secret, long enough", nnodes=2)
    assert joined.codes() == {"h1": 4, "h2": 2}
    verdict = joined.document("verdict.json")
    assert verdict["remedy"].startswith("set the same ALLRANKS_JOIN_SECRET on all nodes")
    assert f"a connection from {joined.bed.hosts[1].address} was refused" in verdict["evidence"][0]


def test_nodes_with_one_home_need_no_secret_and_others_are_told_what_to_copy(joined: Joined, tmp_path: Path) -> None:
    shared, other = {"XDG_CONFIG_HOME": str(tmp_path / "home")}, {"XDG_CONFIG_HOME": str(tmp_path / "other")}
    hosts = joined.bed.hosts
    joined.start(hosts[0], 0, STEPS, secret=None, nnodes=2, env=shared)
    joined.until("h1", "the secret is this user's own, in ")
    joined.start(hosts[2], 1, STEPS, secret=None, nnodes=2, env=other)
    assert joined.codes("h3") == {"h3": 2}
    assert f"hint: scp h1:{tmp_path}/other/allranks/join-secret" in joined.said("h3")
    joined.start(hosts[1], 1, STEPS, secret=None, nnodes=2, env=shared)
    joined.end_well("h1", "h2")


@pytest.mark.slow
def test_a_host_that_loses_its_power_ends_all(joined: Joined) -> None:
    joined.all(STEPS, *SHORT).up()
    joined.bed.hosts[2].power_off()
    assert set(joined.codes("h1", "h2", "h4").values()) == {4}
    assert joined.document("verdict.json")["where"]["node"] == "h3"
    assert "h3" in joined.said("h4").splitlines()[-1]
    joined.nothing_left()


def test_without_the_coordinator_all_end_within_the_lease(joined: Joined) -> None:
    joined.all(STEPS, *SHORT).up()
    joined.bed.hosts[0].power_off()
    assert set(joined.codes("h2", "h3", "h4").values()) == {4}
    assert "nothing was heard from the coordinator (h1:29400) for the lease of 4 s" in joined.said("h2")
    joined.nothing_left()


@pytest.mark.slow
def test_a_joined_node_that_is_killed_ends_all(joined: Joined) -> None:
    joined.all(STEPS, "--lease", "300s").up()  # nobody waits for it
    joined.kill(joined.bed.hosts[1])
    assert set(joined.codes("h1", "h3", "h4").values()) == {4}
    verdict = joined.document("verdict.json")
    assert verdict["where"]["node"] == "h2"
    assert verdict["cause"] == "agent-killed" and "`allranks join` ended on h2: its host closed" in verdict["message"]
    joined.nothing_left()


@pytest.mark.slow
def test_a_join_that_is_killed_and_started_again_takes_part_in_the_retry(joined: Joined) -> None:
    """Its place was waited for in vain: who came was refused."""
    joined.all(STEPS, "--lease", "60s", "--retries", "1").up()
    host = joined.bed.hosts[1]
    joined.kill(host)
    joined.codes("h2")
    wait_until(lambda: _events(joined, "node-awaited"), BOUND, "h2 is waited for")
    assert "`allranks join` has ended on h2" in joined.said("h1")
    joined.start(joined.bed.hosts[2], 1, STEPS)  # not this host
    assert joined.codes("h3")["h3"] == 2
    joined.start(host, 1, STEPS, "--lease", "60s", "--retries", "1")
    wait_until(lambda: len(_events(joined, "rank-started")) == 8, BOUND, "all ranks are there again")
    joined.end_well("h1", "h2", "h4")
    joined.nothing_left()


@pytest.mark.slow
def test_a_link_that_breaks_for_less_than_the_lease_costs_nothing(joined: Joined) -> None:
    joined.all(STEPS, "--lease", "60s").up()
    host = joined.bed.hosts[3]
    host.link_down()
    wait_until(lambda: _events(joined, "node-silent"), BOUND, "h4 is silent")
    host.link_up()
    wait_until(lambda: _events(joined, "node-back"), BOUND, "h4 is back")
    joined.end_well()
    (log,) = (joined.run_dir / "logs").glob("node_03_h4/rank_003.log")
    lines = [line for line in log.read_text().splitlines() if " step " in line]
    assert [int(line.split()[-1]) for line in lines] == list(range(1, len(lines) + 1))


def _events(joined: Joined, name: str) -> list[dict]:
    lines = (joined.run_dir / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == name]


def test_sigterm_on_several_nodes_gives_every_rank_time_to_save(joined: Joined) -> None:
    """A scheduler tells every node: that is not the second signal, which would wait for nothing."""
    code = (
        "import os, signal, sys, time\n"
        "def save(*_):\n    time.sleep(1)\n    open('saved-' + os.environ['RANK'], 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('up-' + os.environ['RANK'], 'w').close()\ntime.sleep(999)\n"
    )
    work = joined.place / "work"
    work.mkdir()
    (work / "saves.py").write_text(code)
    joined.all(["saves.py"]).up()
    for host in joined.bed.hosts[1:]:
        joined.kill(host, signal.SIGTERM)
    assert set(joined.codes().values()) == {143}
    assert sorted(p.name for p in work.glob("saved-*")) == [f"saved-{r}" for r in range(4)]
    joined.nothing_left()


@pytest.mark.slow
def test_signals_for_the_ranks_reach_each_once(joined: Joined) -> None:
    """SIGUSR1 to the task of every node, as `srun allranks join` gets it, then SIGUSR2 to one node alone."""
    joined.all(program("v_signals.py"))
    joined.up()

    def logs() -> str:
        return "".join(path.read_text() for path in joined.run_dir.glob("logs/node_*/rank_*.log"))

    for host in joined.bed.hosts:
        joined.kill(host, signal.SIGUSR1)
    wait_until(lambda: logs().count("GOT SIGUSR1") >= 4, BOUND, "SIGUSR1 at four ranks")
    joined.kill(joined.bed.hosts[2], signal.SIGUSR2)
    wait_until(lambda: logs().count("GOT SIGUSR2") >= 4, BOUND, "SIGUSR2 at four ranks")
    (joined.place / "work" / "go").touch()
    assert set(joined.codes().values()) == {0}, joined.said("h1")
    assert logs().count('COUNTED {"SIGUSR1": 1, "SIGUSR2": 1}') == 4, logs()
    joined.nothing_left()


@pytest.mark.parametrize(("number", "code", "name"), [
    pytest.param(signal.SIGTERM, 143, "SIGTERM", marks=pytest.mark.slow),
    pytest.param(signal.SIGHUP, 143, "SIGHUP", marks=pytest.mark.slow),
    (signal.SIGINT, 130, "Ctrl-C"),
])  # fmt: skip
def test_a_signal_to_node_0_while_it_waits_ends_the_others_with_the_reason(
    joined: Joined, number: int, code: int, name: str
) -> None:
    for rank in (0, 1):
        joined.start(joined.bed.hosts[rank], rank, STEPS, nnodes=3)
    joined.until("h2", "2 of 3 nodes are here")
    joined.kill(joined.bed.hosts[0], number)
    assert set(joined.codes().values()) == {code}
    for host in ("h1", "h2"):
        assert f"node 0 (h1) was ended by {name} while it waited for node 2" in joined.said(host)
    assert joined.document("result.json")["exit"] == code
    joined.nothing_left()


# What is wrong, where node 0 is said to be, its port, and the verdict.
UNREACHED = [
    ("refused", "h1", 29402, "master-unreachable", "refused: nothing listens there"),
    ("filtered", "h1", 29400, "port-blocked", "a firewall drops it"),
    ("rejected", "h1", 29401, "master-unreachable", "a firewall rejects it"),
    ("resolution", "no-such-host", 29400, "name-resolution", "the name cannot be resolved"),
    ("no-route", "192.0.2.7", 29400, "master-unreachable", "unreachable"),
    ("switched-off", "h4", 29400, "master-unreachable", "no route to host"),
    ("own-loopback", "h3", 29400, "hostname-resolves-to-loopback", "127.0.1.1 here, which is this node itself"),
]


def test_a_node_that_cannot_reach_node_0_says_why(bed4: Bed, tmp_path: Path) -> None:
    bed4.hosts[0].drop_port(29400)
    bed4.hosts[0].reject_port(29401)
    bed4.hosts[3].link_down()
    bed4.hosts[2].own_name_to("127.0.1.1")
    made = {name: Joined(bed4, tmp_path / name) for name, *_ in UNREACHED}
    host = bed4.hosts[2]
    host.run(["ip", "neigh", "flush", "all"])  # to a neighbour that was there a moment ago packets just vanish
    for name, master, port, _, _ in UNREACHED:
        made[name].place.mkdir()
        options = ("--init-timeout", "5s", "--json", "--port", str(port))
        made[name].start(host, 1, STEPS, *options, master=master)
    for name, master, port, cause, said in UNREACHED:
        assert made[name].codes() == {"h3": 4}
        document = json.loads(made[name].said("h3").splitlines()[-1])
        verdict = document["verdict"]
        assert (verdict["cause"], document["exit"]) == (cause, 4), json.dumps(verdict)
        assert verdict["message"].startswith(f"h3 cannot reach node 0 at {master} port {port}: ")
        assert said in verdict["message"] and verdict["remedy"] and verdict["evidence"]
        assert verdict["where"] == {"node": "h3", "peer": master, "port": port}


@pytest.mark.slow
def test_check_and_tests_need_no_ssh(joined: Joined) -> None:
    joined.all([], "--check", "--level", "quick")
    assert set(joined.codes().values()) == {0}, joined.said("h1")
    assert "on 4 nodes" in joined.said("h1")
    joined.all([], "--test", "sync", "--size", "64KB")
    assert set(joined.codes().values()) == {0}, joined.said("h1")
    assert "PASS" in joined.said("h1") and joined.said("h2").splitlines()[-1] == "join      all tests passed"
    joined.nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["staged", "pairs"])
def test_groups_of_joined_nodes_are_tested_too(joined: Joined, suite: str) -> None:
    """Groups have another first node than node 0, and nodes that try one another."""
    joined.all([], "--test", suite, "--size", "64KB")
    assert set(joined.codes().values()) == {0}, joined.said("h1")
    assert joined.said("h2").splitlines()[-1] == "join      all tests passed"
    joined.nothing_left()


def test_the_secret_is_seen_nowhere(joined: Joined) -> None:
    joined.all(STEPS).up()
    for host in joined.bed.hosts:
        for process in host.pids():
            assert SECRET not in process.command
            if "join" not in process.command:
                assert SECRET not in str(process.environ), process.command
    joined.end_well()
    texts = [p.read_text(errors="replace") for p in joined.place.rglob("*") if p.is_file()]
    assert len(texts) > 10 and not any(SECRET in text for text in texts)


# -- exec and fetch --------------------------------------------------------------------------------------


def on_node_0(joined: Joined, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of allranks in another terminal of node 0."""
    command = [PYTHON, "-m", "allranks", words[0], "--runs-dir", str(joined.runs), *words[1:]]
    return joined.bed.hosts[0].run(command, check=False, timeout=BOUND, cwd=str(joined.place))


def test_exec_and_fetch_reach_the_nodes_that_allow_it_and_no_other(joined: Joined) -> None:
    """h2 consents, h3 does not. The run goes on meanwhile, and ends as ever."""
    hosts = joined.bed.hosts
    for rank, options in ((0, ()), (1, ("--allow-exec",)), (2, ())):
        joined.start(hosts[rank], rank, STEPS, *options, nnodes=3)
    joined.up(3)
    name = joined.run_dir.name
    done = on_node_0(joined, "exec", "--run", name, "--json", 'echo "on $(hostname)"; exit 3')
    report = json.loads(done.stdout)
    nodes = {node["node"]: node for node in report["nodes"]}
    assert done.returncode == 4
    assert (nodes["h1"]["output"], nodes["h1"]["code"]) == ("on h1\n", 3)
    assert (nodes["h2"]["output"], nodes["h2"]["code"]) == ("on h2\n", 3)
    assert (nodes["h3"]["output"], nodes["h3"]["code"]) == ("", None)
    assert nodes["h3"]["error"] == "h3: it joined without --allow-exec"

    seen = json.loads(on_node_0(joined, "stacks", "--json", name).stdout)
    assert [(rank["rank"], rank["node"]) for rank in seen["ranks"]] == [(0, "h1"), (1, "h2"), (2, "h3")], seen
    assert "errors" not in seen and all(rank["step"] for rank in seen["ranks"]), "that needs no --allow-exec"
    error = json.loads(on_node_0(joined, "profile", "--json", "--rank", "2", name).stdout)["error"]
    words = "rank 2 on h3 was not profiled: its runner could not be asked: it has no process group"
    assert error.partition("\n")[0] == words, "the program has no torch, and the rank was asked"

    assert "--allow-exec: who started node 0 may run any command here" in joined.said("h2")
    assert joined.said("h2").count("node 0 begins a command or a fetch here") == 1
    assert "--allow-exec" not in joined.said("h3")
    done = on_node_0(joined, "fetch", "--output", str(joined.place / "to"), name)
    assert done.returncode == 4, done.stderr
    assert "h3: it joined without --allow-exec\n  hint: start `allranks join` there with --allow-exec" in done.stderr
    (metrics,) = (joined.place / "to").rglob("rank_01_metrics.jsonl")
    assert metrics.parent.name == "node_01_h2" and b'"step": 1' in metrics.read_bytes()

    joined.end_well()
    done = on_node_0(joined, "exec", "--run", name, "hostname")
    assert (done.returncode, done.stdout) == (2, "")
    assert "have left: they joined, and `allranks join` ends on each of them with the run" in done.stderr
    joined.nothing_left()


def pair_that_allows_exec(joined: Joined, lease: str) -> list[str]:
    """Start two nodes; gives the words of an exec there."""
    for rank in (0, 1):
        joined.start(joined.bed.hosts[rank], rank, STEPS, "--allow-exec", "--lease", lease, nnodes=2)
    joined.up(2)
    return [PYTHON, "-m", "allranks", "exec", "--runs-dir", str(joined.runs), "--run", joined.run_dir.name]


@pytest.mark.slow
def test_a_command_ends_with_exec_and_nothing_of_it_holds_up_the_run(joined: Joined) -> None:
    """exec is stopped while a node prints without end, for longer than the lease, and is then killed."""
    hosts, words = joined.bed.hosts, pair_that_allows_exec(joined, "6s")
    prints = "yes | while head -c 100000; do sleep 0.1; done"  # 1 MB a second: without a controller its disk has it
    process = hosts[0].popen([*words, prints], cwd=str(joined.place))
    printers = lambda: [p for p in hosts[1].pids() if p.command == "yes"]  # noqa: E731  (asked again and again)
    wait_until(printers, BOUND, "yes runs on h2")
    (exec_pid,) = (p.pid for p in hosts[0].pids() if " exec " in p.command and "allranks" in p.command)
    os.kill(exec_pid, signal.SIGSTOP)
    time.sleep(15)  # more than two leases of the run
    assert printers() and _events(joined, "node-silent") == []
    os.kill(exec_pid, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)  # nsenter stops with what it has started (nsenter(1))
    process.wait(BOUND)
    wait_until(lambda: not printers(), BOUND, "yes is ended")
    joined.end_well()
    joined.nothing_left()


@pytest.mark.slow
def test_a_command_ends_with_the_join_that_was_killed(joined: Joined) -> None:
    hosts, words = joined.bed.hosts, pair_that_allows_exec(joined, "4s")
    process = hosts[0].popen([*words, '[ "$(hostname)" = h1 ] || sleep 4711'], cwd=str(joined.place))
    wait_until(lambda: any("sleep 4711" in p.command for p in hosts[1].pids()), BOUND, "the command runs on h2")
    joined.kill(hosts[1])
    assert process.wait(BOUND) == 4
    assert set(joined.codes("h1").values()) == {4}
    joined.nothing_left()
