"""Makes the fixtures `tests/rules/<rule>/<case>.json` out of real failures of real torch processes.

    python tests/rules/provoke.py [CASE…]      (needs torch; two or four ranks on 127.0.0.1, gloo)

Each case is a training script in `provoked.py`. The ranks are started bare (RANK, WORLD_SIZE, …), two
to a pretended node. A small stand-in for the runner writes the error files. At the first failure the
others get SIGTERM, one second later SIGKILL, as the gang does. What a case expects is kept with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BASE_T = 1_800_000_000.0
TAIL = 16 << 10
LIMIT = 90.0
END_AFTER = 0.25  # seconds from the first failure to SIGTERM for the others: the way through a controller

RUNNER = '''
import json, os, runpy, sys, time, traceback
def chain(e):
    out = []
    while True:
        e = e.__cause__ or (None if e.__suppress_context__ else e.__context__)
        if e is None:
            return out
        out.append({"type": type(e).__name__, "text": str(e)})
def hook(kind, e, tb):
    frame = traceback.extract_tb(tb)[-1] if tb else None
    own = [f for f in traceback.extract_tb(tb) if f.filename.endswith("train.py")]
    frame = own[-1] if own else frame
    text = "".join(traceback.format_exception(kind, e, tb))
    sys.stderr.write(text)
    note = {"type": kind.__name__, "module": kind.__module__, "text": str(e), "t": time.time(),
            "rank": int(os.environ["RANK"]), "pid": os.getpid(), "file": frame and frame.filename,
            "line": frame and frame.lineno, "function": frame and frame.name, "chain": chain(e), "traceback": text}
    body = {"message": {"message": "%s: %s" % (kind.__name__, e),
            "extraInfo": {"py_callstack": text, "timestamp": str(int(note["t"]))}}, "allranks": note}
    json.dump(body, open(os.environ["ERROR_FILE"], "w"))
sys.excepthook = hook
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
try:
    code = compile(open(sys.argv[0]).read(), sys.argv[0], "exec")
except FileNotFoundError:
    os.execv(sys.executable, [sys.executable, sys.argv[0]])
import __main__
__main__.__file__ = sys.argv[0]
tidy = dict(vars(__main__))
exec(code, {"__name__": "__main__", "__file__": sys.argv[0], "__builtins__": __builtins__})
'''


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start(case: dict[str, Any], directory: Path, port: int) -> dict[int, subprocess.Popen[bytes]]:
    """Starts all ranks of a case, each with its own log."""
    world = case.get("world", 2)
    ranks = {}
    for rank in case.get("start", range(world)):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank % 2), PYTHONUNBUFFERED="1",
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ERROR_FILE=str(directory / f"error_{rank}.json"),
                   OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **case.get("env", {}))  # fmt: skip
        with (directory / f"log_{rank}").open("wb") as log:
            words = [sys.executable, str(directory / "runner.py"), case.get("script", "train.py"), *case.get("args", [])]
            ranks[rank] = subprocess.Popen(words, env=env, cwd=directory, stdout=log, stderr=log)
    return ranks


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
    """Runs one case and returns its fixture."""
    with tempfile.TemporaryDirectory(prefix="provoke") as text:
        directory = Path(text)
        (directory / "train.py").write_text(case["code"])
        (directory / "runner.py").write_text(RUNNER)
        port = free_port()
        holder = socket.create_server(("127.0.0.1", port)) if case.get("hold_port") else None
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
    return {"source": f"tests/rules/provoke.py {name}: real processes, torch 2.13.0 gloo",
            "incident": incident, "expect": case["expect"]}  # fmt: skip


def record(directory: Path, rank: int, end: dict[str, Any], shift: float) -> dict[str, Any]:
    """One rank's exit, with this machine's paths and times taken out."""
    def clean(text: str) -> str:
        text = text.replace(str(directory) + "/", "").replace(str(directory), "/job")
        return re.sub(r"/\S*/site-packages/", "/venv/lib/python3.11/site-packages/", text)

    log = clean((directory / f"log_{rank}").read_text(errors="replace"))[-TAIL:]
    path = directory / f"error_{rank}.json"
    error = json.loads(clean(path.read_text())) if path.exists() else None
    if error is not None:
        error["allranks"]["t"] = round(error["allranks"]["t"] + shift, 4)
        error["message"]["extraInfo"]["timestamp"] = str(int(error["allranks"]["t"]))
    return {"rank": rank, **end, "t": round(end["t"] + shift, 4), "attempt": 0, "oom_kills": 0,
            "error": error, "tail": log}  # fmt: skip


def main(names: list[str]) -> None:
    """Writes the fixtures of the named cases, or of all."""
    sys.path.insert(0, str(HERE))
    from provoked import CASES

    for name in names or list(CASES):
        found = provoke(name, CASES[name])
        path = HERE / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        ends = [(e["rank"], e["code"], e["signal"], e["expected"]) for e in found["incident"]["exits"]]
        print(name, ends, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
