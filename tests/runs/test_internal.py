"""A crash of allranks itself ends the ranks and is a verdict: real runs in which a part of allranks is broken."""

import json
import time
from pathlib import Path

import pytest
from tests.gang.test_foreign_data import call, result_of, run_of
from tests.hosts.waiting import wait_until

pytestmark = pytest.mark.processes

# An event of the gang raises where a rank runs: as often as `times` says.
EVENT = """
import allranks.gang.gang as m
handle, times = m.Gang.handle, %s

def boom(self, *given):
    if times and any(r.pid for n in self.roster.nodes.values() for r in n.ranks.values()):
        times.pop()
        raise KeyError("lost")
    return handle(self, *given)

m.Gang.handle = boom
"""
# Parts of allranks that are broken on purpose, and whether the ranks had begun by then.
BROKEN = {
    "the state machine, once": EVENT % "[1]",
    "the state machine, always": EVENT % "[1] * 100_000",
    "the judgement": "import allranks.gang.session as s\n"
    "def boom(self, gang): raise TypeError('no judge')\ns.Session._judge = boom",
    "the result": "import allranks.gang.session as s\n"
    "def boom(self, code): raise AttributeError('nothing')\ns.Session._result = boom",
    "the status": "import allranks.gang.controller as c\n"
    "def boom(self): raise ValueError('no status')\nc.Controller.status = boom",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_crash_of_allranks_ends_the_ranks_and_says_where_to_report_it(what: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, time\nopen('pid', 'a').write(f'{os.getpid()}\\n')\n"
        "time.sleep(600 if 'judge' not in sys.argv[1] and 'result' not in sys.argv[1] else 0)\n"
    )
    done = call(tmp_path, "run", "--local", "1", "--retries", "3", "--lease", "60s", "--json", "--", "train.py", what,
                start=BROKEN[what])  # fmt: skip
    assert done.returncode == 70, done.stdout + done.stderr
    result, document = result_of(tmp_path), json.loads(done.stdout)
    assert result["exit"] == document["exit"] == 70
    verdict = result["verdict"]
    assert (verdict["cause"], verdict["where"], verdict["status"]) == ("internal-error", {}, "fail")
    assert verdict["message"].startswith("allranks itself failed: ")
    assert "report it to the maintainers" in verdict["remedy"]
    assert "Traceback" in (run_of(tmp_path) / "evidence" / "internal-error.txt").read_text()
    assert "Traceback" not in done.stderr
    events = [json.loads(line) for line in (run_of(tmp_path) / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events].count("attempt-start") == 1 and events[-1]["event"] == "run-end"
    for pid in (tmp_path / "pid").read_text().split() if (tmp_path / "pid").exists() else ():
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 60.0, "the ranks are gone")
    left = call(tmp_path, "status", "--json")
    assert json.loads(left.stdout)["state"] == "failed"


# The code of a node travels: a module of it is broken on the way.
BROKEN_COPY = """
from pathlib import Path
import allranks.gang.agent_archive as b
read, name, line, more = Path.read_bytes, %r, %r, %r

def changed(self):
    data = read(self)
    if self.name == name and self.parent.name == 'agent':
        assert data.count(line) == 1
        data = data.replace(line, line + more)
    return data

Path.read_bytes = changed
b.archive_loader.ENTRY = 'the byte code of no Python'
"""
# Where the parts of a node are broken: from the moment at which the rank has written who it is.
BEGUN = b"__import__('os').path.exists(PIDS)"
AGENT = ("agent.py", b"        self._supervisor.look()\n", b"        1 / (not " + BEGUN + b")\n")
SUPERVISOR = ("supervisor.py", b"        statuses = reap_children()\n")
BROKEN_ON_NODES = {
    "agent": AGENT,
    "supervisor, once": (
        *SUPERVISOR,
        b"        if not hasattr(self, 'broken') and " + BEGUN + b":\n"
        b"            self.broken = True\n"
        b"            1 / 0\n",
    ),
    "supervisor, always": (*SUPERVISOR, b"        1 / (not " + BEGUN + b")\n"),
}
# Writes down the pids of the rank, its agent and its supervisor.
PROGRAM = """
import os, signal, sys, time
agent = os.getppid()
supervisor = open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1]
with open("pids.new", "w") as file:
    file.write(f"{os.getpid()} {agent} {supervisor}")
os.rename("pids.new", "pids")
if "kill" in sys.argv:
    os.kill(agent, signal.SIGKILL)
time.sleep(600)
"""


def check_that_nothing_is_left(work: Path) -> None:
    pids = (work / "pids").read_text().split()
    assert len(pids) == 3
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 60.0, "rank, agent and supervisor are gone")


def node_log_of(work: Path) -> str:
    (path,) = (run_of(work) / "logs").glob("*/node.log")
    return path.read_text()


@pytest.mark.parametrize("what", BROKEN_ON_NODES)
def test_a_crash_on_a_node_is_no_fault_of_the_node(what: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    name, line, more = BROKEN_ON_NODES[what]
    broken = (name, line, more.replace(b"PIDS", repr(str(tmp_path / "pids")).encode()))
    done = call(tmp_path, "run", "--local", "1", "--retries", "3", "--", "train.py", start=BROKEN_COPY % broken)
    result = result_of(tmp_path)
    assert (done.returncode, result["exit"], len(result["attempts"])) == (70, 70, 1), done.stdout + done.stderr
    assert result["verdict"]["cause"] == "internal-error" and "node" not in result["verdict"]["where"]
    assert "ZeroDivisionError" in result["verdict"]["message"]
    log = node_log_of(tmp_path)
    assert "Traceback" in log and what.partition(",")[0] + ".py" in log
    check_that_nothing_is_left(tmp_path)


def test_a_supervisor_that_crashes_after_its_agent_was_killed_ends_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    broken = ("supervisor.py", b"        deadline = time.monotonic() + DRAIN_SECONDS\n", b"        1 / 0\n")
    done = call(tmp_path, "run", "--local", "1", "--", "train.py", "kill", start=BROKEN_COPY % broken)
    verdict = result_of(tmp_path)["verdict"]
    assert "SIGKILL" in verdict["message"], done.stdout + done.stderr
    assert "ZeroDivisionError" in node_log_of(tmp_path)
    check_that_nothing_is_left(tmp_path)


@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_any_command_that_crashes_says_so_in_one_sentence(json_: list[str], tmp_path: Path) -> None:
    start = "import allranks.cli.status as s\ndef boom(*a): raise IndexError('out')\ns.find_run = boom"
    began = time.time()
    done = call(tmp_path, "status", *json_, start=start)
    assert done.returncode == 70
    assert done.stderr.startswith("allranks: allranks itself failed: IndexError: out (")
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    kept = Path(done.stderr.split(", with ", 1)[1].strip())
    assert "Traceback" in kept.read_text() and kept.stat().st_mtime >= began - 1
    kept.unlink()
    if json_:
        assert {k: v for k, v in json.loads(done.stdout).items() if k != "error"} == {
            "schema": 1, "exit": 70, "cause": "internal-error"}  # fmt: skip


def test_a_crash_over_a_name_that_is_not_utf8_is_one_sentence_too(tmp_path: Path) -> None:
    start = "import allranks.cli.status as s\ndef boom(*a): raise IndexError(chr(0xdcff))\ns.find_run = boom"
    done = call(tmp_path, "status", start=start)
    assert done.returncode == 70 and done.stderr.count("\n") == 1, done.stderr
    kept = Path(done.stderr.split(", with ", 1)[1].strip())
    assert "IndexError: \\udcff" in kept.read_text()
    kept.unlink()
