"""A master port that the user's own run holds: which run, and how to go on."""

import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.hosts.waiting import BOUND, wait_until
from tests.local.running import LocalRun
from tests.ports import free_port

HOLDS = """import os, socket, time
if os.environ["RANK"] == "0":
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", int(os.environ["MASTER_PORT"])))
    listener.listen()
    open("../up", "w").write(str(os.getpid()))
time.sleep(600)
"""


def second(place: Path, port: int) -> dict[str, Any]:
    """The verdict on a run that wants the same port."""
    place.mkdir()
    result = LocalRun(place, "print('never')\n", "--master-port", str(port), nodes=1).result()
    assert result["exit"] == 4
    found: dict[str, Any] = result["verdict"]
    assert (found["cause"], found["where"]["port"]) == ("port-in-use", port)
    return found


def test_a_port_held_by_the_users_own_run(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "first").mkdir()
    first = LocalRun(tmp_path / "first", HOLDS, "--master-port", str(port), "--name", "morning", nodes=1)
    wait_until((tmp_path / "first" / "up").exists, BOUND, "the first run's rank")
    verdict = second(tmp_path / "second", port)
    name = first.directory.name
    assert f"port {port} on local0 is held by your run {name}, which goes on: pid " in verdict["message"]
    assert f"--master-port 0 for a free one, or end that run first: allranks stop {name}" in verdict["remedy"]
    first.process.terminate()
    assert first.result()["exit"] == 143


def test_a_port_held_by_what_is_left_of_a_run(tmp_path: Path) -> None:
    """Its agent is gone; a process of it is known by its run tag."""
    environment = {"ALLRANKS_MARK": "evening-20260101-101010-abc123/node_00"}
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        child = subprocess.Popen(["sleep", "600"], env=environment, pass_fds=[listener.fileno()])
    try:
        verdict = second(tmp_path / "second", port)
        assert "held by what is left of your run evening-20260101-101010: pid " in verdict["message"]
        assert "allranks clean --orphans" in verdict["remedy"]
    finally:
        child.kill()
        child.wait()
