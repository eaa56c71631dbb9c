"""Work that may block (names, interpreters, connections) runs in a forked child with a time limit.

So the agent stays single-threaded, forks ranks safely, and a look that hangs loses only itself.
"""

import json
import os
import signal
import time
import traceback
from typing import Any, Callable, Dict, Optional

from .processes import read_process, send_signal


class Task:
    """A function running in a child; its JSON result comes back through a pipe."""

    def __init__(
        self, name: str, function: Callable[[], Any], seconds: float, done: Callable[[Dict[str, Any]], None]
    ) -> None:
        self.name = name
        self.done = done
        self.deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._data = bytearray()
        self.pipe, write_end = os.pipe()
        os.set_blocking(self.pipe, False)
        self.pid = os.fork()
        if self.pid == 0:
            _run_in_child(function, write_end)
        os.close(write_end)

    def read(self) -> Optional[Dict[str, Any]]:
        """The result once it is complete, else None."""
        while True:
            try:
                data = os.read(self.pipe, 65536)
            except BlockingIOError:
                return None
            if not data:
                return self._result()
            self._data += data

    def _result(self) -> Dict[str, Any]:
        try:
            result = json.loads(bytes(self._data).decode())
        except ValueError:
            result = {"error": "%s ended without a result" % self.name}
        return result if isinstance(result, dict) else {"error": "%s gave no object" % self.name}

    def expire(self) -> Dict[str, Any]:
        """Ends the child; the result says that it took too long."""
        process = read_process(self.pid)
        if process is not None and process.parent == os.getpid():
            send_signal(process, signal.SIGKILL)
        return {"error": "%s did not finish within %g s" % (self.name, self._seconds)}

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self.pipe)


def _run_in_child(function: Callable[[], Any], write_end: int) -> None:
    """Never returns. Standard output and error of the child are the node's log."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            result = function()
        except Exception as error:
            traceback.print_exc()
            result = {"error": "%s: %s" % (type(error).__name__, error)}
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(write_end, data) :]
        status = 0
    finally:
        os._exit(status)
