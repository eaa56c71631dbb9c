"""ssh with its traffic kept: what goes in and comes out as files, and the client's processor time beside them.

`wire_ssh.py SSH DIRECTORY ARGUMENTS…`; bench/nodes.py puts it before ssh.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

CHUNK = 1 << 20


def carry(source: int, target: int, copy: str) -> None:
    """Pass bytes on and keep them in a file, until either end is closed."""
    with open(copy, "wb") as file:
        while data := os.read(source, CHUNK):
            file.write(data)
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(target, view) :]
            except OSError:
                break
    os.close(target)


def main() -> int:
    """The exit code is ssh's."""
    ssh, directory, *arguments = sys.argv[1:]
    base = os.path.join(directory, str(os.getpid()))
    child = subprocess.Popen([ssh, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    up = (0, os.dup(child.stdin.fileno()), f"{base}.up")
    child.stdin.close()
    threading.Thread(target=carry, args=up, daemon=True).start()
    carry(child.stdout.fileno(), os.dup(1), f"{base}.down")
    code = child.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(f"{base}.cpu", "w") as file:
        file.write(str(used.ru_utime + used.ru_stime))
    return code if code >= 0 else 255


if __name__ == "__main__":
    os._exit(main())
