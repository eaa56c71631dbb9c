"""Work with a limit of time: whoever waits for it goes on at the limit, and nothing of it is left.

The page of a failed run, `report`, and the judgement from logs are made so.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from tests.descriptors import many_open
from tests.hosts.waiting import BOUND, wait_until
from tests.processes import stat_of

from allranks.cli import report
from allranks.cluster.nodes import virtual_cluster
from allranks.engines.ssh import ssh_reach
from allranks.errors import NodeError, UsageError
from allranks.gang import session as sessions
from allranks.protocol.codec import encode
from allranks.report.live import OutputView
from allranks.runs import judged
from allranks.runs.child import OutOfTime, WorkFailed, in_child
from allranks.settings import RunSpec

pytestmark = pytest.mark.processes


def endless() -> NoReturn:
    while True:
        time.sleep(1.0)


def test_what_the_work_gives_and_what_it_raises() -> None:
    assert in_child(lambda: {"bytes": b"x" * 3_000_000}, BOUND) == {"bytes": b"x" * 3_000_000}
    with pytest.raises(UsageError, match="no such place"):
        in_child(lambda: (_ for _ in ()).throw(UsageError("no such place")), BOUND)
    with pytest.raises(NodeError):
        in_child(lambda: (_ for _ in ()).throw(NodeError("h1")), BOUND)
    with pytest.raises(WorkFailed, match=r"ZeroDivisionError: .* by zero"):
        in_child(lambda: 1 // 0, BOUND)
    with pytest.raises(WorkFailed, match="killed by signal 9"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), BOUND)


def test_at_the_limit_the_work_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    def work() -> NoReturn:
        child = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pids").write_text(f"{os.getpid()} {child.pid}")
        endless()

    with pytest.raises(OutOfTime, match=r"not ready within 0\.5 s"):
        in_child(work, 0.5)
    for pid in (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else ():
        wait_until(lambda pid=pid: not alive(int(pid)), BOUND, "the work is over")


def test_the_work_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\nfrom allranks.runs.child import in_child\n"
        "def work():\n    open(sys.argv[1], 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
        "in_child(work, 600.0)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "pid")])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), BOUND, "the work has begun")
    parent.kill()
    parent.wait()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not alive(pid), BOUND, "the work is over")


def alive(pid: int) -> bool:
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


def failed_run(work: Path) -> sessions.Session:
    spec = RunSpec.of(
        command=("sh", "-c", f"echo {'a' * 50}b; exit 3"), launcher="direct", local=1, nproc=1, check=False, grace=0.2,
        runs_dir=str(work / "runs"),
    )  # fmt: skip
    return sessions.create(spec, virtual_cluster(1), ssh_reach(spec), dict(os.environ), str(work), OutputView)


def test_the_end_of_a_run_never_waits_for_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = failed_run(tmp_path)
    session.run()
    assert report.page_at_end(session.run_dir) == session.run_dir.path / "report.html"
    (session.run_dir.path / "report.html").unlink()
    monkeypatch.setattr(report, "END_SECONDS", 0.5)
    monkeypatch.setattr(report, "write_page", lambda *given: endless())
    assert report.page_at_end(session.run_dir) is None
    name = session.run_dir.name
    note = f"note: no report.html (not ready within 0.5 s). `allranks report {name}` makes it"
    assert note in capsys.readouterr().err
    assert not list(session.run_dir.path.glob("*report.html*"))


def test_the_verdict_never_waits_for_the_reading_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOGS_SECONDS", 0.5)
    monkeypatch.setattr(sessions, "SURE", 1.0)  # the verdict is not sure without them
    monkeypatch.setattr(judged, "complete", lambda *given: endless())
    session = failed_run(tmp_path)
    result = encode(session.run())
    assert (result["exit"], result["program_exit"]["code"]) == (1, 3), result["verdict"]
    notes = [e["message"] for e in session.run_dir.read_lines()[0] if e["event"] == "note"]
    assert [n for n in notes if n.startswith("the logs were not read for the verdict (not ready within 0.5 s)")]


def test_a_controller_of_many_nodes_waits_for_its_child_too() -> None:
    """From 400 nodes on the verdict was "filedescriptor out of range in select()", an internal error."""
    with many_open():
        assert in_child(os.getpid, BOUND) != os.getpid()
