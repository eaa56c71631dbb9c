"""The relay: bytes between an ssh session and the agent."""

import functools
import os
import random
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from allranks.agent import boot

pytestmark = pytest.mark.processes


@pytest.fixture
def short():
    """A directory whose path leaves room for a socket's name, however long pytest's are."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="boot-") as path:
        yield path


def read_all(read, size):
    found = bytearray()
    while len(found) < size:
        found += read(1 << 16)
    return found


RELAY = "import sys, socket; sys.path.insert(0, sys.argv[1]); from allranks.agent import boot; boot._relay(sys.argv[2])"


@pytest.mark.parametrize("kind", ["pipe", "socket", "file"])
def test_the_relay_changes_no_byte_whatever_its_output_is(short, kind):
    """sshd may have a pipe there, which takes bytes within the kernel, or a socket, which does not."""
    path = os.path.join(short, "orders")
    listener = socket.create_server(path, family=socket.AF_UNIX)
    if kind == "pipe":
        ours, theirs = os.pipe()
    elif kind == "socket":
        ours, theirs = (end.detach() for end in socket.socketpair())
    else:
        theirs = os.open(os.path.join(short, "out"), os.O_WRONLY | os.O_CREAT)
        ours = os.open(os.path.join(short, "out"), os.O_RDONLY)
    source = str(Path(boot.__file__).parents[2])
    words = [sys.executable, "-I", "-c", RELAY, source, path]
    relay = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=theirs)
    os.close(theirs)
    agent, _ = listener.accept()
    down = random.Random(1).randbytes(3_000_000)
    up = random.Random(2).randbytes(1_000_000)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(agent.sendall, down)
        came_up = pool.submit(read_all, agent.recv, len(up))
        relay.stdin.write(up)
        relay.stdin.flush()
        assert read_all(functools.partial(os.read, ours), len(down)) == down
        assert came_up.result() == up
    agent.close()
    relay.stdin.close()
    assert relay.wait(60) == 0
    os.close(ours)
    listener.close()


class Dials:
    """Stands in for what dials: it says how many ends of the pipe to its session are open in its process."""

    def __init__(self, rules):
        self.rules = rules

    def run(self):
        fds = Path("/proc/self/fd")
        session = os.readlink(fds / str(self.rules._session))  # noqa: SLF001
        ends = [fd for fd in os.listdir(fds) if os.path.islink(fds / fd) and os.readlink(fds / fd) == session]
        raise ValueError(f"{len(ends)} end is open")


def test_what_dials_holds_the_pipe_to_its_session_by_one_end(monkeypatch):
    monkeypatch.setattr(boot, "logind", lambda: None)
    assert boot._dial_apart(Dials).why == "ValueError: 1 end is open"  # noqa: SLF001


def test_why_nothing_that_dials_can_be_started_is_said(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(boot, "logind", lambda: None)
    monkeypatch.setattr(os, "fork", refuse)
    words = "nothing that dials could be started there: Resource temporarily unavailable"
    assert boot._dial_apart(Dials).why == words  # noqa: SLF001
