"""What a training program writes, of any kind, neither ends nor fails a healthy run: a rank that does all of it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.hosts.waiting import BOUND

pytestmark = pytest.mark.processes

NASTY = r"""
import json, os, socket, sys, time

sys.stdout.write("x" * 60 + "\n" + "step " + "9" * 5000 + "\n" + "[" * 70_000 + "\n\x1b]0;title\x07\x1b[2J\n")
rank = int(os.environ["RANK"])
with open("%s/rank_%02d_metrics.jsonl" % (os.environ["ALLRANKS_OUTPUT_DIR"], rank), "ab") as metrics:
    for line in (b"[" * 100_000, b'{"step": 1, "t": 1e400}', b'{"step": 1%s}' % (b"0" * 400),
                 b"\xff\xfe", b"null", b'{"a": ' * 500, b'"' * 999,  # from here on they can be read
                 b'{"step": NaN}', b'{"step": "three", "t": []}', b'{"step": -5}', b'{"step": true}'):
        metrics.write(line + b"\n")
    metrics.write(b'{"step": 7, "t": %d}\n' % time.time())
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
    for data in (b'{"rank": 0, "event": "initialised", "world_size": "abc"}', b"[" * 60_000, b"\xff", b"null", b"{}",
                 b'{"rank": 0, "event": "init-entered", "world_size": 1e400}', b'{"rank": 0, "event": ["x"], "t": {}}',
                 b'{"rank": %s, "event": "raised"}' % (b"9" * 400), b'{"rank": 0, "event": "leaving", "code": "x"}',
                 b'{"rank": 0, "event": "leaving", "threads": [[1]], "code": 10000000000}',
                 b'{"rank": -1, "event": "x"}',
                 b'{"rank": 7, "event": "launched", "pid": 1e9}', b'{"rank": 0, "event": "became", "program": 5}'):
        agent.sendto(data, os.environ["ALLRANKS_REPORT_SOCKET"])
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write(sys.argv[1])
events = os.path.join(os.environ["ALLRANKS_OUTPUT_DIR"], "..", "events.jsonl")
for _ in range(600):
    if open(events).read().count("-pattern") >= 2:
        break
    time.sleep(0.1)
time.sleep(0.3 * rank)
print("still here")
sys.exit(int(sys.argv[2]))
"""
ERROR_FILES = [
    '{"message": {"message": 5, "extraInfo": "v1"}, "allranks": "v2"}',
    '{"allranks": {"type": ["x"], "t": 1e400}}',
    '{"allranks": {"type": "E", "t": "now", "chain": {"a": 1}, "line": "x", "traceback": 7, "rank": "one"}}',
    "[" * 60_000,
    '{"message": {"message": "E: text", "extraInfo": {"py_callstack": ["x"]}}, "allranks": {"type": "E", "chain": [5]}}',  # noqa: E501
    "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
]


def call(work: Path, *words: str, start: str = "") -> subprocess.CompletedProcess[str]:
    """`allranks WORDS`, after some statements of Python."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ALLRANKS")}
    return forked.call(words, cwd=work, env=environment, timeout=BOUND, before=start)


def run_of(work: Path) -> Path:
    (run,) = (work / "runs").iterdir()
    return run


def result_of(work: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_of(work) / "result.json").read_text())
    return found


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("error", ERROR_FILES[:1])
def test_a_run_survives_what_its_program_writes(code: int, error: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NASTY)
    patterns = ("--step-pattern", r"(x|xx)+[yz]|step (\d+)", "--hang-pattern", r"(x|xx)+$Z")
    done = call(tmp_path, "run", "--local", "1", "--nproc", "2", *patterns, "--", "train.py", error, str(code))
    result = result_of(tmp_path)
    assert (done.returncode, result["exit"]) == ((0, 0) if code == 0 else (1, 1)), done.stderr[-2000:]
    assert result["undecodable"]["metrics of rank 0"] == result["undecodable"]["metrics of rank 1"] == 7
    assert result["undecodable"]["a report to the agent of local0"] == 2 * 13
    logs = [path.read_text() for path in (run_of(tmp_path) / "logs").glob("*/rank_*.log")]
    ended = [log.endswith("still here\n") for log in logs]
    assert len(logs) == 2 and (any(ended) if code else all(ended))  # the first to fail ends the other
    said = done.stdout + done.stderr
    assert "\x1b]" not in said and "Traceback" not in said
    for source in ("metrics of rank 0", "a report to the agent of local0"):
        assert said.count(f"{source}: left out what cannot be read") == 1
    for option in ("--step-pattern", "--hang-pattern"):
        assert said.count(f"note: {option} ") == 1
    events = [json.loads(line) for line in (run_of(tmp_path) / "events.jsonl").read_text().splitlines()]
    assert not [e for e in events if e["event"] in ("fault", "node-lost", "node-silent")]
    ranks = json.loads((run_of(tmp_path) / "status.json").read_text())["nodes"][0]["ranks"]
    assert [rank["step"] for rank in ranks] == [7, 7]


@pytest.mark.parametrize("error", ERROR_FILES[1:])
def test_an_error_file_of_any_kind_gives_a_verdict(error: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nfile = open(os.environ['TORCHELASTIC_ERROR_FILE'], 'wb')\n"
        "file.write(os.fsencode(sys.argv[1]))\nfile.close()\nsys.exit(3)\n"
    )
    done = call(tmp_path, "run", "--local", "1", "--", "train.py", error)
    assert (done.returncode, result_of(tmp_path)["exit"]) == (1, 1), done.stdout + done.stderr
    assert result_of(tmp_path)["verdict"]["cause"] != "internal-error"
