"""Where logind would end the agent with the ssh session, a scope of the user's manager keeps it.

No systemd runs here: a stand-in for systemd-run notes its words and runs the command, as the real one does.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

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
