"""--wrap: a command around each rank hands its environment on, or the rank does not begin."""

import sys
from pathlib import Path

import pytest
from tests.local.running import LocalRun

PROGRAM = "import os\nprint('rank', os.environ.get('RANK'), os.environ.get('OF_WRAP'))\n"  # ends well alone, too


@pytest.mark.parametrize("wrap", ["env -i", "env -u RANK -u ALLRANKS_REPORT_SOCKET"])
def test_a_wrap_that_drops_the_environment_ends_the_run_with_its_fix(tmp_path: Path, wrap: str) -> None:
    """The program must not begin: each rank would train alone, and the run would end well."""
    run = LocalRun(tmp_path, PROGRAM, "--wrap", wrap)
    result = run.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"]) == (1, "environment-mismatch")
    assert "began without RANK: the command of --wrap starts the program without its environment" in verdict["message"]
    assert "Apptainer" in verdict["remedy"] and "rank None" not in run.stderr
    alone = run.ask("diagnose", *map(str, run.directory.glob("logs/node_*/rank_*.log")))
    assert (alone["cause"], alone["remedy"]) == (verdict["cause"], verdict["remedy"])


def test_a_wrap_that_hides_the_runner_is_told_what_to_mount(tmp_path: Path) -> None:
    """As a container without the scratch directory of the node: Python cannot open the runner."""
    (tmp_path / "hide.sh").write_text('#!/bin/sh\nshift 2\nexec "$0.python" /no/such/runner.py "$@"\n')
    (tmp_path / "hide.sh").chmod(0o755)
    (tmp_path / "hide.sh.python").symlink_to(sys.executable)
    verdict = LocalRun(tmp_path, PROGRAM, "--wrap", str(tmp_path / "hide.sh"), nodes=1).result()["verdict"]
    assert verdict["cause"] == "remote-path-missing"
    assert "mount /no/such into the container of --wrap" in verdict["remedy"]
