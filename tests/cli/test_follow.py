"""What `run --detach` leaves behind: the daemon's errors in controller.log."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND

from allranks.runs.directory import RunDirectory

# In a process of its own: the daemon's standard error is a descriptor, which pytest has for itself.
DETACHES = """
import sys
from pathlib import Path
from allranks.cli.follow import detach
from allranks.cli.outlets import Outlets
from allranks.runs.view import View
from allranks.errors import AllranksError, NodeError
from allranks.runs.directory import RunDirectory
from allranks.settings import RunSpec

class Fails:
    job = None
    leaves_page = False
    awaits_ranks = True
    run = RunDirectory(Path(sys.argv[1]))
    def show_in(self, view): pass
    def follow(self, asks): raise eval(sys.argv[2])

try:
    spec = RunSpec.of(detach=True)
    detach(Fails(), View(), Outlets(spec), spec.output, quiet=False, json_=False)
except AllranksError as error:
    print(error)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("NodeError('srun: Permission denied')", "allranks: srun: Permission denied\n"),
        ("KeyError('x')", "Traceback (most recent call last)"),
    ],
)
def test_controller_log_says_why_a_daemon_ended(tmp_path: Path, error: str, says: str) -> None:
    """ "See controller.log", and there was nothing in it."""
    run = RunDirectory.create(tmp_path, "train", 1_795_000_000.0)
    run.write_document("run.json", {"run": run.name, "nodes": []})
    command = [sys.executable, "-c", DETACHES, str(run.path), error]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    log = run.path / "controller.log"
    assert done.stdout == f"the detached controller ended at once. See {log}\n", done.stderr
    assert log.read_text().startswith(says)
