"""The relay: bytes between an ssh session and the agent."""

import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from allranks.agent import boot

pytestmark = pytest.mark.processes

@pytest.fixture
def short():
    """A directory whose path leaves room for a socket's name, however long pytest's are."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="boot-") as path:
        yield path


RELAY = "import sys, socket; sys.path.insert(0, sys.argv[1]); from allranks.agent import boot; boot._relay(sys.argv[2])"


@pytest.mark.parametrize("kind", ["pipe", "socket", "file"])
def test_the_relay_changes_no_byte_whatever_its_output_is(short, kind):
    """sshd may have a pipe there, which takes bytes within the kernel, or a socket, which does not."""
    listener = socket.socket(socket.AF_UNIX)
    path = os.path.join(short, "orders")
    listener.bind(path)
    listener.listen(1)
    if kind == "pipe":
        ours, theirs = os.pipe()
    elif kind == "socket":
        pair = socket.socketpair()
        ours, theirs = pair[0].detach(), pair[1].detach()
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
    came_up = bytearray()

    def read_up():
        while len(came_up) < len(up):
            came_up.extend(agent.recv(1 << 16))

    threads = [threading.Thread(target=read_up), threading.Thread(target=agent.sendall, args=(down,))]
    for thread in threads:
        thread.start()
    relay.stdin.write(up)
    relay.stdin.flush()
    arrived = bytearray()
    while len(arrived) < len(down):
        arrived += os.read(ours, 100_000)
    for thread in threads:
        thread.join(60)
    agent.close()
    relay.stdin.close()
    assert relay.wait(60) == 0
    os.close(ours)
    listener.close()
    assert (bytes(arrived), bytes(came_up)) == (down, up)
