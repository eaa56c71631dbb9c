"""A channel that cannot be started is a finding at once: nothing waits for a time limit, whatever the reason."""

import asyncio
import errno
import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster import Cluster, Node
from allranks.cluster.nodes import virtual_cluster
from allranks.engines import orphans
from allranks.engines.ssh import SshTransport, ssh_reach
from allranks.errors import NodeError
from allranks.gang import inspection, links
from allranks.gang import session as sessions
from allranks.gang.agent_archive import MARKER, payload
from allranks.gang.channel import Channel
from allranks.gang.inspection import look_at_nodes
from allranks.gang.transport import NodeReach, not_started
from allranks.protocol.codec import encode
from allranks.protocol.header import AgentHeader, SweepHeader
from allranks.protocol.orders import HelloOrder
from allranks.report.live import OutputView
from allranks.runs.directory import RunDirectory
from allranks.settings import RunSpec
from allranks.settings.runspec import Launch

pytestmark = pytest.mark.processes

LONG = 45.0  # seconds of every time limit: no test here waits for one
BOUND = 120.0  # seconds; on a loaded machine a start takes 15


def remote(*names: str) -> Cluster:
    nodes = tuple(Node(i, name, name, None, None, None, False) for i, name in enumerate(names))
    return Cluster(nodes, "test")


def spec_of(tmp_path: Path, **more: Any) -> RunSpec:
    settings = {"nproc": 1, "init_timeout": LONG, "connect_timeout": LONG, "runs_dir": str(tmp_path / "runs"), **more}
    return RunSpec.of(command=("true",), **settings)


def session_of(tmp_path: Path, cluster: Cluster, reach: NodeReach | None = None, **more: Any) -> sessions.Session:
    spec = spec_of(tmp_path, **more)
    return sessions.create(spec, cluster, reach or ssh_reach(spec), dict(os.environ), str(tmp_path), OutputView)


def run(tmp_path: Path, cluster: Cluster, reach: NodeReach | None = None, **more: Any) -> dict[str, Any]:
    """A whole run in this process."""
    started = time.monotonic()
    result = encode(session_of(tmp_path, cluster, reach, **more).run())
    assert time.monotonic() - started < BOUND
    return result


def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """An `ssh` that does `body`, the only program on PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "ssh").write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
    (place / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(place))


def refused(result: dict[str, Any], cause: str, *says: str) -> dict[str, Any]:
    verdict: dict[str, Any] = result["verdict"]
    assert (verdict["cause"], result["exit"]) == (cause, 4), verdict
    for part in says:
        assert part in verdict["message"]
    assert verdict["remedy"]
    return verdict


def test_no_ssh_client_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    verdict = refused(run(tmp_path, remote("h1", "h2")), "environment-mismatch", "ssh", "not found on PATH")
    assert "node" not in verdict["where"]
    assert "h1" not in verdict["message"], "no node is at fault"
    assert "openssh" in verdict["remedy"]


def test_an_ssh_client_that_may_not_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, monkeypatch, "")
    (tmp_path / "bin" / "ssh").write_bytes(b"\x7fELF of another machine")
    refused(run(tmp_path, remote("h1")), "environment-mismatch", "ssh", "Exec format error")


@pytest.mark.parametrize("name", ["absent", "not-executable", "no-python"])
def test_a_agent_python_that_is_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name != "absent":
        path.write_text("#!/bin/sh\nexit 7\n")
        path.chmod(0o755 if name == "no-python" else 0o644)
    verdict = refused(
        run(tmp_path, virtual_cluster(2), local=2, agent_python=str(path)), "environment-mismatch", f"tried {path}"
    )
    assert "--agent-python" in verdict["remedy"]


def test_a_client_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, monkeypatch, "kill -9 $$")
    refused(run(tmp_path, remote("h1")), "ssh-unreachable", "ssh was killed by SIGKILL")


def test_an_agent_that_boots_and_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node directory lies on a file system that hangs, for example."""
    stub(tmp_path, monkeypatch, "printf '\\nALLRANKS-BOOT 1\\n'; exec sleep 100")
    monkeypatch.setattr(links, "HELLO_SECONDS", 0.5)
    says = "did not answer within 0.5 s. The node or its link is down"
    verdict = refused(run(tmp_path, remote("h1")), "unknown", "h1", says)
    assert "--node-dir" in verdict["remedy"]


