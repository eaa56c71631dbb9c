"""Where logind would end the agent with the ssh session, a scope of the user's manager keeps it.

No systemd runs here: a stand-in for systemd-run notes its words and runs the command, as the real one does.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

from allranks.agent import boot
from allranks.agent.boot import needs_scope
from allranks.gang.agent_archive import BOOT, payload
from allranks.protocol.facts import LoginFacts
from allranks.protocol.frames import Decoder, pack_json
from allranks.protocol.header import AgentHeader

pytestmark = pytest.mark.processes

FACTS = LoginFacts(KillUserProcesses=True, RemoveIPC=True, Linger=True, in_session=True)


@pytest.mark.parametrize("changed", [None, "KillUserProcesses", "in_session", "Linger"])
def test_only_for_a_lingering_user_whose_session_is_killed(changed, tmp_path, monkeypatch):
    (tmp_path / "systemd-run").write_text("#!/bin/sh\n")
    (tmp_path / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert needs_scope(FACTS._replace(**({changed: False} if changed else {}))) is (changed is None)
    assert not needs_scope(None)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert not needs_scope(FACTS)


@pytest.fixture
def short():
    """A directory whose path leaves room for a socket's name, however long pytest's are."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="boot-") as path:
        yield path


STAND_IN = """#!{python}
import os, sys
open({words!r}, "w").write("\\n".join(sys.argv[1:]))
command = sys.argv[sys.argv.index("--collect") + 1:]
os.execvp(command[0], command)
"""


def test_the_agent_answers_from_the_scope(tmp_path, short):
    words = tmp_path / "words"
    stand_in = tmp_path / "systemd-run"
    stand_in.write_text(STAND_IN.format(python=sys.executable, words=str(words)))
    stand_in.chmod(0o755)
    header = AgentHeader("agent", "scoped-1", "node_00", "scoped-1/node_00", lease=5.0, grace=0.1, node_dir=str(short))
    logind = f"from allranks.agent import boot\nboot.logind = lambda: boot.{FACTS!r}"
    boot = BOOT.replace("enter()", f"{logind}\nenter()")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", boot], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == b"\nALLRANKS-BOOT 1\n"
    process.stdin.write(payload(header) + pack_json({"type": "hello", "protocol": 1, "lease": 5.0, "have": {}}))
    process.stdin.flush()
    decoder, frames = Decoder(), []
    while not frames:
        data = os.read(process.stdout.fileno(), 65536)
        assert data, "the boot process ended without a word"
        frames += decoder.feed(data)
    assert frames[0]["type"] == "hello", frames[0]
    assert frames[0]["dead"] is False
    assert words.read_text().split("\n")[:4] == ["--user", "--scope", "--quiet", "--collect"]
    (journal,) = Path(short).glob("allranks-*/scoped-1/node_00/journal.jsonl")
    assert json.loads(journal.read_text().splitlines()[0])["pid"] == frames[0]["pid"]
    process.stdin.write(pack_json({"type": "release"}))
    process.stdin.close()
    assert process.wait(BOUND) == 0


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
