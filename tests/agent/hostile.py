"""A coordinator that knows the secret and sends what it likes, and a real `allranks join` that dials it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hosts.waiting import BOUND
from tests.processes import command_of

from allranks.protocol.frames import Decoder, OutputFrame, pack_json
from allranks.protocol.secure import Handshake, Records, pack_control

SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = "0123456789abcdef/0/0"
Message = dict[str, Any]


class Service:
    """A program on this machine that is none of the run's business (or, with a token, the master of it)."""

    def __init__(self, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.connections = 0
        self._token = token
        self._socket = socket.create_server((host, 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self.connections += 1
                with contextlib.suppress(OSError):
                    client.sendall((self._token or "220 mail.example.com").encode() + b"\n")
                    client.settimeout(1.0)
                    client.recv(1)
                client.close()

    def close(self) -> None:
        self._socket.close()


class Joins:
    """Starts nodes: each is a process of its own, forked from one that has imported everything."""

    def __init__(self) -> None:
        program = Path(__file__).parent / "programs" / "joins.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, argv: list[str], cwd: Path, out: Path, env: dict[str, str]) -> Join:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"argv": argv, "cwd": str(cwd), "env": env, "out": str(out)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Join(int(self._process.stdout.readline()), Path(f"{out}.code"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(BOUND)


class Join:
    """One process of `allranks join`."""

    def __init__(self, pid: int, code: Path) -> None:
        self.pid, self._code = pid, code

    def poll(self) -> int | None:
        return int(self._code.read_text()) if self._code.exists() else None

    def wait(self, seconds: float = BOUND) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"allranks join (pid {self.pid}) does not end"
            time.sleep(0.01)
        return code

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Hostile:
    """One node with rank 1 of 2, started with `words`, and the coordinator it gets."""

    def __init__(self, joins: Joins, place: Path, *words: str, lease: str = "30s") -> None:
        self.place = place
        self.work = place / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.uid = f"run-{secrets.token_hex(3)}"  # others of these tests run at the same time
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(BOUND)
        self.port = self.listener.getsockname()[1]
        self.out = place / "said.txt"
        self.scratch = tempfile.mkdtemp(prefix="ar")  # short: a socket's path is
        argv = [
            "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--port", str(self.port),
            "--lease", lease, "--init-timeout", "60s", "--node-dir", self.scratch, *words,
        ]  # fmt: skip
        self.out.unlink(missing_ok=True)
        Path(f"{self.out}.code").unlink(missing_ok=True)
        self.process = joins.start(argv, self.work, self.out, {**os.environ, "ALLRANKS_JOIN_SECRET": SECRET})
        self.socket: socket.socket | None = None
        self.records: Records | None = None
        self.controls: list[Message] = []
        self.frames: list[Message] = []
        self._decoder = Decoder()
        self.number = 0
        self.master = Service(token=TOKEN)

    # -- the connection ------------------------------------------------------------------------------

    def accept_raw(self) -> socket.socket:
        """The node's next connection, before a word was said."""
        client, _ = self.listener.accept()
        client.settimeout(BOUND)
        return client

    def accept(self) -> Hostile:
        """The node's next connection, after the handshake and its hello."""
        self.hang_up()
        client = self.accept_raw()
        shake = Handshake(SECRET.encode(), listens=True)
        while not shake.done:
            client.sendall(shake.feed(client.recv(4096)))
        self.socket, self.records, self._decoder = client, shake.channel(), Decoder()
        self.controls = []
        self._take(self.records.feed(b""))
        self._until(lambda: any(m["type"] == "hello" for m in self.controls))
        return self

    def hang_up(self) -> None:
        """The connection breaks."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def payload(self, payload: bytes) -> None:
        """One record."""
        assert self.socket is not None and self.records is not None
        with contextlib.suppress(OSError):
            self.socket.sendall(self.records.pack(payload))

    def control(self, message: Message) -> None:
        """A control message of the join protocol."""
        self.payload(pack_control(message))

    def order(self, message: Message) -> None:
        """A message for the agent."""
        self.payload(b"D" + struct.pack(">I", self.number) + pack_json(message))

    def read(self) -> bool:
        """Takes in what has come; False once the node has hung up."""
        assert self.socket is not None and self.records is not None
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        self._take(self.records.feed(data) if data else [])
        return bool(data)

    def _take(self, records: list[bytes]) -> None:
        for record in records:
            if record[:1] == b"C":
                self.controls.append(json.loads(record[1:]))
            else:
                frames = self._decoder.feed(record[5:])
                self.frames += [f for f in frames if not isinstance(f, OutputFrame)]

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BOUND
        while not condition():
            assert self.read(), f"the node hung up: {self.said()}"
            assert time.monotonic() < deadline

    def until(self, kind: str) -> Message:
        """The agent's next message of a kind."""
        seen = len([f for f in self.frames if f["type"] == kind])
        self._until(lambda: len([f for f in self.frames if f["type"] == kind]) > seen)
        return [f for f in self.frames if f["type"] == kind][-1]

    # -- how a run begins ----------------------------------------------------------------------------

    def open(self, **changed: Any) -> Hostile:
        """A channel with a relay."""
        self.number += 1
        self._decoder = Decoder()
        header = {
            "mode": "agent", "uid": self.uid, "node": "node_01", "run_tag": f"{self.uid}/node_01", "lease": 30.0,
            "grace": 0.5, "node_dir": None, "checks": [], "tests": False, "audit": False,
        }  # fmt: skip
        self.control({"type": "open", "number": self.number, "header": {**header, **changed}})
        return self

    def greeted(self, **changed: Any) -> Hostile:
        """An agent that runs and has said hello."""
        self.open(**changed)
        self.order({"type": "hello", "protocol": 1, "lease": 30.0, "have": {}})
        self.until("hello")
        return self

    def looked(self) -> Hostile:
        """Looked at."""
        self.greeted()
        self.order({"type": "setup", "uid": self.uid, "seconds": 30.0, "checks": []})
        self.until("facts")
        return self

    def proved(self) -> Hostile:
        """It has reached the master."""
        self.looked()
        self.order(self.probe(["127.0.0.1"], self.master.port))
        self.until("probed")
        return self

    @staticmethod
    def probe(addresses: list[str], port: int) -> Message:
        return {"type": "probe", "addresses": addresses, "port": port, "token": TOKEN, "seconds": 5.0}

    def start(self, **terms: Any) -> Message:
        """A start of one rank, as an honest coordinator would send it, but for `terms`."""
        found = {"world_size": 2, "index": 1, "of": 2, "first_rank": 1, "nproc": 1, "attempt": 0, "repeats": 0,
                 "tests": None, "master_addr": "127.0.0.1", "master_port": self.master.port, "run": "run-1",
                 "run_tag": f"{self.uid}/node_01", "interfaces": {}, **terms}  # fmt: skip
        return {"type": "start", "attempt": 0, "ranks": [], "make": [], "follow": [], "terms": found}

    def running(self) -> Hostile:
        """Its rank runs."""
        self.proved()
        self.order(self.start())
        self.until("started")
        self.wait(lambda: (self.work / "up").exists(), "the rank is up")
        return self

    # -- what became of it ---------------------------------------------------------------------------

    @staticmethod
    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + BOUND
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def outcome(self) -> tuple[int, str]:
        """Exit code and words of `allranks join`."""
        self._drain()
        return self.process.wait(BOUND), self.said()

    def _drain(self) -> None:
        """A node that still has something to say must not wait for us."""
        with contextlib.suppress(OSError, AssertionError, ValueError):
            while self.process.poll() is None and self.socket is not None and self.read():
                pass

    def said(self) -> str:
        return self.out.read_text()

    def alive(self) -> list[int]:
        """Processes that work in this node's directory: its ranks, and whatever it was made to start."""
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(self.work):
                    found.append(int(entry))
        return [pid for pid in found if pid != self.process.pid]

    def ranks(self) -> list[int]:
        """Of these, those that run the program."""
        found = []
        for pid in self.alive():
            if b"train.py" in command_of(pid):
                found.append(pid)
        return found

    def close(self) -> None:
        """Nothing stays."""
        self.hang_up()
        self.listener.close()
        self.master.close()
        self.process.signal(signal.SIGTERM)
        self.process.wait()
        for pid in self.alive():  # an agent that was left to its lease
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.scratch, ignore_errors=True)
