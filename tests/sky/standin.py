"""Stands in for `sky` where there is no cloud: takes the same words, runs the task's `run:` on this machine.

A node is a process with SKYPILOT_* and a home of its own; lines carry SkyPilot's prefixes. ALLRANKS_STANDIN names the
directory where it keeps what it knows; `calls` in it holds the words of each call.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import yaml

STATE = Path(os.environ["ALLRANKS_STANDIN"])
ENDS_OTHERS = 5.0  # seconds


def launch(words: list[str]) -> int:
    name, task = words[words.index("--cluster") + 1], yaml.safe_load(Path(words[-1]).read_text())
    given = {words[i + 1] for i, word in enumerate(words) if word == "--secret"}
    missing = [secret for secret in given if secret not in os.environ]
    assert not missing, f"no value for {missing}"
    count = task["num_nodes"]
    print(f"⚙︎ Launching on cloud.\n✓ Cluster launched: {name}.", flush=True)
    nodes = [_node(task, rank, count, name) for rank in range(count)]
    (STATE / name).write_text(json.dumps([node.pid for node in nodes]))
    threads = [threading.Thread(target=_show, args=(node, rank)) for rank, node in enumerate(nodes)]
    for thread in threads:
        thread.start()
    _end_with_the_first_that_fails(nodes)
    for thread in threads:
        thread.join()
    codes = [node.wait() for node in nodes]
    print(f"✓ Job finished (status: {'FAILED' if any(codes) else 'SUCCEEDED'}).", flush=True)
    return 100 if any(codes) else 0


def _end_with_the_first_that_fails(nodes: list[subprocess.Popen[str]]) -> None:
    """End the others a while after a node has failed, as SkyPilot does: no node of a job outlives another's failure."""
    failed_at = 0.0
    while any(node.poll() is None for node in nodes):
        if failed_at and time.monotonic() > failed_at + ENDS_OTHERS:
            for node in nodes:
                if node.poll() is None:
                    os.killpg(node.pid, signal.SIGTERM)
            return
        if not failed_at and any(node.poll() for node in nodes):
            failed_at = time.monotonic()
        time.sleep(0.1)


def _node(task: dict, rank: int, count: int, name: str) -> subprocess.Popen[str]:
    home = STATE / f"home-{rank}"
    for remote, local in task.get("file_mounts", {}).items():
        target = home / remote.removeprefix("~/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(local, target)
    own = {"HOME": str(home), "SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": str(count),
           "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * count), "SKYPILOT_NUM_GPUS_PER_NODE": "0",
           "SKYPILOT_TASK_ID": f"sky-{name}"}  # fmt: skip
    environ = {**os.environ, **(task.get("envs") or {}), **own}
    return subprocess.Popen(["bash", "-c", task["run"]], env=environ, cwd=STATE, stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip


def _show(node: subprocess.Popen[str], rank: int) -> None:
    name, more = ("head", "") if rank == 0 else (f"worker{rank}", ", ip=1.2.3.4")
    prefix = f"({name}, rank={rank}, pid={node.pid}{more}) "
    assert node.stdout is not None
    for line in node.stdout:
        sys.stdout.write(f"\x1b[36m{prefix}\x1b[0m{line}")
        sys.stdout.flush()


def cancel(words: list[str]) -> int:
    for pid in json.loads((STATE / words[-1]).read_text()):
        try:
            os.killpg(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    return 0


def down(words: list[str]) -> int:
    (STATE / words[-1]).unlink()
    return 0


def status(words: list[str]) -> int:
    print(f"NAME  STATUS\n{words[-1]}  UP" if (STATE / words[-1]).exists() else "No existing clusters.")
    return 0


with (STATE / "calls").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\n")
sys.exit({"launch": launch, "cancel": cancel, "down": down, "status": status}[sys.argv[1]](sys.argv[2:]))
