"""What `run --detach` leaves behind: the daemon's errors in controller.log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from allranks.cli.follow import detach
from allranks.engines.following import FollowerView, NoView
from allranks.errors import AllranksError, NodeError
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument


class Fails:
    """A run that has begun, and whose follower fails."""

    job: str | None = None
    leaves_page = False
    awaits_ranks = True

    def __init__(self, run: RunDirectory, error: Exception) -> None:
        self.run: RunDirectory | None = run
        self._error = error

    def show_in(self, view: FollowerView) -> None:
        """Show nothing."""

    def follow(self, asks: bool) -> ResultDocument | None:
        raise self._error

    def linger(self, result: ResultDocument) -> None:
        """Do not stay."""


@pytest.mark.parametrize(
    ("error", "says"),
    [(NodeError("srun: Permission denied"), "allranks: srun: Permission denied\n"), (KeyError("x"), "KeyError: 'x'")],
)
def test_controller_log_says_why_a_daemon_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: Exception, says: str
) -> None:
    """ "See controller.log", and there was nothing in it."""
    run = RunDirectory.create(tmp_path, "train", time.time())
    run.write_document("run.json", {"run": run.name, "nodes": []})
    with capfd.disabled(), pytest.raises(AllranksError, match=r"controller\.log"):
        detach(Fails(run, error), NoView(), fold=True, json_=False)
    log = (run.path / "controller.log").read_text()
    assert says in log and ("Traceback" in log) == isinstance(error, KeyError)
