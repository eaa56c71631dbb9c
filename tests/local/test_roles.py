"""Runs of several roles: a server and a trainer, on virtual nodes of this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

SERVER = """
import http.server, os, sys, threading, time
began = time.time()
asked = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health":
            asked.set()
        late = time.time() - began < float(os.environ.get("LATE", "0"))
        self.send_response(503 if late else 200)
        self.end_headers()
        self.wfile.write(b"answer")
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler)
print("serving on", sys.argv[1], flush=True)
def end():
    if "ASKED" not in os.environ:
        asked.wait()  # it has been ready before, and the run has heard so
    time.sleep(float(os.environ["LIVES"]))
    print("out of memory" if os.environ["CODE"] != "0" else "bye", flush=True)
    os._exit(int(os.environ["CODE"]))
if "LIVES" in os.environ and not (os.environ["ALLRANKS_ATTEMPT"] != "0" and "ONCE" in os.environ):
    threading.Thread(target=end).start()
server.serve_forever()
"""
TRAINER = """
import os, sys, time, urllib.request
for step in range(1, int(os.environ.get("STEPS", "3")) + 1):
    while True:
        try:
            answer = urllib.request.urlopen("http://" + sys.argv[1]).read().decode()
            break
        except OSError:
            if "PATIENT" not in os.environ:
                raise
            time.sleep(0.1)
    print("step", step, answer, flush=True)
    time.sleep(0.1)