def test_a_channel_to_a_node_that_was_taken_over_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It closed before the agent had said hello to this controller: that is no node that cannot be reached."""
    stub(tmp_path, monkeypatch, "printf '\\nALLRANKS-BOOT 1\\n'")
    before = session_of(tmp_path, remote("h1"), lease=2.0, connect_timeout=2.0)
    session = sessions.adopt(before.run_dir, OutputView(), lambda spec, cluster: ssh_reach(spec))
    assert session.run().exit == 4
    kinds = [line["event"] for line in session.run_dir.read_lines()[0]]
    assert "note" not in kinds and "node-lost" in kinds


GREETS_LATE = """#!{python}
import sys, time
from allranks.protocol.messages import HelloMessage, pack_message
number = next(int(word[1:]) for word in sys.argv if word in ("h1", "h2", "h3"))
hello = pack_message(HelloMessage("/tmp/none", "h%d" % number))
for words, seconds in (({marker!r}, 2 * number), (hello, 100)):
    sys.stdout.buffer.write(words)
    sys.stdout.buffer.flush()
    time.sleep(seconds)
"""


@pytest.mark.slow
def test_agents_that_wait_for_each_other_are_not_mute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 on one machine the last says its first word a minute after its Python has started."""
    stub(tmp_path, monkeypatch, "")
    (tmp_path / "bin" / "ssh").write_text(GREETS_LATE.format(python=sys.executable, marker=MARKER))
    monkeypatch.setattr(links, "HELLO_SECONDS", 5.0)
    result = run(tmp_path, remote("h1", "h2", "h3"), init_timeout=10.0)
    (directory,) = (tmp_path / "runs").iterdir()
    events, _ = RunDirectory(directory).read_lines()
    assert sorted(e["node"] for e in events if e["event"] == "node-ready") == ["h1", "h2", "h3"]
    assert "did not answer" not in result["verdict"]["message"]


