"""The node of `join` that starts a relay of its own."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.engines.test_dialled import HEADER
from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.engines import join
from allranks.engines.dialled import NotYet, Refuse, Seat
from allranks.protocol.controls import HelloControl


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import time; time.sleep(600)", "said nothing for 0.5 s"),
        ("raise SystemExit(3)", "ended, or printed something else"),
        ("while True: print('x' * 4096)", "ended, or printed something else"),
    ],
)
def test_a_relay_that_does_not_start_is_an_error_in_time_and_leaves_no_process(
    program: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that hung at its start, as on a file system that does, was waited for without an end."""
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)

    monkeypatch.setattr(join.subprocess, "Popen", Kept)
    monkeypatch.setattr(join, "BOOT", program)
    monkeypatch.setattr(join, "BOOT_SECONDS", 0.5 if "sleep" in program else 60.0)
    with pytest.raises(OSError, match=says):
        join.spawn(HEADER)
    (child,) = started
    assert child.returncode is not None and child.stdout is not None and child.stdout.closed


class Tap:
    """A port that carries bytes on to another one of this machine, and keeps those of either way."""

    def __init__(self, port: int) -> None:
        self.seen = bytearray()
        self._to = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # node 0 does not listen yet: it is dialled again
                    client.close()
                    continue
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


def test_a_node_that_is_awaited_is_taken_back_from_its_own_host_alone() -> None:
    """A scheduler that started the command again was refused, as the run had begun."""
    hello = HelloControl(1, "h2", "first", nnodes="2")
    seat = Seat(1, hello, "10.0.0.2", taken=True)
    admission = join.Admission(hello._replace(rank=0, hostname="h1"))
    admission.started = True
    again = hello._replace(instance="second")
    with pytest.raises(NotYet, match="node 1 was started again"):  # the run does not know yet that it has left
        admission({1: seat}, again, "10.0.0.2")
    seat.is_vacant = True
    assert admission({1: seat}, again, "10.0.0.2") == 1
    with pytest.raises(Refuse, match="h3"):
        admission({1: seat}, again._replace(hostname="h3"), "10.0.0.3")


ENCRYPTED = "is encrypted (TLS)"
CLEAR = "is authenticated, not encrypted: node 0 cannot encrypt"


@pytest.mark.processes
@pytest.mark.parametrize(("path", "said"), [(os.environ["PATH"], ENCRYPTED), ("/nowhere", CLEAR)], ids=["tls", "clear"])
def test_no_value_of_env_crosses_the_wire(tmp_path: Path, path: str, said: str) -> None:
    """A joined node has variables of its own: those of node 0 came three times, and were thrown away."""
    (tmp_path / "train.py").write_text("import os\nprint('mine is ' + os.environ['MY_TOKEN'])\n")
    port = free_port()
    tap = Tap(port)
    values = ("value-of-node-zero", "value-of-node-one")
    nodes = []
    for rank, value in enumerate(values):
        words = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--nproc", "1"]
        words += ["--port", str((port, tap.port)[rank]), "--runs-dir", str(tmp_path / "runs")]
        words += ["--env", f"MY_TOKEN={value}", "train.py"]
        command = [sys.executable, "-m", "allranks", "join", *words]
        environ = {**os.environ, "ALLRANKS_JOIN_SECRET": "0123456789abcdef0123456789abcdef"}
        if rank == 0:
            environ["PATH"] = path
        nodes.append(subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True))
    texts = [node.communicate(timeout=BOUND)[0] for node in nodes]
    tap.close()
    assert [node.returncode for node in nodes] == [0, 0], texts
    assert f"join      the connection to node 0 {said}\n" in texts[1]
    assert f"connections are {said.removeprefix('is ').partition(':')[0]}" in texts[0]
    assert "mine is value-of-node-one" in texts[0], "each node has its own"
    assert values[0].encode() not in tap.seen
    assert (b"mine is value-of-node-one" in tap.seen) == (said == CLEAR)
