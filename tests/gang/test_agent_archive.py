"""What is sent to nodes is whole: each archive runs without the rest of allranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from allranks.gang.agent_archive import fabric_zip


def test_the_collective_tests_run_from_their_archive_alone(tmp_path: Path) -> None:
    archive = tmp_path / "fabric.zip"
    archive.write_bytes(fabric_zip())
    done = subprocess.run([sys.executable, "-I", "-S", archive, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