class Broken(SshTransport):
    """Engines raise what they raise."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Launch())
        self._error = error

    async def connect(self, *given: Any) -> Any:
        raise self._error


def test_an_engine_whose_command_fails(tmp_path: Path) -> None:
    reach = NodeReach(Broken(NodeError("srun: error: Unable to confirm allocation")))
    refused(run(tmp_path, remote("h1"), reach), "unknown", "Unable to confirm allocation")


def test_a_bug_on_the_way_to_a_channel_ends_the_run(tmp_path: Path) -> None:
    """An exception of a task that is not waited for is not kept until the time limit."""
    result = run(tmp_path, remote("h1"), NodeReach(Broken(KeyError("a bug"))))
    assert (result["exit"], result["verdict"]["cause"]) == (70, "internal-error")
    assert "KeyError: 'a bug'" in result["verdict"]["message"]


def test_check_and_leftovers_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run_dir = RunDirectory.create(tmp_path / "runs", "check", 0.0)
    spec = spec_of(tmp_path)
    seen = look_at_nodes(spec, remote("h1", "h2"), run_dir, [], lambda *told: None, SshTransport(spec.launch))
    assert [f.id for f in seen.unreachable] == ["environment-mismatch"] * 2
    with pytest.raises(NodeError, match=r"ssh.*not found on PATH"):
        orphans.ask(spec_of(tmp_path), remote("h1"), {"h1": SweepHeader()})


@pytest.mark.parametrize("step", ["beat_all", "receive"])
def test_a_bug_while_checking_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    async def broken_task(*args: object) -> None:
        broken()

    if step == "receive":
        monkeypatch.setattr(inspection.NodeSession, step, broken)
    else:
        monkeypatch.setattr(inspection, step, broken_task)
    run_dir = RunDirectory.create(tmp_path / "runs", "check", 0.0)
    spec = spec_of(tmp_path, local=1)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        look_at_nodes(spec, virtual_cluster(1), run_dir, [], lambda *told: None, SshTransport(spec.launch))


# -- limits of this machine ---------------------------------------------------------------------------


def command(tmp_path: Path, soft: int, hard: int, nodes: int = 2, nproc: int = 1) -> tuple[int, dict[str, Any]]:
    """`allranks run` with limits of its own for open files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    target = ["--local", str(nodes), "--nproc", str(nproc)]
    words = ["run", *target, "--init-timeout", "600s", "--json", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-m", "allranks", *words], cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True,
        timeout=BOUND,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("files", [8, *(pytest.param(files, marks=pytest.mark.slow) for files in (10, 12)), 15])
def test_too_few_file_descriptors(tmp_path: Path, files: int) -> None:
    code, result = command(tmp_path, files, files)
    verdict = refused(result, "too-many-open-files", f"is {files}")
    assert code == 4
    if files < 15:  # with 15 the first node, which is this machine too, may say it before
        assert "this machine cannot open a channel" in verdict["message"]
        assert "ulimit -n" in verdict["remedy"]


def test_the_soft_limit_of_files_is_raised(tmp_path: Path) -> None:
    """Six channels have more files than the soft limit allows."""
    code, result = command(tmp_path, 24, 4096, nodes=6)
    assert (code, result["verdict"]) == (0, None)


def test_limits_that_the_ranks_of_this_run_exceed(tmp_path: Path) -> None:
    """One rank runs with the same limit; 48 would fail one after the other when they connect."""
    code, result = command(tmp_path, 80, 80, nodes=1, nproc=48)
    verdict = result["verdict"]
    assert (code, verdict["cause"]) == (3, "too-many-open-files")
    assert "(ulimit -Hn) on local0 is 80, and this run needs 116 there (48 ranks of 48)" in verdict["message"]
    assert command(tmp_path, 80, 80, nodes=1)[0] == 0


@pytest.mark.parametrize("files", [10, 16])
def test_too_few_file_descriptors_on_the_nodes(tmp_path: Path, files: int) -> None:
    """Each part of an agent failed in a way of its own; with 16 the master was called unreachable."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n {files}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    verdict = refused(
        run(tmp_path, virtual_cluster(2), local=2, agent_python=str(python)), "too-many-open-files",
        f"the agent could not start: Too many open files: the limit (ulimit -Hn) is {files}",
    )  # fmt: skip
    assert "nofile" in verdict["remedy"]


@pytest.mark.parametrize(
    ("number", "cause", "says"),
    [
        (errno.EAGAIN, "unknown", "the limit of processes is reached"),
        (errno.ENOMEM, "host-out-of-memory", "Cannot allocate memory"),
        (errno.ENFILE, "too-many-open-files", "Too many open files in system"),
    ],
)
def test_what_this_machine_lacks_is_said(number: int, cause: str, says: str) -> None:
    finding = not_started("ssh", OSError(number, os.strerror(number)), 1024)
    assert (finding.id, finding.status, finding.where.node) == (cause, "fail", None)
    assert says in finding.message
    assert finding.remedy


@pytest.mark.parametrize("code", [None, 0, 1, 255, -9, -64])
@pytest.mark.parametrize("local", [False, True])
def test_how_a_channels_process_ended_is_said_in_words(code: int | None, local: bool) -> None:
    node = virtual_cluster(1).nodes[0] if local else remote("h1").nodes[0]
    message = SshTransport(Launch()).failure(node, b"", "", code).message
    assert "None" not in message and "-" not in message, message
    assert ("closed its output" in message) == (code is None)


def test_what_waits_to_be_sent_to_many_nodes_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node here reads what it is sent; each copy would be half a megabyte."""
    stub(tmp_path, monkeypatch, f"echo; echo {MARKER.decode().strip()}; exec sleep {BOUND}")
    header = AgentHeader("agent", "run", "node", "run/node", lease=30.0, grace=1.0)
    nodes = remote(*(f"h{i}" for i in range(24))).nodes
    channels = [Channel(node, SshTransport(Launch()), lambda frames: None, lambda why: None) for node in nodes]

    async def held_by_all_but_one() -> int:
        await channels[0].open(header, HelloOrder(), BOUND)
        tracemalloc.start()
        try:
            for channel in channels[1:]:
                await channel.open(header, HelloOrder(), BOUND)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            for channel in channels:
                channel.close()

    one_copy = len(payload(header))
    assert asyncio.run(held_by_all_but_one()) < one_copy
