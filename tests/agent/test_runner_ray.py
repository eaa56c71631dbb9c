"""runner_ray.py around a stand-in for Ray: what it starts, when all nodes are there, and how it ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.waiting import wait_until
from tests.ports import free_port

from allranks.agent.node_directory import remove

RUNNER = Path(__file__).parents[2] / "src" / "allranks" / "agent" / "runner_ray.py"
# Starts `raylet`, and on the head `gcs_server`, as children of itself. NODES of the environment are in Ray.
SCRIPTS = """
import os, socket, subprocess, sys, time
class Option:
    def __init__(self, name):
        self.name = name
class start:
    params = [Option("metrics_export_port"), Option("ray_client_server_port")]
def main():
    words = sys.argv[2:]
    values = dict(word[2:].split("=", 1) for word in words if "=" in word)
    print("started", *sys.argv, "RANKS", "WORLD_SIZE" in os.environ, flush=True)
    if "FAILS" in os.environ:
        raise SystemExit(7)
    logs = values["temp-dir"] + "/session_latest/logs"
    os.makedirs(logs)
    with open(logs + "/raylet.out", "w") as out:
        out.write("[2026-11-28 13:44:07,615 I 4 4] (raylet) main.cc:7: begun\\n")
        out.write("[2026-11-28 13:44:08,615 C 4 4] (raylet) node.cc:7:  no port\\n")
    here = os.path.dirname(__file__)
    if "--head" in words:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(values["port"])))
        listener.listen()
        subprocess.Popen([here + "/gcs_server", "600"])
    raylet = subprocess.Popen([here + "/raylet", "600"])
    with open(os.environ["PIDS"], "w") as file:
        file.write(f"{os.getpid()} {raylet.pid}")
    time.sleep(600)
"""
STATE = """
import os
class GlobalState:
    def _initialize_global_state(self, options):
        pass
    def node_table(self):
        count = int(open(os.environ["NODES"]).read())
        every = [{"Alive": True, "NodeManagerAddress": f"10.0.0.{n}", "Resources": {"GPU": 8.0}} for n in range(1, 4)]
        return [*every[:count], {"Alive": False, "NodeManagerAddress": "10.0.0.9", "Resources": {}}]
"""
RAYLET = """
class GcsClientOptions:
    @staticmethod
    def create(*words, **values):
        pass
"""


class StandIn:
    """A node directory, and a package `ray`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        package = place / "ray"
        for name, text in {
            "__init__.py": "", "scripts/__init__.py": "", "scripts/scripts.py": SCRIPTS, "_raylet.py": RAYLET,
            "../grpc.py": "", "_private/__init__.py": "", "_private/state.py": STATE,
        }.items():  # fmt: skip
            (package / name).parent.mkdir(exist_ok=True)
            (package / name).write_text(text)
        for name in ("raylet", "gcs_server"):
            os.symlink("/bin/sleep", package / "scripts" / name)
        self.node = place / "node"
        self.node.mkdir()
        self.nodes(1)
        self.head = socket.create_server(("127.0.0.1", 0))
        self.address = f"--address=127.0.0.1:{self.head.getsockname()[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    def nodes(self, count: int) -> None:
        (self.place / "nodes").write_text(str(count))

    def start(self, *words: str, directory: Path | None = None, **environment: str) -> None:
        files = [f"--{name}={self.node / name}" for name in ("logs", "ending", "links")]
        before = [word for file in files for word in file.split("=")]
        if "--head" in words:
            before += ["--nodes", "10.0.0.1,10.0.0.2"]
            words = (*words, f"--port={free_port()}", "--node-ip-address=127.0.0.1")
        places = {"PYTHONPATH": str(self.place), "NODES": str(self.place / "nodes"), "PIDS": str(self.place / "pids")}
        self.process = subprocess.Popen(
            [sys.executable, str(RUNNER), *before, "start", f"--temp-dir={directory or self.node / 'ray'}", *words],
            env={**os.environ, **places, "WORLD_SIZE": "2", **environment},
            stdout=(self.place / "out").open("w"),
            start_new_session=True,
        )

    def pids(self) -> tuple[int, int]:
        """The process of `ray start`, and the raylet, once they are there."""
        file = self.place / "pids"
        wait_until(lambda: file.is_file() and len(file.read_text().split()) == 2, 60, "Ray's processes")
        start, raylet = file.read_text().split()
        return int(start), int(raylet)

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        return self.process.wait(60), (self.place / "out").read_text()

    def close(self) -> None:
        self.head.close()
        links = self.node / "links"
        for link in links.read_text().splitlines() if links.is_file() else ():
            Path(link).unlink(missing_ok=True)
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it leads a group of its own
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn(tmp_path)
    yield made
    made.close()


def test_the_head_says_when_ray_has_all_nodes(stand_in: StandIn) -> None:
    stand_in.start("--head")
    stand_in.pids()
    stand_in.nodes(2)
    out = stand_in.place / "out"
    wait_until(lambda: "Ray has all" in out.read_text(), 60, "all nodes")
    started, has_all = out.read_text().splitlines()
    assert started.startswith("started ray start ") and "--metrics-export-port=" in started
    assert "--ray-client-server-port=" in started and started.endswith("RANKS False")
    assert has_all == "Ray has all 2 nodes: 16 GPUs, 0 CPUs"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_a_raylet_is_seen_at_once_and_is_the_end_of_the_rank(stand_in: StandIn, number: int) -> None:
    stand_in.start(stand_in.address)
    raylet = stand_in.pids()[1]
    os.kill(raylet, number)
    began = time.monotonic()
    code, out = stand_in.end()
    assert code == -number and time.monotonic() - began < 30
    last = out.splitlines()[-1]
    assert last == f"ray-worker: raylet (pid {raylet}) was killed by {signal.Signals(number).name}: no port"
    logs = (stand_in.node / "logs").read_text()
    assert logs.startswith("==> session_latest/logs/raylet.out <==\n[2026-11-28") and "no port" in logs


@pytest.mark.parametrize(("reason", "saved"), [("roles-done", False), ("role-failed", True)])
def test_logs_are_saved_unless_the_work_was_done(stand_in: StandIn, reason: str, saved: bool) -> None:
    stand_in.start(stand_in.address)
    stand_in.pids()
    (stand_in.node / "ending").write_text(reason)
    assert stand_in.process is not None
    stand_in.process.terminate()
    assert stand_in.end()[0] == 128 + signal.SIGTERM
    assert (stand_in.node / "logs").exists() is saved


def test_a_start_that_fails_is_the_ranks_failure(stand_in: StandIn) -> None:
    stand_in.start(stand_in.address, FAILS="1")
    code, out = stand_in.end()
    assert code == 7 and "ray-worker: ray start" in out and out.endswith("ended with code 7\n")
    assert " --ray-client-server-port" not in out


def test_a_long_directory_gets_a_short_name_that_the_agent_removes(stand_in: StandIn) -> None:
    long = stand_in.node / ("x" * 80)
    stand_in.start(stand_in.address, directory=long)
    stand_in.pids()
    link = Path((stand_in.node / "links").read_text().strip())
    assert link.resolve() == long and len(str(link)) < 25
    remove(str(stand_in.node))
    assert not link.is_symlink() and not stand_in.node.exists()