print("world", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["ROLE_NAME"], flush=True)
"""
ROLES = """
[roles.rollout]
command = "python serve.py {rollout.port.http}"
nodes = 1
ready = "http://{address}:{rollout.port.http}/health"
SERVER
[roles.trainer]
command = "train.py {rollout.address}:{rollout.port.http}"
nodes = 2
nproc = 1
after = ["rollout"]
"""


class RolesRun(LocalRun):
    """One `allranks run --local 3 --roles roles.toml`."""

    def __init__(
        self,
        place: Path,
        *options: str,
        server: str = "",
        roles: str = ROLES,
        programs: tuple[str, str] = (SERVER, TRAINER),
        has_no_check: bool = True,
        **environment: str,
    ) -> None:
        files = dict(zip(("serve.py", "train.py"), programs, strict=True))
        files["roles.toml"] = roles.replace("SERVER", server)
        words = ["--roles", "roles.toml", *(["--no-check"] if has_no_check else []), *options]
        self.begin(place, files, 3, words, environment)

    def allranks(self, *words: str) -> str:
        """Standard output of another command."""
        done = self.call(*words)
        assert done.returncode == 0, done
        return done.stdout

    def left(self) -> list[str]:
        """Processes of this run that still live."""
        found = subprocess.run(["pgrep", "-f", str(self.work)], capture_output=True, text=True, check=False)
        return found.stdout.split()


def outcomes(result: dict[str, Any]) -> dict[str, str]:
    return {name: role["outcome"] for name, role in result["roles"].items()}


def test_the_trainer_starts_once_the_server_is_ready_and_its_success_ends_the_run(tmp_path: Path) -> None:
    run = RolesRun(tmp_path, LATE="1.5")
    result = run.result()
    assert (result["exit"], result["verdict"]) == (0, None), run.stderr
    assert outcomes(result) == {"rollout": "stopped", "trainer": "done"}
    ready = run.events("role-ready")
    assert [event.get("role", "trainer") for event in ready] == ["rollout", "trainer"]
    assert ready[0]["answer"] == "200 OK" and ready[0]["seconds"] >= 1.4
    starts = {event["node"]: event["t"] for event in run.events("rank-started")}
    assert min(starts["local1"], starts["local2"]) > ready[0]["t"]
    assert "[trainer local1 0] step 1 answer" in run.stderr or "[trainer local2 1" in run.stderr
    assert "[rollout local0 0] serving on" in run.stderr
    logs = run.allranks("logs", "--no-fold")
    assert "[trainer local2 1] world 1 2 trainer" in logs and "[rollout local0 0] serving on" in logs
    assert "serving" not in run.allranks("logs", "--role", "trainer")
    status = json.loads((run.directory / "status.json").read_text())
    assert [(node["name"], node["role"]) for node in status["nodes"]] == [
        ("local1", "trainer"), ("local2", "trainer"), ("local0", "rollout"),
    ]  # fmt: skip
    shown = run.allranks("status")
    assert "\ntrainer local1  " in shown and "\nrollout local0  " in shown, shown
    top = run.allranks("top", "--once")
    assert re.search(r"^trainer 0 ✓ ✓ [×✓]$", top, re.M), top
    assert re.search(r"^rollout local0 +ended", top, re.M) and " rollout: ready after " in top, top
    assert "rollout 1, trainer 2" in run.allranks("ps")
    [listed] = run.ask("ps")["runs"]
    assert listed["roles"] == {"rollout": 1, "trainer": 2}


@pytest.mark.parametrize(
    ("code", "cause", "says"),
    [
        ("3", "program-exception", "rollout: rank 0 on local0 ended with code 3"),
        ("0", "role-ended", "rollout: rank 0 on local0 ended with code 0, and rollout was to run as long as"),
    ],
)
def test_the_end_of_a_server_is_its_own_and_not_the_trainers(tmp_path: Path, code: str, cause: str, says: str) -> None:
    """The trainer sees a refused connection, which would have been the verdict."""
    run = RolesRun(tmp_path, LIVES="1", CODE=code, STEPS="600")
    result = run.result()
    verdict = result["verdict"]
    run.allranks("report")
    page = (run.directory / "report.html").read_text()
    assert '<th scope="row">rollout</th><td class="text">local0</td>' in page and "role rollout" in page
    assert page.count("<title>rank 0") >= 2 and "trainer: ending: role-failed" in page  # a row for each of the two
    assert "rollout rank 0 on local0" in page
    assert verdict["message"].startswith(says), verdict
    assert (result["exit"], verdict["cause"], verdict["where"]["role"]) == (1, cause, "rollout"), verdict
    assert "allranks logs --role rollout" in verdict["remedy"]
    assert outcomes(result)["rollout"] == "failed"


def test_a_server_that_never_gets_ready_is_named_with_its_last_answer(tmp_path: Path) -> None:
    for limit in ("2s", "30s"):  # on a loaded machine a server may not listen within the first
        place = tmp_path / limit
        place.mkdir()
        run = RolesRun(place, server=f'ready_timeout = "{limit}"', LATE="600")
        result = run.result()
        verdict = result["verdict"]
        assert (result["exit"], verdict["cause"]) == (4, "role-not-ready"), verdict
        assert f"/health was not ready within {limit}" in verdict["message"], verdict
        if "refused" not in verdict["message"]:
            break
    assert verdict["message"].endswith("It last answered: 503 Service Unavailable"), verdict
    assert any("serving on" in line for line in verdict["evidence"]), verdict
    assert run.events("rank-started")[0]["node"] == "local0" and len(run.events("rank-started")) == 1


def test_a_server_is_restarted_while_the_trainer_goes_on(tmp_path: Path) -> None:
    server = 'on_failure = "restart"\nretries = 2'
    run = RolesRun(tmp_path, server=server, LIVES="1", CODE="3", ONCE="1", PATIENT="1", STEPS="40")
    result = run.result()
    assert (result["exit"], result["verdict"]) == (0, None), run.stderr
    assert [attempt["outcome"] for attempt in result["roles"]["rollout"]["attempts"]] == ["failed", "stopped"]
    assert [attempt["outcome"] for attempt in result["roles"]["trainer"]["attempts"]] == ["done"]
    assert len([event for event in run.events("role-ready") if event.get("role") == "rollout"]) == 2
    ledger = result["roles"]["rollout"]["time_ledger"]
    assert ledger["restart"] > 0 and ledger["unaccounted"] < 0.1 * ledger["wall"], ledger


def test_a_role_whose_failure_is_ignored_ends_nothing(tmp_path: Path) -> None:
    roles = ROLES.replace('"http://{address}:{rollout.port.http}/health"', '"output:^serving on [0-9]+$"')
    roles = roles.replace("train.py {rollout.address}:{rollout.port.http}", "idle.py")
    run = RolesRun(tmp_path, server='on_failure = "ignore"', roles=roles, LIVES="2.5", CODE="3", ASKED="1")
    (run.work / "idle.py").write_text("import time\ntime.sleep(4)\nprint('done')\n")
    result = run.result()
    assert (result["exit"], result["verdict"]) == (0, None), run.stderr
    assert outcomes(result) == {"rollout": "failed", "trainer": "done"}
    (ready, *_) = run.events("role-ready")
    assert ready["test"] == "output:^serving on [0-9]+$"


@pytest.mark.skipif(not Path(sys.executable).with_name("py-spy").exists(), reason="py-spy is not installed")
def test_stacks_show_every_role(tmp_path: Path) -> None:
    """Neither role has a process group of torch: py-spy reads them. Native frames are those of the C library."""
    run = RolesRun(tmp_path, programs=(SERVER, "import time\ndef wait():\n    time.sleep(6000)\nwait()\n"))
    run.until("role-ready", 2)
    seen = run.ask("stacks")
    ranks = {(rank["role"], rank["rank"]): rank for rank in seen["ranks"]}
    assert set(ranks) == {("rollout", 0), ("trainer", 0), ("trainer", 1)}, seen
    assert [ranks["trainer", rank]["stack"][0] for rank in (0, 1)] == ["train.py:3 in wait"] * 2
    native = run.ask("stacks", "--native", "--rank", "0")
    assert {rank["rank"] for rank in native["ranks"]} == {0}
    assert all(any("libc" in frame for frame in rank["stack"]) for rank in native["ranks"]), native
    assert "trainer: sleeping (train.py:3 in wait)" in run.allranks("stacks")


def test_ctrl_c_ends_all_roles(tmp_path: Path) -> None:
    run = RolesRun(tmp_path, STEPS="6000")
    run.until("role-ready", 2)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.process.wait(BOUND) == 130
    assert outcomes(run.result()) == {"rollout": "stopped", "trainer": "stopped"}
    assert run.left() == []


def test_a_detached_run_is_followed_and_stopped(tmp_path: Path) -> None:
    run = RolesRun(tmp_path, "--detach", STEPS="6000")
    assert run.process.wait(BOUND) == 0, run.stderr
    with (tmp_path / "attached").open("w") as shown:
        followed = forked.popen(["attach"], env=run.environment, cwd=run.work, stdout=shown, stderr=shown)
    run.until("role-ready", 2)
    wait_until(lambda: "[trainer local" in (tmp_path / "attached").read_text(), BOUND, "a line of the trainer")
    refused = run.ask("attach", "--take-over")
    assert refused["exit"] == 2 and "several roles, and another controller cannot take" in refused["error"]
    assert "Nothing of it is left" in run.allranks("stop")
    assert followed.wait(BOUND) == 143
    ended = outcomes(json.loads((run.directory / "result.json").read_text()))
    assert ended == {"rollout": "stopped", "trainer": "stopped"} and run.left() == []


def test_check_looks_at_the_nodes_of_each_role_with_its_own_command(tmp_path: Path) -> None:
    (tmp_path / "allranks.toml").write_text(ROLES.replace("SERVER", ""))
    words = ("check", "--local", "3", "--json", "--only", "script")
    environment = {**os.environ, "ALLRANKS_RUNS_DIR": str(tmp_path / "runs")}
    done = forked.call(words, env=environment, cwd=tmp_path, timeout=BOUND)
    server, trainer = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, server["role"], trainer["role"]) == (3, "rollout", "trainer")
    assert [finding["where"].get("node") for finding in server["findings"]] == ["local0"], server
    assert not trainer["ok"] and "train.py" in trainer["findings"][0]["message"], trainer


def test_a_port_that_another_program_has_is_refused_before_the_start(tmp_path: Path) -> None:
    """The role was ready at once, and its own program failed a moment later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready = f"port:{listener.getsockname()[1]}"
        run = RolesRun(tmp_path, roles=ROLES.replace("http://{address}:{rollout.port.http}/health", ready))
        result = run.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"], verdict["where"]["node"]) == (4, "port-in-use", "local0"), verdict
    assert verdict["message"].startswith(f"rollout: on local0 {ready} is answered before rollout starts"), verdict
    assert run.events("rank-started") == []


