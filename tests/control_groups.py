"""A control group with little memory: what moves into it and takes more is killed by the kernel."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.hosts.waiting import BOUND, wait_until


@contextmanager
def small_control_group() -> Iterator[Path]:
    """Its directory (version 1 or 2), with room for a little more than what moves into it."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    path = Path("/sys/fs/cgroup", "" if unified else "memory", f"allranks-test-{os.getpid()}")
    try:
        path.mkdir()
        (path / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(64 << 20))
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield path
    wait_until(lambda: not (path / "cgroup.procs").read_text().split(), BOUND, "the group empty")
    path.rmdir()
