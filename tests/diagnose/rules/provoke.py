"""Makes the fixtures `tests/diagnose/rules/<rule>/<case>.json` out of real failures of real torch processes.

    python tests/diagnose/rules/provoke.py [CASE…]      (needs torch; two or four ranks on 127.0.0.1, gloo)
    python tests/diagnose/rules/provoke.py run RULE/CASE DIRECTORY      (the incident of a run of tests/hosts)

Each case is a training script in `provoked.py`. The ranks are started bare (RANK, WORLD_SIZE, …), two
to a pretended node, each under allranks' own runner. At the first failure the others get SIGTERM, one
second later SIGKILL, as the gang does.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from provoked import CASES
from tests.diagnose.incidents import write_incident
from tests.ports import free_port

from allranks.diagnose.incident import Incident
from allranks.diagnose.verdict import judge
from allranks.protocol.codec import encode
from allranks.runs.directory import RunDirectory
from allranks.runs.recorded_incident import read_incident

HERE = Path(__file__).parent
BASE_T = 1_800_000_000.0
TAIL = 16 << 10
LIMIT = 90.0
END_AFTER = 0.25  # seconds from the first failure to SIGTERM for the others: the way through a controller

RUNNER = HERE.parents[2] / "src/allranks/agent/runner.py"


def start(case: dict[str, Any], directory: Path, port: int) -> dict[int, subprocess.Popen[bytes]]:
    """Starts all ranks of a case, each with its own log."""
    world = case.get("world", 2)
    ranks = {}
    for rank in case.get("start", range(world)):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank % 2), PYTHONUNBUFFERED="1",
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                   TORCHELASTIC_ERROR_FILE=str(directory / f"error_{rank}.json"), GLOO_SOCKET_IFNAME="lo",
                   **case.get("env", {}))  # fmt: skip
        with (directory / f"log_{rank}").open("wb") as log:
            words = [sys.executable, str(RUNNER), case.get("script", "train.py"), *case.get("args", [])]
            ranks[rank] = subprocess.Popen(words, env=env, cwd=directory, stdout=log, stderr=log)
    return ranks


def hang_up(listener: socket.socket) -> None:
    """Answers every connection, and closes it when something was sent."""
    try:
        while True:
            channel = listener.accept()[0]
            channel.recv(64)
            channel.close()
    except OSError:  # the case is over
        pass


def watch(ranks: dict[int, subprocess.Popen[bytes]]) -> tuple[dict[int, dict[str, Any]], float]:
    """Waits for all; ends the others after the first failure."""
    exits: dict[int, dict[str, Any]] = {}
    began, failed, killed = time.time(), 0.0, False
    while len(exits) < len(ranks):
        for rank, process in ranks.items():
            code = process.poll()
            if code is not None and rank not in exits:
                ended = bool(failed) and time.time() > failed + END_AFTER
                exits[rank] = {"code": code if code >= 0 else None, "signal": -code if code < 0 else None,
                               "t": time.time(), "expected": ended, "pid": process.pid}  # fmt: skip
                failed = failed or (time.time() if code else 0.0)
        if time.time() - began > LIMIT:
            failed = failed or time.time()
        for rank, process in ranks.items():
            if failed and rank not in exits and time.time() > failed + END_AFTER:
                process.send_signal(signal.SIGKILL if time.time() > failed + END_AFTER + 1 else signal.SIGTERM)
                killed = True
        time.sleep(0.3 if killed and time.time() < failed + END_AFTER + 1 else 0.002)
        killed = False
    return exits, failed


def provoke(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Runs one case and returns its fixture, with what the one before expects; of a new case it is to be written."""
    before = HERE / f"{name}.json"
    kept = json.loads(before.read_text()) if before.exists() else {"expect": {}}
    with tempfile.TemporaryDirectory(prefix="provoke") as text:
        directory = Path(text)
        (directory / "train.py").write_text(case["code"])
        port = free_port()
        holder = None
        if case.get("hold_port") or case.get("hang_up"):
            holder = socket.create_server(("127.0.0.1", port))
        if holder is not None and case.get("hang_up"):
            threading.Thread(target=hang_up, args=(holder,), daemon=True).start()
        began = time.time()
        exits, failed = watch(start(case, directory, port))
        if holder is not None:
            holder.close()
        shift = BASE_T - began
        records = [record(directory, rank, end, shift) for rank, end in sorted(exits.items())]
    world = case.get("world", 2)
    nodes = [f"h{n + 1}" for n in range((world + 1) // 2)] if world > 2 else ["h1", "h2"]
    per = 2 if world > 2 else 1
    for item in records:
        item["node"] = nodes[item["rank"] // per]
    incident = {
        "attempt": 0, "world_size": world, "master": "127.0.0.1:29500", "started_t": BASE_T,
        "ranks_by_node": {n: [r for r in range(world) if r // per == i] for i, n in enumerate(nodes)},
        "detected_t": round(failed + shift + END_AFTER, 3) if failed else None, "exits": records,
        **case.get("incident", {}),
    }  # fmt: skip
    return {"source": f"tests/diagnose/rules/provoke.py {name}: real processes, torch 2.13.0 gloo",
            "incident": incident, "expect": kept["expect"]}  # fmt: skip


def record(directory: Path, rank: int, end: dict[str, Any], shift: float) -> dict[str, Any]:
    """One rank's exit, with this machine's paths and times taken out."""
    def clean(text: str) -> str:
        text = text.replace(str(directory), "/job").replace(str(RUNNER), "runner.py")
        text = re.sub(r"/\S*/site-packages/", "/venv/lib/python3.11/site-packages/", text)
        return text.replace(sys.prefix, "/venv").replace(sys.base_prefix, "/usr")

    log = clean((directory / f"log_{rank}").read_text(errors="replace"))[-TAIL:]
    path = directory / f"error_{rank}.json"
    error = json.loads(clean(path.read_text())) if path.exists() else None
    if error is not None:
        error["allranks"]["t"] = round(error["allranks"]["t"] + shift, 4)
        error["message"]["extraInfo"]["timestamp"] = str(int(error["allranks"]["t"]))
    t = error["allranks"]["t"] if error is not None else round(end["t"] + shift, 4)
    return {"rank": rank, **end, "t": t, "attempt": 0, "oom_kills": 0, "error": error, "tail": log}


def of_run(name: str, directory: Path) -> dict[str, Any]:
    """The incident of a run directory; what is expected is what is said, to be read before it is kept."""
    incident = read_incident(RunDirectory(directory))
    assert incident is not None
    found = write_incident(incident)
    text = json.dumps(found, default=sorted).replace(str(directory.resolve().parent.parent), "/job")
    text = re.sub(r"/[\w./-]*/(?:tests/hosts|bench)/programs/", "/job/", text)
    text = re.sub(r"/[\w./-]*/site-packages/", "/venv/lib/python3.11/site-packages/", text)
    return {"source": f"a run of tests/hosts, {name}: real processes, torch 2.13.0 gloo",
            "incident": json.loads(text), "expect": said_of(incident)}  # fmt: skip


def said_of(incident: Incident) -> dict[str, Any] | None:
    """What is said of an incident; None of a run that only has warnings."""
    verdict = judge(incident)
    if verdict is None:
        assert any(finding.status == "warn" for finding in incident.findings)
        return None
    place = {key: value for key, value in encode(verdict.finding.where).items() if key != "pid"}
    return {"cause": verdict.cause, "where": place, "culprits": list(verdict.culprits),
            "victims": list(verdict.victims), "says": [verdict.finding.message[:120]]}  # fmt: skip


def main(names: list[str]) -> None:
    """Writes the fixtures of the named cases, or of all; `run` takes a run's."""
    if names[:1] == ["run"]:
        (HERE / f"{names[1]}.json").write_text(json.dumps(of_run(names[1], Path(names[2])), indent=1) + "\n")
        return
    for name in names or list(CASES):
        found = provoke(name, CASES[name])
        path = HERE / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        ends = [(e["rank"], e["code"], e["signal"], e["expected"]) for e in found["incident"]["exits"]]
        print(name, ends, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
