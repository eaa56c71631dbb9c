"""A line that a full disk cut short takes nothing of the next one with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from allranks.agent.journal import read_journal

pytestmark = pytest.mark.processes

# RLIMIT_FSIZE cuts a write as a full disk does (write(2)); Python ignores SIGXFSZ.
PROGRAM = """
import resource, sys
from allranks.agent.journal import Journal, LeaseOver, DroppedBytes
journal = Journal(sys.argv[1])
journal.note(DroppedBytes({"0/0/0": 1}, 1.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (60, resource.RLIM_INFINITY))
journal.note(DroppedBytes({"0/0/0": 2}, 2.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal = Journal(sys.argv[1]) if "again" in sys.argv else journal
journal.note(LeaseOver(3.0))
"""


@pytest.mark.parametrize("words", [[], ["again"]])
def test_the_entry_after_a_cut_one_is_read(words: list[str], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), *words], check=True)
    past = read_journal(str(tmp_path))
    assert past.dropped == {"0/0/0": 1}
    assert past.lease_over is not None and past.lease_over.t == 3.0
    assert b"}{" not in (tmp_path / "journal.jsonl").read_bytes()
