"""What one node may cause, with real processes: output and reports without end, beside another node's beats."""

import json
import os
import signal
import tempfile
from pathlib import Path

from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

REPORTS = 16 << 10
LINES = 160_000
WIDTH = 100
PROGRAM = f"""
import json, os, pathlib, socket, time
if os.environ["RANK"] == "1":
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    threads = ["t" * 200] * 64
    for number in range({REPORTS}):
        report = {{"event": "leaving", "rank": number % 16, "t": time.time(), "threads": threads}}
        channel.sendto(json.dumps(report).encode(), os.environ["ALLRANKS_REPORT_SOCKET"])
    for number in range({LINES}):
        os.write(1, b"%09d" % number + b"." * {WIDTH - 10} + b"\\n")
    pathlib.Path("printed").touch()
    time.sleep(600)
while not pathlib.Path("go").exists():
    print("at work", flush=True)
    time.sleep(0.2)
"""


def test_a_node_that_prints_and_reports_without_end_holds_no_other_and_loses_nothing(tmp_path: Path) -> None:
    """16,384 reports made a journal of 201 MB: nothing was fetched after the agent's death. 16 MB of output follow."""
    run = LocalRun(tmp_path, PROGRAM, "--no-check", "--lease", "6s")
    wait_until((run.work / "printed").exists, BOUND, "all printed")
    uid = json.loads((run.directory / "run.json").read_text())["uid"]
    (journal,) = Path(tempfile.gettempdir()).glob(f"allranks-*/{uid}/node_01/journal.jsonl")
    assert journal.stat().st_size < 100_000
    begun = json.loads(journal.read_text().splitlines()[0])
    os.kill(begun["pid"], signal.SIGKILL)
    result = run.result()
    assert (result["exit"], result["verdict"]["cause"]) == (4, "agent-killed")
    assert [e for e in run.events("node-silent") if e["node"] == "local0"] == []
    (log,) = run.directory.glob("logs/node_01_*/rank_001.log")
    data = log.read_bytes()
    assert len(data) == LINES * WIDTH
    assert [int(data[at : at + 9]) for at in range(0, len(data), WIDTH)] == list(range(LINES))
    assert (run.directory / "events.jsonl").stat().st_size < 9 << 20
