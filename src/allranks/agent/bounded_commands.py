"""What may take too long on a node, within a limit: a command, of whose words a bounded part is kept, or functions side
by side.

Standard output and standard error are read until the command has ended: what it leaves in the background may hold them
open for ever, and a wrapper that prints without end costs neither memory nor disk.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.codec import encode
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.processes import Ran
from allranks.protocol.records import NamedTuple

POLL = 0.05  # seconds between two looks whether it has ended, where its pipes do not say so


def run_command(
    argv: Sequence[str],
    seconds: float,
    limit: int,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    kept_fd: Optional[int] = None,
) -> Ran:
    """Run a command without standard input; keep `limit` bytes of each output. Raise OSError, ValueError.

    `kept_fd` is a descriptor that it inherits. The bytes are the first, or of a negative `limit` the last."""
    deadline = time.monotonic() + seconds
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        start_new_session=True,
        env=env,
        pass_fds=() if kept_fd is None else (kept_fd,),
        bufsize=0,
    )
    assert child.stdout is not None and child.stderr is not None
    kept = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    with child.stdout, child.stderr:
        code = _follow(child, kept, limit, deadline)
    out, err = (data.decode("utf-8", "replace") for data in kept.values())
    return Ran(code, out, err)


def _follow(child: "subprocess.Popen[bytes]", kept: Dict[int, bytearray], limit: int, deadline: float) -> Optional[int]:
    with selectors.PollSelector() as selector:
        for fd in kept:
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
                try:
                    child.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass


def _take(fd: int, kept: bytearray, limit: int) -> bool:
    data = os.read(fd, 65536)
    if limit < 0:
        kept += data
        del kept[:limit]
    else:
        kept += data[: limit - len(kept)]
    return bool(data)


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End the session that a command of ours was started in, with a shim's child; what the kernel holds is left."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(1.0)
    except (OSError, subprocess.TimeoutExpired):
        pass


class FactPart(NamedTuple):
    """One key of the facts: how its value is made; `seconds` 0 means it cannot block."""

    name: str
    collect: Callable[[], object]
    seconds: float = 0.0


def collect_parts(parts: Sequence[FactPart]) -> JsonObject:
    """Collect parts side by side, each within its limit; one that fails is {"error": …}."""
    facts: JsonObject = {}
    begun = time.monotonic()
    threads: List[Tuple[FactPart, threading.Thread]] = []
    for part in parts:
        if part.seconds:
            thread = threading.Thread(target=_run, args=(part, facts), daemon=True)
            try:
                thread.start()
                threads.append((part, thread))
            except RuntimeError:  # no more threads are allowed
                _run(part, facts)
    for part in parts:
        if not part.seconds:
            _run(part, facts)
    for part, thread in threads:
        thread.join(max(0.0, begun + part.seconds - time.monotonic()))
    result = facts.copy()  # a thread that comes late writes into the other one
    for part in parts:
        result.setdefault(part.name, {"error": "no answer within %g s" % part.seconds})
    return result


def _run(part: FactPart, facts: JsonObject) -> None:
    try:
        facts[part.name] = encode(part.collect())
    except Exception as error:
        facts[part.name] = {"error": "%s: %s" % (type(error).__name__, error)}
