"""The node of `join` that starts a relay of its own."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from allranks.engines import join
from allranks.protocol.header import AgentHeader

HEADER = AgentHeader("agent", "x", "node_01", "x/node_01", lease=30.0, grace=1.0)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import time; time.sleep(600)", "said nothing for 0.5 s"),
        ("raise SystemExit(3)", "ended, or printed something else"),
        ("while True: print('x' * 4096)", "ended, or printed something else"),
    ],
)
def test_a_relay_that_does_not_start_is_an_error_in_time_and_leaves_no_process(
    program: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that hung at its start, as on a file system that does, was waited for without an end."""
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)

    monkeypatch.setattr(join.subprocess, "Popen", Kept)
    monkeypatch.setattr(join, "BOOT", program)
    monkeypatch.setattr(join, "BOOT_SECONDS", 0.5 if "sleep" in program else 60.0)
    with pytest.raises(OSError, match=says):
        join.spawn(HEADER)
    (child,) = started
    assert child.returncode is not None and child.stdout is not None and child.stdout.closed
