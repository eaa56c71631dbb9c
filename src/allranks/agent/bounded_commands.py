"""Runs a command of this node with a time limit, and keeps a bounded part of what it says.

Standard output and standard error are read until the command has ended: what it leaves in the background may hold them
open for ever, and a wrapper that prints without end costs neither memory nor disk.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from typing import IO, Dict, Mapping, Optional, Sequence

from allranks.protocol.records import NamedTuple

POLL = 0.05  # seconds between two looks whether it has ended, where its pipes do not say so


class EndedCommand(NamedTuple):
    """How a command ended, and the first bytes of its output; `code` None: it took too long and was killed."""

    code: Optional[int]
    out: bytes
    err: bytes


def run_command(
    argv: Sequence[str],
    seconds: float,
    limit: int,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    text: str = "",
) -> EndedCommand:
    """Run a command with a text on standard input; keep `limit` bytes of each output. Raise OSError, ValueError."""
    deadline = time.monotonic() + seconds
    with _temporary_file() if text else open(os.devnull, "rb") as stdin:
        if text:
            stdin.write(text.encode())
            stdin.seek(0)
        child = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            start_new_session=True,
            env=None if env is None else dict(env),
            bufsize=0,
        )
    assert child.stdout is not None and child.stderr is not None
    kept = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    with child.stdout, child.stderr:
        code = _follow(child, kept, limit, deadline)
    out, err = (bytes(data) for data in kept.values())
    return EndedCommand(code, out, err)


def _temporary_file() -> IO[bytes]:
    import tempfile  # late: 2 ms, and few commands are given a text

    return tempfile.TemporaryFile()


def _follow(child: "subprocess.Popen[bytes]", kept: Dict[int, bytearray], limit: int, deadline: float) -> Optional[int]:
    """Read until it has ended and said all; return its code, None where it was ended."""
    with selectors.PollSelector() as selector:
        for fd in kept:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        while True:
            code = child.poll()
            pause = 0.0 if code is not None else POLL
            ready = selector.select(pause) if selector.get_map() else []
            for key, _ in ready:
                if not _take(key.fd, kept[key.fd], limit):
                    selector.unregister(key.fd)
            if code is not None and (not ready or time.monotonic() > deadline):
                return code
            if time.monotonic() > deadline:
                end_group(child)
                return None
            if not selector.get_map() and code is None:
                _await_end(child, deadline)


def _take(fd: int, kept: bytearray, limit: int) -> bool:
    """Read a part; False at the end of the stream."""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return True
    kept += data[: max(0, limit - len(kept))]
    return bool(data)


def _await_end(child: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Wait for a command that has closed its outputs."""
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End the session that a command of ours was started in, with a shim's child; what the kernel holds is left."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(1.0)
    except (OSError, subprocess.TimeoutExpired):
        pass
