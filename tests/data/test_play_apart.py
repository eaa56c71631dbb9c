"""The training interpreter that plays virtual ranks prints what it likes where its progress is read."""

import subprocess
import sys
from pathlib import Path

import pytest

from allranks.data.auditing import LoaderError, virtual_rows

pytestmark = pytest.mark.processes

PRINTS = """#!/bin/sh
head -c 400000000 /dev/zero
echo
echo '{"done": 1, "of": 3}'
"""
# Room for half of what is printed.
READS = """
import resource, sys
from allranks.data.auditing import _play_apart
from allranks.data.virtual import Play
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize() + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
seen = []
_play_apart(sys.argv[1], Play("module:function", 2, 2, 1, "/tmp"), seen.append)
print(*seen)
"""


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PRINTS)
    python.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", READS, str(python)], capture_output=True, text=True)
    assert done.stdout == "ReadingProgress(done=1, of=3, rank=0, error='')\n", done.stderr


KILLED = """
import os, signal
def make():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return iter(())
"""


def test_a_rank_that_is_killed_is_a_failure(tmp_path: Path) -> None:
    """As by the kernel, for a lack of memory: the data was called split, by what the other rank had read."""
    (tmp_path / "killed.py").write_text(KILLED)
    with pytest.raises(LoaderError, match=r"^the loader raised as rank 1: its process ended with signal 9$"):
        virtual_rows(f"{tmp_path}/killed.py:make", 2, 2, tell=lambda _: None, python="")