def test_a_command_that_is_not_there_is_named_before_the_start(tmp_path: Path) -> None:
    run = RolesRun(tmp_path, roles=ROLES.replace("python serve.py", "no-such-server"), has_no_check=False)
    result = run.result()
    assert (result["exit"], result["verdict"]["where"]["role"]) == (3, "rollout"), result
    assert "no-such-server" in result["verdict"]["message"] and run.events("rank-started") == []


SYNCING_SERVER = """
import http.server, sys, threading, time
import torch, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), 2, is_master=True, wait_for_workers=False)
def join():
    dist.init_process_group("gloo", store=store, rank=1, world_size=2)
def generate():
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/sync":
            dist.broadcast(torch.zeros(4), src=0)
        if self.path == "/generate":
            generate()
        for token in range(30 if self.path == "/work" else 0):
            print("token", token, flush=True)
            time.sleep(0.5)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *words):
        pass
threading.Thread(target=join, daemon=True).start()
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
SYNCING_TRAINER = """
import sys, urllib.request
import torch.distributed as dist
server, port, path = sys.argv[1:]
store = dist.TCPStore(server.split(":")[0], int(port), 2, is_master=False)
dist.init_process_group("gloo", store=store, rank=0, world_size=2)
urllib.request.urlopen("http://" + server + "/" + path).read()
"""
SYNCING = """
[roles.rollout]
command = "python serve.py {rollout.port.http} {rollout.port.store}"
nodes = 1
ready = "port:{rollout.port.http}"
[roles.trainer]
command = "train.py {rollout.address}:{rollout.port.http} {rollout.port.store} PATH"
nodes = 1
after = ["rollout"]
"""


def syncing(place: Path, path: str) -> tuple[RolesRun, dict[str, Any]]:
    """A trainer and a server that share a process group, as for weights, what the trainer asks for, and the result."""
    programs = (SYNCING_SERVER, SYNCING_TRAINER)
    run = RolesRun(place, "--hang-timeout", "6s", roles=SYNCING.replace("PATH", path), programs=programs)
    return run, run.result()


@pytest.mark.parametrize(
    ("path", "cause", "says"),
    [
        ("sync", "roles-deadlock", "rank 0 of rollout on local0 waits in broadcast at serve.py:12 in "),
        ("generate", "straggler", "rank 0 of rollout on local0 stands at serve.py:8 in generate"),
    ],
)
def test_a_hang_between_roles_names_who_waits_for_whom(tmp_path: Path, path: str, cause: str, says: str) -> None:
    """Of the trainer alone it was a rank that reads a socket, and of one without collectives never a hang."""
    run, result = syncing(tmp_path, path)
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"]) == (5, cause), run.stderr
    assert says in verdict["message"], verdict
    assert "rank 0 of trainer on local1 waits for an answer of rollout at train.py:7" in verdict["message"], verdict
    assert verdict["where"] == {"role": "rollout", "node": "local0", "rank": 0}
    assert verdict["evidence"][0].startswith("rollout rank 0: "), verdict


def test_a_trainer_that_waits_for_a_server_at_work_does_not_hang(tmp_path: Path) -> None:
    run, result = syncing(tmp_path, "work")
    assert (result["exit"], result["verdict"], result["findings"]) == (0, None, []), run.stderr
    notes = [event["message"] for event in run.events("note")]
    assert any("rank 0 of rollout on local0 is at work: no hang" in note for note in notes), notes
